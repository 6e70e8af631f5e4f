// The parallel texts that a PrepareSpec names, by language pair and split, each a stream of pairs.
//
// The two languages of a pair are in alphabetical order ("de" before "en"): first and second. Of
// synthetic text, which serves one direction, first is the source.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/line_reader.h"
#include "trainer/data/pair_index.h"

namespace deepnet {

// The files of one parallel text: either both Moses files or a TSV.
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

  // Reads the next pair; false at the end. Fails naming both files and the line if one file ends
  // before the other.
  absl::StatusOr<bool> Next(RawPair* pair);

  // Goes on reading behind line `line`, where `offsets` are what offsets() was.
  absl::Status SkipTo(int64_t line, std::span<const int64_t> offsets);

  // Returns the bytes of the text's files, decompressed, at which the next line begins.
  std::vector<int64_t> offsets() const;

  bool compressed() const { return readers_[0]->compressed(); }

  // Returns the place of `line` for a person: "train.de:12".
  std::string Location(int64_t line) const;

  // The TSV or both Moses files, then the scores if there is a file of them.
  std::span<const std::unique_ptr<LineReader>> files() const { return readers_; }

 private:
  explicit PairReader(const ParallelFiles& files) : files_(files) {}
  absl::StatusOr<bool> NextTsv(RawPair* pair);
  absl::StatusOr<bool> NextMoses(RawPair* pair);

  const ParallelFiles files_;
  std::vector<std::unique_ptr<LineReader>> readers_;
};

// Every text of one language pair; several of one split are read one after the other.
struct LanguagePairTexts {
  std::string first;  // tags, first < second but for synthetic text
  std::string second;
  std::string tag;  // of synthetic text, else empty
  std::vector<ParallelFiles> train;
  std::vector<ParallelFiles> dev;
  std::vector<ParallelFiles> test;

  const std::vector<ParallelFiles>& Of(std::string_view split) const {
    return split == "dev" ? dev : split == "test" ? test : train;
  }

  // Returns "de-en", of synthetic text "de-en.bt".
  std::string Name() const { return Direction{first, second, 0, tag}.Name(); }
};

// Finds the files of opus100_folder and of text, pairs in order of name. Fails naming what is
// missing. Tables are not read.
absl::StatusOr<std::vector<LanguagePairTexts>> FindTexts(const PrepareSpec& spec,
                                                         const std::string& root);

// Reads table number `index` of `spec` once and writes its rows to TSV files under `folder`, one
// for each language and split; calls `seen` with it at its end. Fails naming file and line of a row
// that has not three columns or no language tag in the first.
absl::Status SplitTable(const PrepareSpec& spec, int index, const std::string& root,
                        const std::string& folder, absl::FunctionRef<void(const LineReader&)> seen);

// Adds to `texts` the files that SplitTable made of every table of `spec`. Fails if the tag of a
// synthetic text is a language.
absl::Status AddTables(const PrepareSpec& spec, const std::string& root, const std::string& folder,
                       std::vector<LanguagePairTexts>* texts);

// Returns all tags of `texts`, of languages and of synthetic texts, sorted.
std::vector<std::string> LanguagesOf(const std::vector<LanguagePairTexts>& texts);

// Returns `path` itself if absolute, else under `root`.
std::string Rooted(const std::string& root, const std::string& path);

// Returns size and time of the file at `path`, named `name`; its hash stays 0. Fails naming the
// path if nothing or a folder is there, with ExitCode::kBadConfig for a pipe or a device.
absl::StatusOr<InputFile> StatInput(const std::string& name, const std::string& path);

}  // namespace deepnet
