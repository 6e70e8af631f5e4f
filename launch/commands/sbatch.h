// A job script for Slurm that trains a planned run: what `deepnet plan --sbatch` writes.
#pragma once

#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// The resources that Slurm is asked for. Memory and time are above what the plan expects, so that a
// run does not end for want of them.
struct JobRequest {
  int nodes = 1;
  int ranks = 1;           // of the job
  int ranks_per_node = 1;  // on every node but the last, which may have fewer
  int cores_per_rank = 1;
  double node_memory_gib = 0;  // host memory of the fullest node
  int gpus_per_node = 0;       // 0: a run on CPUs
  double run_seconds = 0;  // of the whole run: start, steps, what saves add; 0: the run has no end
};

// Returns what `plan`, made for `run` with defaults filled in, needs. `host_cores`, those of a
// node, are shared by its ranks where run.compute.threads_per_rank is 0 on CPUs.
JobRequest RequestFor(const Plan& plan, const RunSpec& run, int host_cores);

// Returns a script for sbatch that starts launch/slurm/run.sh with `words`, the arguments of
// `train`, and the degrees of `plan`. It is submitted in the project's folder.
std::string SbatchScript(const JobRequest& request, const Plan& plan, const RunSpec& run,
                         std::vector<std::string> words);

}  // namespace deepnet
