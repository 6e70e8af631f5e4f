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
      return absl::NotFoundError(absl::StrCat(stem, has_first ? std::max(a, b) : std::min(a, b),
                                              " is missing beside ",
                                              has_first ? files.first_file : files.second_file));
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
      return absl::NotFoundError(absl::StrCat("prepare.opus100_folder: ",
                                              fs::is_regular_file(top, ignored)
                                                  ? absl::StrCat(top, " is a file, not a folder")
                                                  : std::string(names.status().message())));
    }
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      std::error_code ignored;
      const fs::path path = fs::path(folder) / name;
      if (fs::is_directory(path, ignored)) folders.push_back(path);
    }
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) RETURN_IF_ERROR(AddOpusPair(folder, wanted, map));
  if (map->empty()) {
    return absl::NotFoundError(
        absl::StrCat("prepare.opus100_folder: ", top,
                     " has no <xx-yy>/opus.<xx-yy>-train.<xx> of the languages "
                     "asked for"));
  }
  for (const std::string& language : wanted) {
    const bool found = std::any_of(map->begin(), map->end(), [&](const auto& entry) {
      return entry.second.first == language || entry.second.second == language;
    });
    if (!found) {
      return absl::NotFoundError(absl::StrCat("prepare.languages: ", top, " has no pair of \"",
                                              language, "\" and another of the languages"));
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

// A row of a table.
struct TableRow {
  std::string_view language;
  std::string_view pivot;
  std::string_view text;
};

absl::StatusOr<TableRow> ParseRow(std::string_view line, const LineReader& reader) {
  TableRow row;
  std::string_view fourth;
  const bool three = NextColumn(&line, &row.language) && NextColumn(&line, &row.pivot) &&
                     NextColumn(&line, &row.text) && !NextColumn(&line, &fourth);
  if (three && !reader.line_was_cut() && LooksLikeLanguage(row.language)) return row;
  return absl::InvalidArgumentError(absl::StrCat(reader.path(), ":", reader.line_number(),
                                                 ": not language <TAB> text <TAB> text"));
}

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

// Rows of one table, by (language, split).
class TableSplitter {
 public:
  TableSplitter(const LanguageTable& table, std::string path, std::string stem)
      : table_(table),
        path_(std::move(path)),
        stem_(std::move(stem)),
        pivot_(PivotOf(table)),
        wanted_(table.languages().begin(), table.languages().end()) {}

  absl::Status Run(const FileSeenFn& seen) {
    ASSIGN_OR_RETURN(auto reader, LineReader::Open(path_));
    std::string_view line;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
      if (!more) break;
      ASSIGN_OR_RETURN(const TableRow row, ParseRow(line, *reader));
      if (wanted_.empty() || wanted_.count(std::string(row.language)) > 0) {
        RETURN_IF_ERROR(AddRow(row, reader->line_number()));
      }
    }
    for (auto& [key, file] : files_) RETURN_IF_ERROR(file.Flush());
    for (const std::string& language : wanted_) {
      const bool found = std::any_of(files_.begin(), files_.end(), [&](const auto& entry) {
        return entry.first.first == language;
      });
      if (found) continue;
      return absl::NotFoundError(absl::StrCat(path_, ": no row of language \"", language, "\""));
    }
    seen(*reader);
    return absl::OkStatus();
  }

 private:
  absl::Status AddRow(const TableRow& row, int64_t line) {
    const std::string language(row.language);
    if (language == pivot_) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ":", line, ": a row of the pivot language ", pivot_));
    }
    const std::string split = SplitOfPivot(table_, row.pivot);
    auto found = files_.find({language, split});
    if (found == files_.end()) {
      const auto next = files_.lower_bound({language, ""});
      const bool is_known = next != files_.end() && next->first.first == language;
      if (!is_known && ++num_languages_ > kMaxLanguages) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ":", line, ": more than ", kMaxLanguages, " languages"));
      }
      const std::string path = absl::StrCat(stem_, split, ".", language, ".tsv");
      found = files_.emplace(std::pair(language, split), RowFile(path)).first;
    }
    const bool pivot_first = pivot_ < language;
    return found->second.Add(pivot_first ? row.pivot : row.text, pivot_first ? row.text : row.pivot,
                             line);
  }

  const LanguageTable& table_;
  const std::string path_;
  const std::string stem_;
  const std::string pivot_;
  const std::set<std::string> wanted_;
  std::map<std::pair<std::string, std::string>, RowFile> files_;
  int num_languages_ = 0;  // that have files
};

absl::Status CheckTags(const std::vector<LanguagePairTexts>& texts) {
  for (const LanguagePairTexts& synthetic : texts) {
    if (synthetic.tag.empty()) continue;
    for (const LanguagePairTexts& pair : texts) {
      if (synthetic.tag != pair.first && synthetic.tag != pair.second) continue;
      return absl::InvalidArgumentError(absl::StrCat("prepare.text: the tag \"", synthetic.tag,
                                                     "\" of ", synthetic.Name(),
                                                     " is a language of ", pair.Name()));
    }
  }
  return absl::OkStatus();
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
  for (bool more = true; more;) {
    ASSIGN_OR_RETURN(more, longer->Next(&line));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "uneven line counts: ", shorter.path(), " ends after line ", shorter.line_number(), ", ",
      longer->path(), " after line ", longer->line_number()));
}

std::string PairReader::Location(int64_t line) const {
  return absl::StrCat(files_.origin.empty() ? first_->path() : files_.origin, ":", line);
}

std::vector<LineReader*> PairReader::Readers() const {
  std::vector<LineReader*> readers = {first_.get(), second_.get(), scores_.get()};
  std::erase(readers, nullptr);
  return readers;
}

void PairReader::ForEachFile(const FileSeenFn& visit) const {
  for (const LineReader* reader : Readers()) visit(*reader);
}

std::vector<int64_t> PairReader::offsets() const {
  std::vector<int64_t> offsets;
  for (const LineReader* reader : Readers()) offsets.push_back(reader->text_offset());
  return offsets;
}

absl::Status PairReader::SkipTo(int64_t line, std::span<const int64_t> offsets) {
  const std::vector<LineReader*> readers = Readers();
  DEEPNET_CHECK_EQ(readers.size(), offsets.size());
  for (size_t i = 0; i < readers.size(); ++i) {
    RETURN_IF_ERROR(readers[i]->SkipTo(line, offsets[i]));
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
                        const std::string& folder, const FileSeenFn& seen) {
  const LanguageTable& table = spec.table(index);
  return TableSplitter(table, Rooted(root, table.file()),
                       absl::StrCat(folder, "/", TableStem(index)))
      .Run(seen);
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
    return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, not a file"));
  }
  if (!S_ISREG(status.st_mode)) {
    return ConfigError(absl::StrCat(
        path,
        " is a pipe or a device: what is prepared is read twice and known again by size "
        "and time, so it must be a file; one pipe of pairs may be given by --tsv"));
  }
  InputFile input;
  input.set_name(name);
  input.set_bytes(status.st_size);
  input.set_modified_ns(status.st_mtim.tv_sec * int64_t{1000000000} + status.st_mtim.tv_nsec);
  return input;
}

}  // namespace deepnet
