#include "trainer/data/prepare/parallel_text.h"

#include <errno.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <sys/stat.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

std::optional<double> ParseNumber(std::string_view text) {
  text = Trim(text);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Moves the text up to the next tab from *rest to *column. Returns false if *rest was used up.
bool NextColumn(std::string_view* rest, std::string_view* column) {
  if (rest->data() == nullptr) return false;
  const size_t tab = rest->find('\t');
  *column = rest->substr(0, tab);
  *rest = tab == std::string_view::npos ? std::string_view() : rest->substr(tab + 1);
  return true;
}

namespace fs = std::filesystem;

// Texts by first language, second language and tag.
using TextMap = std::map<std::tuple<std::string, std::string, std::string>, LanguagePairTexts>;

constexpr const char* kSplits[] = {"train", "dev", "test"};

std::vector<ParallelFiles>& SplitOf(std::string_view split, LanguagePairTexts* texts) {
  return split == "dev" ? texts->dev : split == "test" ? texts->test : texts->train;
}

// Returns the texts of two languages in any order; of synthetic text `first` is the source.
LanguagePairTexts& PairOf(std::string first, std::string second, const std::string& tag,
                          TextMap* map) {
  if (tag.empty() && second < first) std::swap(first, second);
  LanguagePairTexts& texts = (*map)[{first, second, tag}];
  texts.first = std::move(first);
  texts.second = std::move(second);
  texts.tag = tag;
  return texts;
}

// Returns true for a tag that nobody has given as one, but stands where one should: a letter first,
// single underscores.
bool LooksLikeLanguage(std::string_view tag) {
  return IsLanguageTag(tag) && absl::ascii_isalpha(tag.front()) && tag.back() != '_' &&
         tag.find("__") == std::string_view::npos;
}

// Returns `path` or its compressed form; empty if there is neither. What is no file is returned
// too: StatInput refuses it by name.
std::string FindCompressed(const std::string& path) {
  for (const char* ending : {"", ".gz", ".zst"}) {
    std::error_code error;
    if (fs::exists(path + ending, error)) return path + ending;
  }
  return "";
}

// Adds the texts of <folder>/<a>-<b>, if that is what `folder` is.
absl::Status AddOpusPair(const fs::path& folder, const std::set<std::string>& wanted,
                         TextMap* map) {
  const std::string name = folder.filename().string();
  const size_t dash = name.find('-');
  if (dash == std::string::npos) return absl::OkStatus();
  const std::string a = name.substr(0, dash);
  const std::string b = name.substr(dash + 1);
  if (!LooksLikeLanguage(a) || !LooksLikeLanguage(b) || a == b) return absl::OkStatus();
  if (!wanted.empty() && (wanted.count(a) == 0 || wanted.count(b) == 0)) return absl::OkStatus();
  for (const char* split : kSplits) {
    const std::string stem = absl::StrCat(folder.string(), "/opus.", name, "-", split, ".");
    const ParallelFiles files = {.first_file = FindCompressed(stem + std::min(a, b)),
                                 .second_file = FindCompressed(stem + std::max(a, b))};
    const bool has_first = !files.first_file.empty(), has_second = !files.second_file.empty();
    if (!has_first && !has_second) continue;
    if (!has_first || !has_second) {
      return NotFound(stem, has_first ? std::max(a, b) : std::min(a, b), " is missing beside ",
                      has_first ? files.first_file : files.second_file);
    }
    SplitOf(split, &PairOf(a, b, "", map)).push_back(files);
  }
  return absl::OkStatus();
}

absl::Status AddOpusFolder(const PrepareSpec& spec, const std::string& root, TextMap* map) {
  const std::string top = Rooted(root, spec.opus100_folder());
  const std::set<std::string> wanted(spec.languages().begin(), spec.languages().end());
  std::vector<fs::path> folders;
  // The corpus as published has its pairs one level further down.
  for (const std::string& folder : {top, top + "/supervised", top + "/zero-shot"}) {
    const absl::StatusOr<std::vector<std::string>> names = MakePosixFileSystem()->List(folder);
    if (!names.ok() && folder == top) {
      std::error_code ignored;
      return NotFound("prepare.opus100_folder: ",
                      fs::is_regular_file(top, ignored)
                          ? absl::StrCat(top, " is a file, not a folder")
                          : std::string(names.status().message()));
    }
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      folders.push_back(fs::path(folder) / name);
    }
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) RETURN_IF_ERROR(AddOpusPair(folder, wanted, map));
  if (map->empty()) {
    return NotFound("prepare.opus100_folder: ", top,
                    " has no <xx-yy>/opus.<xx-yy>-train.<xx> of the languages asked for");
  }
  for (const std::string& language : wanted) {
    const bool found = std::any_of(map->begin(), map->end(), [&](const auto& entry) {
      return entry.second.first == language || entry.second.second == language;
    });
    if (!found) {
      return NotFound("prepare.languages: ", top, " has no pair of \"", language,
                      "\" and another of the languages");
    }
  }
  return absl::OkStatus();
}

void AddText(const TextFiles& text, const std::string& root, TextMap* map) {
  LanguagePairTexts& pair = PairOf(text.source_language(), text.target_language(), text.tag(), map);
  const bool swapped = pair.first != text.source_language();
  ParallelFiles files;
  if (text.tsv_file().empty()) {
    files.first_file = Rooted(root, swapped ? text.target_file() : text.source_file());
    files.second_file = Rooted(root, swapped ? text.source_file() : text.target_file());
  } else {
    files.tsv_file = Rooted(root, text.tsv_file());
    files.tsv_swapped = swapped;
  }
  if (!text.score_file().empty()) files.score_file = Rooted(root, text.score_file());
  if (text.has_score_threshold()) files.score_threshold = text.score_threshold();
  SplitOf(text.split(), &pair).push_back(files);
}

// Rows of a table on their way to a file; written by the 64 kB so that many can be open at once.
class RowFile {
 public:
  explicit RowFile(std::string path) : path_(std::move(path)) {}

  absl::Status Add(std::string_view first, std::string_view second, int64_t line) {
    pending_.append(first).append(1, '\t').append(second);
    absl::StrAppend(&pending_, "\t", line, "\n");
    return pending_.size() < (1 << 16) ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() {
    ASSIGN_OR_RETURN(const auto file, MakePosixFileSystem()->OpenForAppend(path_));
    RETURN_IF_ERROR(file->Append(pending_));
    pending_.clear();
    return file->Close();
  }

 private:
  const std::string path_;
  std::string pending_;
};

// The split of a pivot sentence: a function of the sentence alone.
std::string SplitOfPivot(const LanguageTable& table, std::string_view pivot) {
  const auto percent = [](int32_t value) { return value == 0 ? 5 : std::max(value, 0); };
  const auto place = static_cast<int32_t>(HashBytes(Trim(pivot)) % 100);
  if (place < percent(table.test_percent())) return "test";
  if (place < percent(table.test_percent()) + percent(table.dev_percent())) return "dev";
  return "train";
}

std::string PivotOf(const LanguageTable& table) {
  return table.pivot_language().empty() ? "en" : table.pivot_language();
}

// Returns what the names of the files of a table begin with; split, language and ".tsv" follow.
std::string TableStem(int index) { return absl::StrCat("table", index, "."); }

absl::Status CheckTags(const std::vector<LanguagePairTexts>& texts) {
  for (const LanguagePairTexts& synthetic : texts) {
    if (synthetic.tag.empty()) continue;
    for (const LanguagePairTexts& pair : texts) {
      if (synthetic.tag != pair.first && synthetic.tag != pair.second) continue;
      return InvalidArgument("prepare.text: the tag \"", synthetic.tag, "\" of ", synthetic.Name(),
                             " is a language of ", pair.Name());
    }
  }
  return absl::OkStatus();
}

absl::Status Uneven(const LineReader& shorter, LineReader& longer) {
  RETURN_IF_ERROR(longer.ForEach([](std::string_view) {}));
  return InvalidArgument("uneven line counts: ", shorter.path(), " ends after line ",
                         shorter.line_number(), ", ", longer.path(), " after line ",
                         longer.line_number());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PairReader>> PairReader::Open(const ParallelFiles& files) {
  auto reader = std::unique_ptr<PairReader>(new PairReader(files));
  for (const std::string& path :
       {files.tsv_file, files.first_file, files.second_file, files.score_file}) {
    if (path.empty()) continue;
    ASSIGN_OR_RETURN(reader->readers_.emplace_back(), LineReader::Open(path));
  }
  return reader;
}

absl::StatusOr<bool> PairReader::Next(RawPair* pair) {
  *pair = RawPair();
  ASSIGN_OR_RETURN(const bool more, files_.tsv_file.empty() ? NextMoses(pair) : NextTsv(pair));
  if (files_.score_file.empty()) return more;
  LineReader &first = *readers_[0], &scores = *readers_.back();
  std::string_view line;
  ASSIGN_OR_RETURN(const bool more_scores, scores.Next(&line));
  if (more && !more_scores) return Uneven(scores, first);
  if (more_scores && !more) return Uneven(first, scores);
  if (!more) return false;
  pair->score = ParseNumber(line);
  if (!pair->score.has_value()) pair->malformed = true;
  return true;
}

absl::StatusOr<bool> PairReader::NextTsv(RawPair* pair) {
  LineReader& tsv = *readers_[0];
  std::string_view line;
  ASSIGN_OR_RETURN(const bool more, tsv.Next(&line));
  if (!more) return false;
  pair->line = tsv.line_number();
  pair->cut = tsv.line_was_cut();
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
  LineReader &first = *readers_[0], &second = *readers_[1];
  ASSIGN_OR_RETURN(const bool more_first, first.Next(&pair->first));
  ASSIGN_OR_RETURN(const bool more_second, second.Next(&pair->second));
  if (more_first && !more_second) return Uneven(second, first);
  if (more_second && !more_first) return Uneven(first, second);
  pair->line = first.line_number();
  pair->cut = first.line_was_cut() || second.line_was_cut();
  return more_first;
}

std::string PairReader::Location(int64_t line) const {
  return absl::StrCat(files_.origin.empty() ? readers_[0]->path() : files_.origin, ":", line);
}

std::vector<int64_t> PairReader::offsets() const {
  std::vector<int64_t> offsets;
  for (const auto& reader : readers_) offsets.push_back(reader->text_offset());
  return offsets;
}

absl::Status PairReader::SkipTo(int64_t line, std::span<const int64_t> offsets) {
  DEEPNET_CHECK_EQ(readers_.size(), offsets.size());
  for (size_t i = 0; i < readers_.size(); ++i) {
    RETURN_IF_ERROR(readers_[i]->SkipTo(line, offsets[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LanguagePairTexts>> FindTexts(const PrepareSpec& spec,
                                                         const std::string& root) {
  TextMap map;
  if (!spec.opus100_folder().empty()) RETURN_IF_ERROR(AddOpusFolder(spec, root, &map));
  for (const TextFiles& text : spec.text()) AddText(text, root, &map);
  std::vector<LanguagePairTexts> texts;
  for (auto& [tags, pair] : map) texts.push_back(std::move(pair));
  return texts;
}

absl::Status SplitTable(const PrepareSpec& spec, int index, const std::string& root,
                        const std::string& folder,
                        absl::FunctionRef<void(const LineReader&)> seen) {
  const LanguageTable& table = spec.table(index);
  const std::string pivot = PivotOf(table);
  const std::set<std::string> wanted(table.languages().begin(), table.languages().end());
  std::map<std::string, std::map<std::string, RowFile>> files;  // by language and split
  ASSIGN_OR_RETURN(auto reader, LineReader::Open(Rooted(root, table.file())));
  const auto refuse = [&](const std::string& what) {
    return InvalidArgument(reader->path(), ":", reader->line_number(), ": ", what);
  };
  std::string_view line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
    if (!more) break;
    std::string_view tag, pivot_text, text, fourth;
    const bool three = NextColumn(&line, &tag) && NextColumn(&line, &pivot_text) &&
                       NextColumn(&line, &text) && !NextColumn(&line, &fourth);
    if (!three || reader->line_was_cut() || !LooksLikeLanguage(tag)) {
      return refuse("not language <TAB> text <TAB> text");
    }
    const std::string language(tag);
    if (!wanted.empty() && !wanted.contains(language)) continue;
    if (language == pivot) return refuse("a row of the pivot language " + pivot);
    const std::string split = SplitOfPivot(table, pivot_text);
    std::map<std::string, RowFile>& of_language = files[language];
    if (files.size() > kMaxLanguages) {
      return refuse(absl::StrCat("more than ", kMaxLanguages, " languages"));
    }
    RowFile& file = of_language
                        .try_emplace(split, absl::StrCat(folder, "/", TableStem(index), split, ".",
                                                         language, ".tsv"))
                        .first->second;
    const bool pivot_first = pivot < language;
    RETURN_IF_ERROR(file.Add(pivot_first ? pivot_text : text, pivot_first ? text : pivot_text,
                             reader->line_number()));
  }
  for (auto& [language, of_language] : files) {
    for (auto& [split, file] : of_language) RETURN_IF_ERROR(file.Flush());
  }
  for (const std::string& language : wanted) {
    if (files.contains(language)) continue;
    return NotFound(reader->path(), ": no row of language \"", language, "\"");
  }
  seen(*reader);
  return absl::OkStatus();
}

absl::Status AddTables(const PrepareSpec& spec, const std::string& root, const std::string& folder,
                       std::vector<LanguagePairTexts>* texts) {
  TextMap map;
  for (LanguagePairTexts& pair : *texts) {
    map[{pair.first, pair.second, pair.tag}] = std::move(pair);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, MakePosixFileSystem()->List(folder));
  for (int i = 0; i < spec.table_size(); ++i) {
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, TableStem(i))) continue;
      const std::vector<std::string> parts = absl::StrSplit(name, '.');  // table0 train de tsv
      ParallelFiles files;
      files.tsv_file = absl::StrCat(folder, "/", name);
      files.origin = Rooted(root, spec.table(i).file());
      SplitOf(parts[1], &PairOf(parts[2], PivotOf(spec.table(i)), "", &map)).push_back(files);
    }
  }
  texts->clear();
  for (auto& [tags, pair] : map) texts->push_back(std::move(pair));
  return CheckTags(*texts);
}

std::vector<std::string> LanguagesOf(const std::vector<LanguagePairTexts>& texts) {
  std::set<std::string> languages;
  for (const LanguagePairTexts& pair : texts) {
    languages.insert({pair.first, pair.second});
    if (!pair.tag.empty()) languages.insert(pair.tag);
  }
  return {languages.begin(), languages.end()};
}

std::string Rooted(const std::string& root, const std::string& path) {
  return (fs::path(root) / path).string();
}

absl::StatusOr<InputFile> StatInput(const std::string& name, const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    return NotFound(path, ": ", strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    return InvalidArgument(path, " is a folder, not a file");
  }
  if (!S_ISREG(status.st_mode)) {
    return ConfigError(
        path,
        " is a pipe or a device: what is prepared is read twice and known again by size and time, "
        "so it must be a file; one pipe of pairs may be given by --tsv");
  }
  InputFile input;
  input.set_name(name);
  input.set_bytes(status.st_size);
  input.set_modified_ns(status.st_mtim.tv_sec * int64_t{1000000000} + status.st_mtim.tv_nsec);
  return input;
}

}  // namespace deepnet
