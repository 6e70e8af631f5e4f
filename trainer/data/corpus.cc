#include "trainer/data/corpus.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"
#include "trainer/data/line_reader.h"

namespace deepnet {
namespace {

absl::Status CheckHash(const std::string& path, uint64_t hash, const CorpusFile& file) {
  if (hash == file.hash()) return absl::OkStatus();
  return DataLoss(path, ": damaged: its bytes do not match the hash in the manifest");
}

MeanAndVariance MomentsOf(uint64_t sum, uint64_t squares, double count) {
  const double mean = static_cast<double>(sum) / count;
  return {mean, std::max(0.0, static_cast<double>(squares) / count - mean * mean)};
}

}  // namespace

Corpus::Corpus(std::string folder, CorpusManifest manifest, Vocabulary vocabulary)
    : folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      vocabulary_(std::move(vocabulary)) {}

absl::StatusOr<Corpus> Corpus::Open(const std::string& folder) {
  ASSIGN_OR_RETURN(CorpusManifest manifest, ReadManifest(folder));
  if (ContentHash(manifest) != manifest.report().content_hash()) {
    return DataLoss(folder, "/", kCorpusManifest,
                    ": the content hash does not fit the list of files");
  }
  for (const CorpusFile& file : manifest.files()) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(absl::StrCat(folder, "/", file.name()), error);
    if (error || static_cast<int64_t>(bytes) != file.bytes()) {
      return DataLoss(folder, "/", file.name(), ": ",
                      error ? error.message()
                            : absl::StrCat(bytes, " bytes, the manifest says ", file.bytes()));
    }
  }
  ASSIGN_OR_RETURN(Vocabulary vocabulary,
                   Vocabulary::Open(absl::StrCat(folder, "/", kTokenizerFile),
                                    {manifest.languages().begin(), manifest.languages().end()}));
  if (vocabulary.hash() != manifest.report().tokenizer_hash()) {
    return DataLoss(folder, "/", kTokenizerFile, ": hash ", vocabulary.hash(),
                    ", the manifest says ", manifest.report().tokenizer_hash());
  }
  Corpus corpus(folder, std::move(manifest), std::move(vocabulary));
  RETURN_IF_ERROR(corpus.OpenShards());
  return corpus;
}

absl::Status Corpus::OpenShards() {
  std::map<std::string, std::pair<Direction, DirectionPlace>> by_name;
  for (const LanguagePairReport& pair : manifest_.report().pairs()) {
    if (pair.split() != "train" || pair.kept() == 0) continue;
    for (const std::string& language : {pair.first_language(), pair.second_language()}) {
      if (vocabulary_.TagId(language).has_value()) continue;
      return DataLoss(folder_, "/", kCorpusManifest, ": pairs of ", language,
                      ", which is not among its languages");
    }
    const std::vector<Direction> served = DirectionsOf(pair);
    const std::string name = ShardFileName(served.front().Name());
    ASSIGN_OR_RETURN(Shard shard,
                     Shard::Open(absl::StrCat(folder_, "/", name), vocabulary_.size()));
    shard.lengths();
    RETURN_IF_ERROR(shard.Intact());
    const auto file = std::ranges::find(manifest_.files(), name, &CorpusFile::name);
    if (file == manifest_.files().end() || shard.content_hash() != file->hash() ||
        shard.num_pairs() != pair.kept()) {
      return DataLoss(folder_, "/", name, ": not the file that the manifest lists");
    }
    const int place = static_cast<int>(shards_.size());
    for (const Direction& direction : served) {
      by_name[direction.Name()] = {direction, {place, direction.source != pair.first_language()}};
    }
    shards_.push_back(std::move(shard));
  }
  for (auto& [name, entry] : by_name) {
    directions_.push_back(std::move(entry.first));
    places_.push_back(entry.second);
  }
  return absl::OkStatus();
}

absl::Status Corpus::Intact() const {
  for (const Shard& shard : shards_) RETURN_IF_ERROR(shard.Intact());
  return absl::OkStatus();
}

absl::Status Corpus::CheckContent(int part, int num_parts) const {
  int number = 0;
  const auto is_mine = [&] { return number++ % num_parts == part; };
  for (const Shard& shard : shards_) {
    if (is_mine()) RETURN_IF_ERROR(shard.CheckContent());
  }
  for (const auto* files : {&manifest_.files(), &manifest_.notes()}) {
    for (const CorpusFile& file : *files) {
      if (absl::EndsWith(file.name(), kShardEnd) || !is_mine()) continue;
      const std::string path = absl::StrCat(folder_, "/", file.name());
      ASSIGN_OR_RETURN(const uint64_t hash, HashFile(path));
      RETURN_IF_ERROR(CheckHash(path, hash, file));
    }
  }
  return absl::OkStatus();
}

absl::Status Corpus::CheckTexts(std::string_view split) const {
  for (const Direction& direction : TextDirections(split)) {
    if (direction.source > direction.target) continue;  // the same files
    RETURN_IF_ERROR(ReadSentences(split, direction.source, direction.target).status());
  }
  return absl::OkStatus();
}

std::string Corpus::ChecksumsHash() const {
  uint64_t hash = 0;
  for (const Shard& shard : shards_) hash = HashBytes(absl::StrCat(shard.ChecksumsHash()), hash);
  return absl::StrFormat("%016x", hash);
}

PairLengths Corpus::Lengths(int direction, int64_t pair) const {
  const DirectionPlace& place = places_[direction];
  const ShardEntry entry = shards_[place.shard].entry(pair);
  const auto first = static_cast<int32_t>(entry.num_first);
  const auto second = static_cast<int32_t>(entry.num_second);
  return place.swapped ? PairLengths{second, first} : PairLengths{first, second};
}

PairTokens Corpus::Tokens(int direction, int64_t pair) const {
  const DirectionPlace& place = places_[direction];
  const Shard& shard = shards_[place.shard];
  if (place.swapped) return {shard.Second(pair), shard.First(pair)};
  return {shard.First(pair), shard.Second(pair)};
}

LengthMoments Corpus::Moments(int direction, int32_t max_tokens) const {
  const DirectionPlace& place = places_[direction];
  const std::span<const LengthRow> rows = shards_[place.shard].lengths();
  const auto sum = [&](uint64_t LengthRow::*field) {
    uint64_t total = 0;
    for (size_t i = 0; i < std::min<size_t>(rows.size(), max_tokens + 1); ++i) {
      total += rows[i].*field;
    }
    return total;
  };
  LengthMoments moments;
  moments.num_pairs = static_cast<int64_t>(sum(&LengthRow::num_pairs));
  if (moments.num_pairs == 0) return moments;
  const auto count = static_cast<double>(moments.num_pairs);
  moments.source = MomentsOf(sum(&LengthRow::first_tokens), sum(&LengthRow::first_squares), count);
  moments.target =
      MomentsOf(sum(&LengthRow::second_tokens), sum(&LengthRow::second_squares), count);
  if (place.swapped) std::swap(moments.source, moments.target);
  return moments;
}

std::vector<Direction> Corpus::TextDirections(std::string_view split) const {
  std::vector<Direction> directions;
  for (const LanguagePairReport& pair : manifest_.report().pairs()) {
    if (pair.split() != split || pair.kept() == 0) continue;
    for (const Direction& direction : DirectionsOf(pair)) directions.push_back(direction);
  }
  std::ranges::sort(directions, {}, &Direction::Name);
  return directions;
}

bool Corpus::HasText(std::string_view split, std::string_view a, std::string_view b) const {
  return std::ranges::any_of(manifest_.report().pairs(), [&](const LanguagePairReport& pair) {
    return pair.split() == split && pair.kept() > 0 && pair.first_language() == std::min(a, b) &&
           pair.second_language() == std::max(a, b);
  });
}

absl::StatusOr<std::vector<std::string>> Corpus::ReadLines(const std::string& name) const {
  const std::string path = absl::StrCat(folder_, "/", name);
  const auto file = std::ranges::find(manifest_.files(), name, &CorpusFile::name);
  if (file == manifest_.files().end()) {
    return DataLoss(path, ": the manifest does not list it");
  }
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(path));
  std::vector<std::string> lines;
  RETURN_IF_ERROR(reader->ForEach([&](std::string_view line) { lines.emplace_back(line); }));
  RETURN_IF_ERROR(CheckHash(path, reader->file_hash(), *file));
  return lines;
}

absl::StatusOr<ParallelSentences> Corpus::ReadSentences(std::string_view split,
                                                        std::string_view source,
                                                        std::string_view target) const {
  const std::string_view first = std::min(source, target);
  const std::string_view second = std::max(source, target);
  const auto name = [&](std::string_view language) {
    return TextFileName(split, first, second, language);
  };
  ParallelSentences sentences;
  ASSIGN_OR_RETURN(sentences.source, ReadLines(name(source)));
  ASSIGN_OR_RETURN(sentences.target, ReadLines(name(target)));
  if (sentences.source.size() == sentences.target.size()) return sentences;
  return DataLoss(folder_, ": ", name(source), " has ", sentences.source.size(), " lines, ",
                  name(target), " ", sentences.target.size());
}

absl::StatusOr<ParallelSentences> Corpus::Sentences(std::string_view split, std::string_view source,
                                                    std::string_view target) const {
  if (HasText(split, source, target)) return ReadSentences(split, source, target);
  std::vector<std::string> pivots(manifest_.languages().begin(), manifest_.languages().end());
  std::stable_partition(pivots.begin(), pivots.end(),
                        [](const std::string& language) { return language == "en"; });
  for (const std::string& pivot : pivots) {
    if (!HasText(split, source, pivot) || !HasText(split, target, pivot)) continue;
    ASSIGN_OR_RETURN(ParallelSentences from, ReadSentences(split, pivot, source));
    ASSIGN_OR_RETURN(ParallelSentences to, ReadSentences(split, pivot, target));
    std::unordered_map<std::string_view, size_t> places;
    for (size_t i = 0; i < to.source.size(); ++i) places.emplace(to.source[i], i);
    ParallelSentences joined;
    for (size_t i = 0; i < from.source.size(); ++i) {
      const auto place = places.find(from.source[i]);
      if (place == places.end()) continue;
      joined.source.push_back(std::move(from.target[i]));
      joined.target.push_back(std::move(to.target[place->second]));
      places.erase(place);
    }
    if (!joined.source.empty()) return joined;
  }
  return NotFound("no ", std::string(split), " sentences of ", std::string(source), "-",
                  std::string(target));
}

}  // namespace deepnet
