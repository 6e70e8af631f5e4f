// Runs what `deepnet train` does, with a thread for each rank.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

#include "proto/run.pb.h"
#include "trainer/trainer.h"

namespace deepnet::testing {

struct TrainOutcome {
  absl::Status status;  // the first error of the ranks
  std::string log;      // of rank 0
};

// Trains `run` on as many ranks as its stages times its replicas. `options` has what all ranks
// share; `for_rank`, where given, completes those of a rank.
TrainOutcome TrainInThreads(const RunSpec& run, const TrainOptions& options,
                            const std::function<void(int rank, TrainOptions&)>& for_rank = {});

// The same, but an error is a failure of the test. Returns the log of rank 0.
std::string MustTrainInThreads(const RunSpec& run, const TrainOptions& options,
                               const std::function<void(int rank, TrainOptions&)>& for_rank = {});

}  // namespace deepnet::testing
