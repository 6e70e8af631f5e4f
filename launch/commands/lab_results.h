// An experiment's folder while its runs end one after the other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_request.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "proto/lab.pb.h"

namespace deepnet {

// result.json and report.html of `folder`. Not thread-safe.
class LabResults {
 public:
  // `result` without cells; `jobs` are all cells in their order and outlive this.
  LabResults(FileSystem& fs, std::string folder, LabResult result, const std::vector<LabJob>& jobs)
      : fs_(fs), folder_(std::move(folder)), result_(std::move(result)), jobs_(jobs) {}

  // A cell that has ended; a later one of the same name replaces it.
  void Add(const LabCell& cell) { cells_[cell.name()] = cell; }

  absl::Status Write();
  // As Write left it.
  const LabResult& result() const { return result_; }
  int NumFailed() const;
  // Why the first of them failed, as its program said; kInternal if there is none or it said
  // nothing.
  ExitCode FailedCode() const;

 private:
  FileSystem& fs_;
  const std::string folder_;
  LabResult result_;
  const std::vector<LabJob>& jobs_;
  std::map<std::string, LabCell> cells_;
};

// How the runs came about, beside what they learned from.
struct LabOrigin {
  int threads = 0;  // of each run; 0: a launcher's
  LabData data;
  std::string earlier_command;  // of the result that this one extends or repeats; empty: none
};

// What a result of all cells of `experiment` says besides them: those that `request` names, and
// earlier ones, whose command stays.
LabResult MakeLabResult(const LabRequest& request, const Experiment& experiment, LabOrigin origin);

}  // namespace deepnet
