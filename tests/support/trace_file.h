// Reads the Chrome traces that runs write, and checks what every one of them must have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace deepnet::testing {

struct FileEvent {
  std::string name, category, phase, action;
  int rank = 0, line = 0, microbatch = -1;
  std::string identity;  // of phases "b" and "e"
  int64_t step = -1, bytes = 0;
  int64_t start = 0, end = 0;  // nanoseconds; of a phase "b" or "e" both are its moment
};

// Returns the events of `file` without those that only name; a failure of the test, and none, if
// they are no JSON in the Trace Event Format.
std::vector<FileEvent> ReadTrace(const std::filesystem::path& file);

// A trace of the steps from..to of a run of `stages` x `replicas` ranks, with `microbatches` for
// each replica in a schedule whose backward passes are whole.
struct TracedRun {
  int stages = 1, replicas = 1, microbatches = 1;
  int64_t from = 1, to = 1;
  bool on_gpu = false;
};

// Expects of `events`: each begin has its end; on a line events lie inside of each other or apart;
// every action of the schedule once for each step and rank, and on a GPU the device's part of it;
// both ends of every message; the batch, the update and the sums of each step; and kernels in every
// action.
void ExpectWholeTrace(const std::vector<FileEvent>& events, const TracedRun& run);

}  // namespace deepnet::testing
