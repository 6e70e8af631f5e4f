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

// What the user said, for all cells alike.
struct LabSetup {
  std::vector<std::string>
      program;             // what runs a command: {"deepnet"}, or {"mpirun", ..., "deepnet"}
  std::string root = ".";  // what relative paths start from
  std::string recipes = "launch/recipes";
  std::string out;                     // the experiment's folder
  std::string data;                    // prepared corpus; empty: what the recipe says
  std::vector<std::string> sets = {};  // FIELD=VALUE of the user, last
};

// One cell as it can be run.
struct LabJob {
  CellSpec spec;
  std::vector<std::string> sets;  // after the recipe: the cell's, the corpus, the user's
  RunSpec run;                    // complete
  int64_t bytes = 0;              // memory it needs, the program's own included
  double flops = 0.0;             // of all its steps: what progress is counted in
  int64_t parameters = 0;         // numbers that are learned
};

// Every cell of `experiment`, checked as `train` checks it and planned for one process, or for the
// cluster that its recipe names. `vocabulary_size` counts where the recipe leaves it to the corpus.
// InvalidArgument lists every mistake with the cell it is of.
absl::StatusOr<std::vector<LabJob>> PlanLabJobs(const Experiment& experiment, const LabSetup& setup,
                                                int vocabulary_size);

// The words of `deepnet train` for a job; `threads` for products.
std::vector<std::string> TrainWords(const LabSetup& setup, const LabJob& job, int threads);

// Those of `deepnet evaluate`, which prints JSON; empty where the experiment scores nothing.
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
