#include "tests/parity/train_in_threads.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/logging.h"
#include "tests/support/run_ranks.h"

namespace deepnet::testing {

TrainOutcome TrainInThreads(const RunSpec& run, const TrainOptions& options,
                            const std::function<void(int rank, TrainOptions&)>& for_rank) {
  const ParallelSpec& parallel = run.parallel();
  const int ranks =
      std::max(1, parallel.pipeline_parallel_size()) * std::max(1, parallel.data_parallel_size());
  std::vector<std::ostringstream> logs(static_cast<size_t>(ranks));
  const auto statuses = RunRanks(ranks, [&](Communicator& world) {
    TrainOptions own = options;
    own.world = &world;
    if (for_rank) for_rank(world.rank(), own);
    Logger log({.stream = &logs[static_cast<size_t>(world.rank())]});
    return Train(run, own, log);
  });
  return {FirstError(statuses), logs[0].str()};
}

std::string MustTrainInThreads(const RunSpec& run, const TrainOptions& options,
                               const std::function<void(int rank, TrainOptions&)>& for_rank) {
  const TrainOutcome outcome = TrainInThreads(run, options, for_rank);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status << outcome.log;
  return outcome.log;
}

}  // namespace deepnet::testing
