#include "trainer/data/prepare/cleaning.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/corpus_manifest.h"

namespace deepnet {
namespace {

// Below this many pieces on the longer side a ratio says nothing.
constexpr int64_t kRatioFromPieces = 10;

// A NUL is UTF-8, but in no text.
bool IsText(std::string_view side) {
  return IsUtf8(side) && side.find('\0') == std::string_view::npos;
}

}  // namespace

std::string_view Name(DropReason reason) {
  static constexpr std::array<std::string_view, kNumDropReasons> kNames = {
      "kept",        "malformed",      "bad UTF-8", "empty side", "tag in text", "equal sides",
      "below score", "in dev or test", "duplicate", "too long",   "length ratio"};
  static_assert(!kNames.back().empty());
  return kNames[static_cast<size_t>(reason)];
}

void HeldOutSentences::Add(std::string_view language, std::string_view sentence) {
  hashes_.push_back(HashBytes(sentence, HashBytes(language)));
}

void HeldOutSentences::Seal() {
  std::sort(hashes_.begin(), hashes_.end());
  hashes_.erase(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
}

bool HeldOutSentences::Contains(uint64_t language_hash, std::string_view sentence) const {
  return std::binary_search(hashes_.begin(), hashes_.end(), HashBytes(sentence, language_hash));
}

uint64_t HeldOutSentences::Digest() const {
  return HashBytes(
      {reinterpret_cast<const char*>(hashes_.data()), hashes_.size() * sizeof(uint64_t)});
}

TextFilter::TextFilter(const CleaningSpec& spec, std::vector<std::string> languages,
                       const HeldOutSentences* held_out)
    : spec_(spec), languages_(std::move(languages)), held_out_(held_out) {
  if (spec_.max_sentence_tokens() == 0) spec_.set_max_sentence_tokens(250);
  if (spec_.max_length_ratio() == 0.0) spec_.set_max_length_ratio(3.0);
  DEEPNET_CHECK(std::is_sorted(languages_.begin(), languages_.end())) << "languages";
}

TextFilter::LanguagePair TextFilter::LanguagePair::Of(const LanguagePairTexts& texts,
                                                      const ParallelFiles& files) {
  return {.first_hash = HashBytes(texts.first),
          .second_hash = HashBytes(texts.second),
          .score_threshold = files.score_threshold.value_or(0.0)};
}

bool TextFilter::HasTag(std::string_view text) const {
  for (size_t open = text.find("__"); open != std::string_view::npos;
       open = text.find("__", open + 1)) {
    const size_t close = text.find("__", open + 2);
    if (close == std::string_view::npos) return false;
    const std::string_view name = text.substr(open + 2, close - open - 2);
    if (std::binary_search(languages_.begin(), languages_.end(), name)) return true;
  }
  return false;
}

DropReason TextFilter::Judge(const LanguagePair& languages, RawPair* pair) const {
  if (pair->malformed) return DropReason::kMalformed;
  if (pair->cut) return DropReason::kTooLong;
  if (!IsText(pair->first) || !IsText(pair->second)) return DropReason::kBadUtf8;
  pair->first = Trim(pair->first);
  pair->second = Trim(pair->second);
  if (IsBlank(pair->first) || IsBlank(pair->second)) return DropReason::kEmptySide;
  if (HasTag(pair->first) || HasTag(pair->second)) return DropReason::kTagInText;
  if (!languages.is_training) return DropReason::kNone;
  if (!spec_.keep_equal_sides() && pair->first == pair->second) return DropReason::kEqualSides;
  if (pair->score.has_value() && !(*pair->score >= languages.score_threshold)) {
    return DropReason::kBelowScore;
  }
  if (held_out_->Contains(languages.first_hash, pair->first) ||
      held_out_->Contains(languages.second_hash, pair->second)) {
    return DropReason::kHeldOut;
  }
  return DropReason::kNone;
}

DropReason TextFilter::JudgeLengths(int64_t first_pieces, int64_t second_pieces) const {
  const auto [shorter, longer] = std::minmax(first_pieces, second_pieces);
  if (longer > spec_.max_sentence_tokens()) return DropReason::kTooLong;
  if (shorter == 0) return DropReason::kEmptySide;
  if (longer >= kRatioFromPieces &&
      static_cast<double>(longer) > spec_.max_length_ratio() * static_cast<double>(shorter)) {
    return DropReason::kLengthRatio;
  }
  return DropReason::kNone;
}

void DropCounts::Add(DropReason reason, const PairReader& reader, int64_t line) {
  const auto place = static_cast<size_t>(reason);
  if (lines[place]++ == 0) examples[place] = reader.Location(line);
}

void DropCounts::Add(const DropCounts& later) {
  for (size_t reason = 0; reason < lines.size(); ++reason) {
    if (lines[reason] == 0) examples[reason] = later.examples[reason];
    lines[reason] += later.lines[reason];
  }
}

int64_t DropCounts::Total() const {
  return std::accumulate(lines.begin(), lines.end(), int64_t{0});
}

void SetLengths(int64_t first, int64_t second, int32_t longest, LanguagePairReport* report) {
  const double kept = std::max<double>(1.0, static_cast<double>(report->kept()));
  report->set_first_tokens(first);
  report->set_second_tokens(second);
  report->set_first_mean_length(static_cast<double>(first) / kept);
  report->set_second_mean_length(static_cast<double>(second) / kept);
  report->set_longest(longest);
}

LanguagePairReport MakePairReport(const LanguagePairTexts& texts, std::string_view split,
                                  const DropCounts& counts) {
  LanguagePairReport report;
  report.set_first_language(texts.first);
  report.set_second_language(texts.second);
  report.set_split(std::string(split));
  report.set_lines(counts.Total());
  report.set_kept(counts.lines[0]);
  for (int reason = 1; reason < kNumDropReasons; ++reason) {
    if (counts.lines[reason] == 0) continue;
    DropCount& drop = *report.add_dropped();
    drop.set_reason(std::string(Name(static_cast<DropReason>(reason))));
    drop.set_lines(counts.lines[reason]);
    drop.set_example(counts.examples[reason]);
  }
  return report;
}

std::string DropWarning(const LanguagePairReport& counts) {
  const int64_t dropped = counts.lines() - counts.kept();
  if (dropped <= counts.lines() / 2) return "";
  const auto most = std::ranges::max_element(counts.dropped(), {}, &DropCount::lines);
  DEEPNET_CHECK(most != counts.dropped().end());
  return absl::StrCat(DirectionsOf(counts).front().Name(), ", ", counts.split(), ": ",
                      WithCommas(dropped), " of ", WithCommas(counts.lines()),
                      " lines are dropped, ", WithCommas(most->lines()), " for the reason \"",
                      most->reason(), "\", the first of them ", most->example());
}

void AddCounts(const LanguagePairReport& block, LanguagePairReport* report) {
  report->set_lines(report->lines() + block.lines());
  report->set_kept(report->kept() + block.kept());
  report->set_first_tokens(report->first_tokens() + block.first_tokens());
  report->set_second_tokens(report->second_tokens() + block.second_tokens());
  report->set_longest(std::max(report->longest(), block.longest()));
  for (const DropCount& drop : block.dropped()) {
    auto& sums = *report->mutable_dropped();
    const auto sum = std::ranges::find(sums, drop.reason(), &DropCount::reason);
    if (sum == sums.end()) {
      *sums.Add() = drop;
    } else {
      sum->set_lines(sum->lines() + drop.lines());
    }
  }
}

DuplicateFinder::DuplicateFinder(std::string folder, int64_t memory_records)
    : folder_(std::move(folder)), memory_records_(memory_records) {
  DEEPNET_CHECK(memory_records > 0) << "memory_records";
}

DuplicateFinder::~DuplicateFinder() {
  for (size_t part = 0; part < part_sizes_.size(); ++part) {
    unlink(FileName(static_cast<int>(part)).c_str());
  }
}

std::string DuplicateFinder::FileName(int part) const {
  return absl::StrCat(folder_, "/duplicates.", part);
}

absl::Status DuplicateFinder::Add(int64_t line, uint64_t hash) {
  DEEPNET_CHECK(line >= num_lines_) << "line " << line << " after " << num_lines_;
  if (static_cast<int64_t>(records_.size()) == memory_records_) RETURN_IF_ERROR(Spill());
  records_.push_back({hash, line});
  num_lines_ = line + 1;
  return absl::OkStatus();
}

absl::Status DuplicateFinder::Spill() {
  if (part_sizes_.empty()) part_sizes_.assign(kNumFiles, 0);
  const auto part_of = [](const Record& record) { return static_cast<int>(record.hash >> 56); };
  std::sort(records_.begin(), records_.end());
  for (size_t begin = 0; begin < records_.size();) {
    const int part = part_of(records_[begin]);
    size_t end = begin;
    while (end < records_.size() && part_of(records_[end]) == part) ++end;
    ASSIGN_OR_RETURN(const auto file, part_sizes_[part] == 0
                                          ? files_->CreateNew(FileName(part))
                                          : files_->OpenForAppend(FileName(part)));
    RETURN_IF_ERROR(file->Append(
        {reinterpret_cast<const char*>(&records_[begin]), (end - begin) * sizeof(Record)}));
    part_sizes_[part] += static_cast<int64_t>(end - begin);
    begin = end;
  }
  records_.clear();
  return absl::OkStatus();
}

void DuplicateFinder::FindInRecords(std::vector<uint64_t>* duplicates) {
  std::sort(records_.begin(), records_.end());
  for (size_t i = 1; i < records_.size(); ++i) {
    if (records_[i].hash != records_[i - 1].hash) continue;
    (*duplicates)[records_[i].line / 64] |= uint64_t{1} << (records_[i].line % 64);
  }
  records_.clear();
}

// Round r of R takes the records whose second and third hash bytes fall to it, so that equal hashes
// meet in one round.
absl::Status DuplicateFinder::FindInFile(int part, std::vector<uint64_t>* duplicates) {
  // Half of memory, because rounds differ in size.
  const auto rounds = static_cast<uint64_t>(part_sizes_[part] / (memory_records_ / 2 + 1)) + 1;
  std::vector<Record> buffer(1 << 16);
  const std::span<char> bytes(reinterpret_cast<char*>(buffer.data()),
                              buffer.size() * sizeof(Record));
  for (uint64_t round = 0; round < rounds; ++round) {
    // Once more where the last buffer is full, to see that nothing follows.
    for (int64_t begin = 0; begin <= part_sizes_[part]; begin += std::ssize(buffer)) {
      const int64_t count = std::min(std::ssize(buffer), part_sizes_[part] - begin);
      ASSIGN_OR_RETURN(const int64_t num_read,
                       files_->ReadAt(FileName(part), begin * int64_t{sizeof(Record)}, bytes));
      if (num_read != count * int64_t{sizeof(Record)}) {
        return DataLoss(FileName(part), ": ", begin + num_read / int64_t{sizeof(Record)},
                        " records, not ", part_sizes_[part]);
      }
      for (const Record& record : std::span(buffer).first(static_cast<size_t>(count))) {
        if (((record.hash >> 40) & 0xFFFF) % rounds == round) records_.push_back(record);
      }
    }
    FindInRecords(duplicates);
  }
  unlink(FileName(part).c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> DuplicateFinder::Finish() {
  std::vector<uint64_t> duplicates(static_cast<size_t>((num_lines_ + 63) / 64), 0);
  if (part_sizes_.empty()) {
    FindInRecords(&duplicates);
  } else {
    RETURN_IF_ERROR(Spill());
    for (int part = 0; part < kNumFiles; ++part) {
      if (part_sizes_[part] > 0) RETURN_IF_ERROR(FindInFile(part, &duplicates));
    }
  }
  records_ = {};
  return duplicates;
}

}  // namespace deepnet
