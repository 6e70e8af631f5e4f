#include "trainer/data/corpus_manifest.h"

#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <google/protobuf/text_format.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/json.h"
#include "parallel/base/logging.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/content_hash.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;
constexpr char kDigest[] = "digest: ";

JsonObject PairJson(const LanguagePairReport& pair) {
  const auto drop_json = [](const DropCount& drop) {
    return JsonObject()
        .Add("reason", drop.reason())
        .Add("lines", drop.lines())
        .Add("example", drop.example());
  };
  std::vector<std::string> directions;
  for (const Direction& direction : DirectionsOf(pair)) directions.push_back(direction.Name());
  return JsonObject()
      .Add("split", pair.split())
      .Add("first_language", pair.first_language())
      .Add("second_language", pair.second_language())
      .Add("directions", directions)
      .Add("lines", pair.lines())
      .Add("kept", pair.kept())
      .Add("first_tokens", pair.first_tokens())
      .Add("second_tokens", pair.second_tokens())
      .AddJson("first_mean_length", absl::StrFormat("%.4f", pair.first_mean_length()))
      .AddJson("second_mean_length", absl::StrFormat("%.4f", pair.second_mean_length()))
      .Add("longest", pair.longest())
      .Add("dropped", JsonObjects(pair.dropped(), drop_json));
}

// Checks what becomes a part of paths.
absl::Status CheckNames(const CorpusManifest& manifest, const std::string& path) {
  const auto no_name = [&path](const char* what, const std::string& name, const char* needed) {
    return DataLoss(path, ": ", what, " ", JsonQuoted(name), ": ", needed);
  };
  const auto check = [&](const char* what, const std::string& tag) -> absl::Status {
    if (IsLanguageTag(tag)) return absl::OkStatus();
    return no_name(what, tag, "a tag has letters, digits and '_' only");
  };
  for (const std::string& tag : manifest.languages()) RETURN_IF_ERROR(check("language", tag));
  for (const LanguagePairReport& pair : manifest.report().pairs()) {
    RETURN_IF_ERROR(check("language", pair.first_language()));
    RETURN_IF_ERROR(check("language", pair.second_language()));
    RETURN_IF_ERROR(check("split", pair.split()));
    if (!pair.tag().empty()) RETURN_IF_ERROR(check("tag", pair.tag()));
  }
  for (const CorpusFile& file : manifest.files()) {
    if (!IsFileName(file.name())) {
      return no_name("file", file.name(), "no name of a file in this folder");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShardFileName(const std::string& pair) {
  return absl::StrCat("train.", pair, kShardEnd);
}

std::vector<Direction> DirectionsOf(const LanguagePairReport& pair) {
  const std::string& first = pair.first_language();
  const std::string& second = pair.second_language();
  std::vector<Direction> directions = {{first, second, pair.kept(), pair.tag()}};
  if (pair.tag().empty()) directions.push_back({second, first, pair.kept()});
  return directions;
}

std::string TextFileName(std::string_view split, std::string_view first, std::string_view second,
                         std::string_view language) {
  return absl::StrCat(std::string(split), ".", std::string(first), "-", std::string(second), ".",
                      std::string(language));
}

std::string ManifestText(CorpusManifest manifest) {
  manifest.clear_digest();
  std::string text;
  google::protobuf::TextFormat::PrintToString(manifest, &text);
  return absl::StrCat(text, kDigest, HashBytes(text), "\n");
}

absl::StatusOr<CorpusManifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kCorpusManifest);
  const auto fs = MakePosixFileSystem();
  if (const auto exists = Exists(*fs, path); exists.ok() && !*exists) {
    std::error_code ignored;
    return NotFound(folder, " is no prepared corpus: it ",
                    std::filesystem::is_regular_file(folder, ignored)
                        ? "is a file, not a folder"
                        : "has no manifest.textproto");
  }
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(*fs, path, kMaxManifestBytes));
  if (text.find("\n    sample_sentences: ") != std::string::npos) {
    return DataLoss(path, ": has names of before version 0.1.0: prepare the corpus again");
  }
  // Fields that this version does not know are of a newer version, which is refused below by its
  // number, or are gone and decide nothing any more.
  CorpusManifest manifest;
  if (!ParseTextProto(text, &manifest, {.skips_unknown_fields = true})) {
    return DataLoss(path, ": damaged");
  }
  if (manifest.format_version() != kCorpusFormatVersion) {
    return DataLoss(path, ": format version ", manifest.format_version(), ", this program reads ",
                    kCorpusFormatVersion, ": prepare the corpus again");
  }
  RETURN_IF_ERROR(CheckNames(manifest, path));
  const std::string_view digested = std::string_view(text).substr(0, text.rfind(kDigest));
  if (manifest.has_digest() && manifest.digest() != HashBytes(digested)) {
    return DataLoss(path, ": damaged: it does not match its digest");
  }
  return manifest;
}

std::string ContentHash(const CorpusManifest& manifest) {
  uint64_t hash = HashBytes(absl::StrCat("format ", manifest.format_version()));
  for (const std::string& language : manifest.languages()) hash = HashBytes(language, hash);
  for (const CorpusFile& file : manifest.files()) {
    hash = HashBytes(absl::StrCat(file.name(), " ", file.bytes(), " ", file.hash()), hash);
  }
  return absl::StrFormat("%016x", hash);
}

std::string ReportTable(const CorpusReport& report) {
  std::string table =
      absl::StrFormat("%-6s %-14s %14s %14s %7s %15s %15s %8s %6s\n", "split", "pair", "lines",
                      "kept", "%", "tokens", "tokens", "pieces", "pieces");
  std::map<std::string, DropCount> dropped;
  for (const LanguagePairReport& pair : report.pairs()) {
    absl::StrAppendFormat(&table, "%-6s %-14s %14s %14s %7.2f %15s %15s %8.1f %6.1f\n",
                          pair.split(), DirectionsOf(pair).front().Name(), WithCommas(pair.lines()),
                          WithCommas(pair.kept()),
                          pair.lines() == 0 ? 0.0 : 100.0 * pair.kept() / pair.lines(),
                          WithCommas(pair.first_tokens()), WithCommas(pair.second_tokens()),
                          pair.first_mean_length(), pair.second_mean_length());
    if (pair.split() != "train") continue;
    for (const DropCount& drop : pair.dropped()) {
      DropCount& sum = dropped[drop.reason()];
      sum.set_lines(sum.lines() + drop.lines());
      if (sum.example().empty()) sum.set_example(drop.example());
    }
  }
  absl::StrAppend(&table, "train: ", WithCommas(report.lines()), " lines, ",
                  WithCommas(report.kept()), " pairs kept (each serves both directions)\n");
  for (const auto& [reason, sum] : dropped) {
    absl::StrAppendFormat(&table, "  dropped: %-15s %14s   first: %s\n", reason,
                          WithCommas(sum.lines()), sum.example());
  }
  absl::StrAppendFormat(&table,
                        "vocabulary %d (tokenizer %s), corpus %s\n%s in %.1f s, tokenizer %.1f s "
                        "of them, peak memory %.0f MiB\n",
                        report.vocabulary_size(), report.tokenizer_hash(), report.content_hash(),
                        report.folder(), report.seconds(), report.tokenizer_seconds(),
                        static_cast<double>(report.peak_resident_bytes()) / (1 << 20));
  return table;
}

std::string ReportJson(const CorpusReport& report) {
  const JsonObject json =
      JsonObject()
          .Add("folder", report.folder())
          .Add("lines", report.lines())
          .Add("kept", report.kept())
          .Add("vocabulary_size", report.vocabulary_size())
          .Add("tokenizer_hash", report.tokenizer_hash())
          .Add("content_hash", report.content_hash())
          .AddJson("seconds", absl::StrFormat("%.3f", report.seconds()))
          .AddJson("tokenizer_seconds", absl::StrFormat("%.3f", report.tokenizer_seconds()))
          .Add("peak_resident_bytes", report.peak_resident_bytes())
          .Add("pairs", JsonObjects(report.pairs(), PairJson));
  return JsonOf(json) + "\n";
}

}  // namespace deepnet
