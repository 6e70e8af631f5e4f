#include "trainer/data/parallel_text.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/data/utf8.h"

namespace deepnet {
namespace {

std::optional<double> ParseNumber(std::string_view text) {
  text = Trim(text);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The text up to the next tab, which is removed with it from *rest. False: *rest was used up.
bool NextColumn(std::string_view* rest, std::string_view* column) {
  if (rest->data() == nullptr) return false;
  const size_t tab = rest->find('\t');
  *column = rest->substr(0, tab);
  *rest = tab == std::string_view::npos ? std::string_view() : rest->substr(tab + 1);
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PairReader>> PairReader::Open(const ParallelFiles& files) {
  auto reader = std::unique_ptr<PairReader>(new PairReader(files));
  if (!files.tsv_file.empty()) {
    ASSIGN_OR_RETURN(reader->first_, LineReader::Open(files.tsv_file));
  } else {
    ASSIGN_OR_RETURN(reader->first_, LineReader::Open(files.first_file));
    ASSIGN_OR_RETURN(reader->second_, LineReader::Open(files.second_file));
  }
  if (!files.score_file.empty()) {
    ASSIGN_OR_RETURN(reader->scores_, LineReader::Open(files.score_file));
  }
  return reader;
}

absl::StatusOr<bool> PairReader::Next(RawPair* pair) {
  *pair = RawPair();
  ASSIGN_OR_RETURN(const bool more, files_.tsv_file.empty() ? NextMoses(pair) : NextTsv(pair));
  RETURN_IF_ERROR(NextScore(pair, more));
  return more;
}

absl::StatusOr<bool> PairReader::NextTsv(RawPair* pair) {
  std::string_view line;
  ASSIGN_OR_RETURN(const bool more, first_->Next(&line));
  if (!more) return false;
  pair->line = first_->line_number();
  pair->cut = first_->line_was_cut();
  std::string_view columns[2], third;
  const bool has_two = NextColumn(&line, &columns[0]) && NextColumn(&line, &columns[1]);
  pair->malformed = !has_two && !pair->cut;
  pair->first = columns[files_.tsv_swapped ? 1 : 0];
  pair->second = columns[files_.tsv_swapped ? 0 : 1];
  if (has_two && NextColumn(&line, &third)) {
    const std::optional<double> number = ParseNumber(third);
    if (!files_.origin.empty()) {
      pair->line = static_cast<int64_t>(number.value_or(0));
    } else if (files_.score_threshold.has_value()) {
      pair->score = number;
      pair->malformed = !number.has_value() && !pair->cut;
    }
  }
  return true;
}

absl::StatusOr<bool> PairReader::NextMoses(RawPair* pair) {
  ASSIGN_OR_RETURN(const bool more_first, first_->Next(&pair->first));
  ASSIGN_OR_RETURN(const bool more_second, second_->Next(&pair->second));
  if (more_first && !more_second) return Uneven(*second_, first_.get());
  if (more_second && !more_first) return Uneven(*first_, second_.get());
  pair->line = first_->line_number();
  pair->cut = first_->line_was_cut() || second_->line_was_cut();
  return more_first;
}

absl::Status PairReader::NextScore(RawPair* pair, bool expect_line) {
  if (scores_ == nullptr) return absl::OkStatus();
  std::string_view line;
  ASSIGN_OR_RETURN(const bool more, scores_->Next(&line));
  if (expect_line && !more) return Uneven(*scores_, first_.get());
  if (more && !expect_line) return Uneven(*first_, scores_.get());
  if (!more) return absl::OkStatus();
  pair->score = ParseNumber(line);
  if (!pair->score.has_value()) pair->malformed = true;
  return absl::OkStatus();
}

absl::Status PairReader::Uneven(const LineReader& shorter, LineReader* longer) const {
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, longer->Next(&line));
    if (!more) break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "uneven line counts: ", shorter.path(), " ends after line ", shorter.line_number(), ", ",
      longer->path(), " after line ", longer->line_number()));
}

std::string PairReader::Location(int64_t line) const {
  return absl::StrCat(files_.origin.empty() ? first_->path() : files_.origin, ":", line);
}

void PairReader::ForEachFile(const std::function<void(const LineReader&)>& visit) const {
  for (const LineReader* reader : {first_.get(), second_.get(), scores_.get()}) {
    if (reader != nullptr) visit(*reader);
  }
}

}  // namespace deepnet
