// What an experiment's folder holds:
//   result.json               LabResult (proto/lab.proto): all cells that have ended
//   report.html               the page made of it
//   cells/<name>/result.json  LabCell: this cell has ended
//   cells/<name>/metrics.jsonl, evaluation.json, log.txt
//   cells/<name>/run          the run folder of `train`; deleted once the cell is done
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/lab.pb.h"

namespace deepnet {

inline constexpr char kLabResultFile[] = "result.json";
inline constexpr char kLabReportFile[] = "report.html";
inline constexpr char kCellRunFolder[] = "run";
inline constexpr char kCellEvaluation[] = "evaluation.json";
inline constexpr char kCellLog[] = "log.txt";

// cells/<name> below `out`.
std::string CellFolder(const std::string& out, const std::string& name);

// Of a folder that `lab run` wrote. Errors carry ExitCode::kData.
absl::StatusOr<LabResult> ReadLabResult(FileSystem& fs, const std::string& folder);
absl::Status WriteLabResult(FileSystem& fs, const std::string& folder, const LabResult& result);

// NotFound where the cell has not ended.
absl::StatusOr<LabCell> ReadLabCell(FileSystem& fs, const std::string& folder);
absl::Status WriteLabCell(FileSystem& fs, const std::string& folder, const LabCell& cell);

// Adds the records of metrics.jsonl (in the run folder, or kept beside it) and of evaluation.json
// to `cell`, as far as they are there: a few hundred of training, a few dozen of instruments. Lines
// that are no record are passed over.
absl::Status ReadCellRecords(FileSystem& fs, const std::string& folder, LabCell* cell);

// Steps that a cell under way has done, by its metrics.jsonl; 0: none yet.
int64_t CellSteps(FileSystem& fs, const std::string& folder);

// The last line of the cell's log that is not empty.
std::string LastLogLine(FileSystem& fs, const std::string& folder);

// Keeps metrics.jsonl and deletes the rest of the run folder: checkpoints.
absl::Status DropCellModels(FileSystem& fs, const std::string& folder);

}  // namespace deepnet
