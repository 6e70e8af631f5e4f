// One parallel text as a stream of pairs, whatever its form: two Moses files or one TSV file, with
// or without scores.
//
// The two languages of a pair are kept in alphabetical order ("de" before "en"): first and second.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "trainer/data/line_reader.h"

namespace deepnet {

// Where a parallel text is. Either both Moses files or a TSV.
struct ParallelFiles {
  std::string first_file;                 // a sentence a line
  std::string second_file;                // line n translates line n of first_file
  std::string tsv_file;                   // column <TAB> column [<TAB> score]
  bool tsv_swapped = false;               // the second language stands in the first column
  std::string score_file;                 // a number a line; empty: none
  std::optional<double> score_threshold;  // pairs below are dropped
  std::string origin;  // tsv_file is a copy whose third column is the line number in this file
};

// A line of the text. Views are valid until the next pair is read.
struct RawPair {
  std::string_view first;
  std::string_view second;
  std::optional<double> score;
  int64_t line = 0;        // in the file(s), from 1
  bool malformed = false;  // columns missing, or a score that is no number
  bool cut = false;        // a side was longer than LineReader::kMaxLineBytes
};

class PairReader {
 public:
  static absl::StatusOr<std::unique_ptr<PairReader>> Open(const ParallelFiles& files);

  // The next pair; false at the end. Fails naming both files and the line if one file ends before
  // the other.
  absl::StatusOr<bool> Next(RawPair* pair);

  // What a person should look at for `line`: "train.de:12".
  std::string Location(int64_t line) const;

  // The files behind this text, for their sizes and hashes once Next() returned false.
  void ForEachFile(const std::function<void(const LineReader&)>& visit) const;

 private:
  explicit PairReader(const ParallelFiles& files) : files_(files) {}
  absl::StatusOr<bool> NextTsv(RawPair* pair);
  absl::StatusOr<bool> NextMoses(RawPair* pair);
  absl::Status NextScore(RawPair* pair, bool expect_line);
  absl::Status Uneven(const LineReader& shorter, LineReader* longer) const;

  const ParallelFiles files_;
  std::unique_ptr<LineReader> first_;  // or the TSV
  std::unique_ptr<LineReader> second_;
  std::unique_ptr<LineReader> scores_;
};

}  // namespace deepnet
