// A prepared corpus folder: its file names, its manifest, its content hash, its report.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/pair_index.h"

namespace deepnet {

inline constexpr int32_t kCorpusFormatVersion = 1;

// Names inside a corpus folder. Persistent.
inline constexpr char kCorpusManifest[] = "manifest.textproto";
inline constexpr char kReportFile[] = "report.json";
inline constexpr char kTokenizerFile[] = "tokenizer.model";
inline constexpr char kShardEnd[] = ".pairs";        // of a file's name
std::string ShardFileName(const std::string& pair);  // "de-en" or "de-en.bt": "train.de-en.pairs"
std::string TextFileName(std::string_view split, std::string_view first, std::string_view second,
                         std::string_view language);  // "dev.de-en.de"

// Returns the directions that a language pair serves: both, synthetic text its own.
std::vector<Direction> DirectionsOf(const LanguagePairReport& pair);

// Returns the bytes of manifest.textproto; the last line is their digest.
std::string ManifestText(CorpusManifest manifest);

// Reads the manifest of a folder, whatever names its fields had when it was written. NotFound if
// there is none; DataLoss if it is damaged, of another format version, or if a language, tag, split
// or file in it is none that a path may hold.
absl::StatusOr<CorpusManifest> ReadManifest(const std::string& folder);

// Returns the hexadecimal hash of the list of files: equal exactly where everything that a run can
// see is equal.
std::string ContentHash(const CorpusManifest& manifest);

// Returns a table for people.
std::string ReportTable(const CorpusReport& report);

// Returns the report as JSON: the fields of CorpusReport under their names, and the directions that
// each language pair serves.
std::string ReportJson(const CorpusReport& report);

}  // namespace deepnet
