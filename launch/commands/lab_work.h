// What a request finds: the corpus, the runs that have ended in its folder, and those still to do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_request.h"
#include "parallel/base/file_system.h"
#include "proto/lab.pb.h"

namespace deepnet {

// Jobs that know the corpus's vocabulary, and what there is to say of the corpus in `data`. Where
// it is missing and `needed`, ExitCode::kData says how to get it.
absl::StatusOr<std::vector<LabJob>> PlanForCorpus(const Experiment& experiment,
                                                  const LabSetup& setup, bool needed,
                                                  LabData* data);

// What there is to do and to show.
struct LabWork {
  // The cells asked for, and those that ended in the folder after earlier requests for the same
  // experiment, with other --only, --at and --seeds. In the experiment's order.
  Experiment experiment;
  std::string earlier_command;  // of those requests, a line each, as far as result.json is there
  std::vector<LabJob> jobs;     // all
  std::map<std::string, LabCell> ended;  // by name
  std::vector<const LabJob*> pending;    // point into `jobs`
  LabData data;                          // the corpus
};

// Refuses, with the exit code of what is wrong: a folder of other settings or of another
// experiment; a launcher that starts another number of ranks than the runs' clusters have, as far
// as it says; weights to begin with that are not there.
absl::StatusOr<std::unique_ptr<LabWork>> FindLabWork(FileSystem& fs, const LabRequest& request);

}  // namespace deepnet
