// From an experiment's cells to runs: their complete RunSpecs, what they cost, and the commands
// that carry them out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/lab.pb.h"
#include "proto/run.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// What stands for a run's number of ranks in the words of a launcher.
inline constexpr char kRanksWord[] = "{ranks}";

// What the user said, for all cells alike.
struct LabSetup {
  std::vector<std::string> launcher = {};  // starts `program` as many ranks: {"mpirun", "-n", "8"}
  std::string program;
  std::string root = ".";  // what relative paths start from
  std::string recipes = "launch/recipes";
  std::string out;                     // the experiment's folder
  std::string data = {};               // prepared corpus; empty: what the recipe says
  std::string imported = {};           // instead of CellSpec::checkpoint; empty: that
  std::vector<std::string> sets = {};  // FIELD=VALUE of the user, last
};

// One cell as it can be run.
struct LabJob {
  CellSpec spec;
  std::vector<std::string> sets;  // after the recipe: the cell's, the corpus, the user's
  RunSpec run;                    // complete
  int ranks = 0;  // of the recipe's cluster; 0: as many as are started; 1 where it is only scored
  int64_t bytes = 0;       // memory of all ranks, the program's own included
  int64_t rank_bytes = 0;  // of the fullest rank, as `plan` counts
  double flops = 0.0;      // of all its steps: what progress is counted in
  int64_t parameters = 0;  // numbers that are learned
};

// The complete RunSpec of a cell, as `train` would check it. `sets` in the place of its own.
absl::StatusOr<RunSpec> ReadCellRun(const LabSetup& setup, const CellSpec& spec,
                                    const std::vector<std::string>& sets);

// Ranks that a run's cluster asks for; 0: it leaves that to the job.
int NumRanks(const RunSpec& run);

// Every cell of `experiment`, checked as `train` checks it and planned for one process, or for the
// cluster that its recipe names. `vocabulary_size` counts where the recipe leaves it to the corpus.
// InvalidArgument lists every mistake with the cell it is of.
absl::StatusOr<std::vector<LabJob>> PlanLabJobs(const Experiment& experiment, const LabSetup& setup,
                                                int vocabulary_size);

// The words of `deepnet train` for a job; `threads` for products, 0: the program's own choice.
std::vector<std::string> TrainWords(const LabSetup& setup, const LabJob& job, int threads);

// Those of `deepnet evaluate`, which prints JSON and is one process: a launcher starts it only
// where it can be told how many (kRanksWord). Empty where the experiment scores nothing.
std::vector<std::string> EvaluateWords(const LabSetup& setup, const Experiment& experiment,
                                       const LabJob& job, int threads);

// `path` as it can be opened: relative ones start from `root`.
std::string ResolveFrom(const std::string& root, const std::string& path);

// `words` as one types them: quoted where a shell would read something else.
std::string ShellText(const std::vector<std::string>& words);

// A result without records: what the job is.
LabCell MakeLabCell(const LabJob& job);

// Whether `cell` is of exactly this job: the same complete RunSpec.
bool IsSameJob(const LabCell& cell, const LabJob& job);

}  // namespace deepnet
