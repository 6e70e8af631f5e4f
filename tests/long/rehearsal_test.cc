// The executor's time against the simulator's on a schedule whose ranks run far ahead of each
// other: nothing but missing data may hold a rank up.
#include "parallel/exec/rehearsal.h"

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

constexpr double kMaxMore = 0.02;  // bubble, rehearsed beyond simulated
constexpr int kSteps = 3;          // the fastest counts

// One chunk a rank; the last one has an output layer that costs as much in F as four other passes,
// so that the ranks before it wait for it with what they have made.
RehearsalJob SlowEnd(const std::string& schedule, int ranks, int microbatches) {
  const PipelineShape shape{.num_ranks = ranks, .num_microbatches = microbatches};
  RehearsalJob job;
  job.placement = *MakeNamedPlacement(schedule, shape);
  job.costs.assign(ranks, {.forward = 1, .backward_input = 1, .backward_weight = 1});
  job.costs.back().forward = 5;
  job.schedules.push_back(
      *WithTransfers(*MakeNamedSchedule(schedule, shape, job.costs), job.placement));
  const BoundaryTensor tensor{.name = "hidden", .shape = {16}, .dtype = "float32"};
  job.stage_messages.assign(ranks, {{tensor}, {tensor}});
  job.stage_messages.front() = {};
  job.exchange.stages.resize(ranks);
  job.exchange.gradient_bytes.assign(ranks, 0);
  return job;
}

TEST(Rehearsal, TakesAsLongAsSimulatedWhereRanksRunFarAhead) {
  for (const std::string schedule : {"1f1b", "zb-h1"}) {
    const RehearsalJob job = SlowEnd(schedule, /*ranks=*/16, /*microbatches=*/32);
    const auto statuses = RunRanks(job.NumRanks(), [&](Communicator& world) -> absl::Status {
      ASSIGN_OR_RETURN(const Rehearsal result, RunRehearsal(job, {.steps = kSteps}, world));
      if (world.rank() > 0) return absl::OkStatus();
      std::printf("%s: bubble simulated %.2f %%, rehearsed %.2f %%\n", schedule.c_str(),
                  100 * result.simulated.bubble, 100 * result.bubble);
      EXPECT_LE(result.bubble - result.simulated.bubble, kMaxMore) << schedule;
      EXPECT_GE(result.bubble - result.simulated.bubble, -kMaxMore) << schedule;
      return absl::OkStatus();
    });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }
}

}  // namespace
}  // namespace deepnet
