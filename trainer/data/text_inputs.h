// From a PrepareSpec to the parallel texts it names, by language pair and split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/parallel_text.h"

namespace deepnet {

// Every text of one language pair; several of one split are read one after the other.
struct LanguagePairTexts {
  std::string first;  // tags, first < second
  std::string second;
  std::vector<ParallelFiles> train;
  std::vector<ParallelFiles> dev;
  std::vector<ParallelFiles> test;

  std::string Name() const { return first + "-" + second; }
};

// A language tag: letters, digits and single underscores, a letter first.
bool IsLanguageTag(std::string_view tag);

// Files of opus100_folder and of text, paths under `root` where relative, pairs in order of name.
// Fails naming what is missing. Tables are not looked at.
absl::StatusOr<std::vector<LanguagePairTexts>> FindTexts(const PrepareSpec& spec,
                                                         const std::string& root);

// Reads every table of `spec` once and writes its rows to TSV files under `folder`, one for each
// language pair and split, which are added to `texts`. Appends what was read to `inputs`. Fails
// naming file and line of a row that has not three columns or no language tag in the first.
absl::Status SplitTables(const PrepareSpec& spec, const std::string& root,
                         const std::string& folder, std::vector<LanguagePairTexts>* texts,
                         std::vector<InputFile>* inputs);

// All tags of `texts`, sorted.
std::vector<std::string> LanguagesOf(const std::vector<LanguagePairTexts>& texts);

// `path` itself if absolute, else under `root`.
std::string Rooted(const std::string& root, const std::string& path);

// Size and time of the file at `path`, named `name`; its hash is left 0. NotFound names the path.
absl::StatusOr<InputFile> DescribeInput(const std::string& name, const std::string& path);

}  // namespace deepnet
