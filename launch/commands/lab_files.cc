#include "launch/commands/lab_files.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/metrics.h"

namespace deepnet {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;  // of a file that makes sense here
constexpr int64_t kTailBytes = 4096;
constexpr char kMetrics[] = "metrics.jsonl";
constexpr int kMostSteps = 300;
constexpr int kMostInstruments = 40;

bool FromJson(const std::string& text, google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(text, message, options).ok();
}

template <typename Message>
absl::StatusOr<Message> ReadJson(FileSystem& fs, const std::string& path) {
  const auto text = ReadWholeFile(fs, path, kMostBytes);
  if (!text.ok()) return WithExitCode(text.status(), ExitCode::kData);
  Message message;
  if (FromJson(*text, &message)) return message;
  return WithExitCode(absl::DataLossError(absl::StrCat("'", path, "' is no result of `lab run`")),
                      ExitCode::kData);
}

// Every k-th record and the last one, at most `most` and one.
template <typename Records>
void Thin(int most, Records* records) {
  const int every = (records->size() + most - 1) / most;
  if (every <= 1) return;
  const int last = records->size() - 1;
  int kept = 0;
  for (int i = 0; i <= last; ++i) {
    if (i % every == 0 || i == last) records->SwapElements(kept++, i);
  }
  records->DeleteSubrange(kept, records->size() - kept);
}

void AddRecord(const std::string& line, LabCell* cell) {
  // The kind stands first: parsing a record as another kind would succeed and mean nothing.
  if (absl::StartsWith(line, "{\"kind\":\"train\"")) {
    StepRecord record;
    if (FromJson(line, &record)) *cell->add_steps() = std::move(record);
  } else if (absl::StartsWith(line, "{\"kind\":\"validation\"")) {
    EvalRecord record;
    if (FromJson(line, &record)) *cell->add_validations() = std::move(record);
  } else if (absl::StartsWith(line, "{\"kind\":\"instruments\"")) {
    InstrumentRecord record;
    if (FromJson(line, &record)) *cell->add_instruments() = std::move(record);
  }
}

std::string MetricsPath(FileSystem& fs, const std::string& folder) {
  std::string kept = JoinPath(folder, kMetrics);
  if (fs.Exists(kept).value_or(false)) return kept;
  return JoinPath(JoinPath(folder, kCellRunFolder), kMetrics);
}

std::string Tail(FileSystem& fs, const std::string& path) {
  const auto bytes = fs.Size(path);
  if (!bytes.ok()) return "";
  const int64_t offset = std::max<int64_t>(0, *bytes - kTailBytes);
  std::string tail(static_cast<size_t>(*bytes - offset), '\0');
  const auto read = fs.ReadAt(path, offset, tail);
  tail.resize(static_cast<size_t>(read.value_or(0)));
  return tail;
}

}  // namespace

std::string CellFolder(const std::string& out, const std::string& name) {
  return JoinPath(JoinPath(out, "cells"), name);
}

absl::StatusOr<LabResult> ReadLabResult(FileSystem& fs, const std::string& folder) {
  return ReadJson<LabResult>(fs, JoinPath(folder, kLabResultFile));
}

absl::Status WriteLabResult(FileSystem& fs, const std::string& folder, const LabResult& result) {
  return ReplaceFile(fs, JoinPath(folder, kLabResultFile), ToJson(result) + "\n");
}

absl::StatusOr<LabCell> ReadLabCell(FileSystem& fs, const std::string& folder) {
  return ReadJson<LabCell>(fs, JoinPath(folder, kLabResultFile));
}

absl::Status WriteLabCell(FileSystem& fs, const std::string& folder, const LabCell& cell) {
  return ReplaceFile(fs, JoinPath(folder, kLabResultFile), ToJson(cell) + "\n");
}

absl::Status ReadCellRecords(FileSystem& fs, const std::string& folder, LabCell* cell) {
  const std::string path = MetricsPath(fs, folder);
  ASSIGN_OR_RETURN(const bool there, fs.Exists(path));
  if (there) {
    ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(fs, path, kMostBytes));
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      AddRecord(line, cell);
    }
  }
  Thin(kMostSteps, cell->mutable_steps());
  Thin(kMostInstruments, cell->mutable_instruments());
  const auto evaluation = ReadWholeFile(fs, JoinPath(folder, kCellEvaluation), kMostBytes);
  EvalRecord record;
  if (evaluation.ok() && FromJson(*evaluation, &record)) *cell->mutable_test() = std::move(record);
  return absl::OkStatus();
}

int64_t CellSteps(FileSystem& fs, const std::string& folder) {
  const std::string tail = Tail(fs, MetricsPath(fs, folder));
  const std::string key = "\"step\":";
  const size_t at = tail.rfind(key);
  int64_t step = 0;
  if (at == std::string::npos) return 0;
  const size_t end = tail.find_first_not_of("0123456789", at + key.size());
  if (!absl::SimpleAtoi(tail.substr(at + key.size(), end - at - key.size()), &step)) return 0;
  return step;
}

std::string LastLogLine(FileSystem& fs, const std::string& folder) {
  const std::string tail = Tail(fs, JoinPath(folder, kCellLog));
  const std::vector<std::string> lines = absl::StrSplit(tail, '\n', absl::SkipWhitespace());
  return lines.empty() ? "" : lines.back();
}

absl::Status DropCellModels(FileSystem& fs, const std::string& folder) {
  const std::string run = JoinPath(folder, kCellRunFolder);
  ASSIGN_OR_RETURN(const bool there, fs.Exists(run));
  if (!there) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool measured, fs.Exists(JoinPath(run, kMetrics)));
  if (measured) {
    RETURN_IF_ERROR(fs.Rename(JoinPath(run, kMetrics), JoinPath(folder, kMetrics)));
  }
  RETURN_IF_ERROR(DeleteTree(fs, run));
  return fs.SyncFolder(folder);
}

}  // namespace deepnet
