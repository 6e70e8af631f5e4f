// A value that is not finite is found in the layer, sub-layer and rank where a test put it, by
// whatever layout the step is computed.
#include "trainer/instruments/non_finite.h"

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/planner.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tiny_model.h"
#include "trainer/model/describe.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

RunSpec Run(Residual residual) {
  RunSpec run;
  *run.mutable_model() = testing::TinySpec();
  run.mutable_model()->set_encoder_layers(3);
  run.mutable_model()->set_decoder_layers(4);
  run.mutable_model()->set_residual(residual);
  *run.mutable_data()->mutable_microbatch() = testing::TinyCapacity();
  run.mutable_data()->set_global_microbatches(4);
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_optim()->set_virtual_replicas(2);
  ComputeSpec& compute = *run.mutable_compute();
  compute.set_device("cpu");
  compute.set_dtype(FLOAT32);
  compute.set_matmul(NATIVE);
  compute.set_threads_per_rank(1);
  return WithDefaults(run);
}

// Values that stand everywhere in some parameters.
using Spoiled = std::map<std::string, float>;

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "";
};

StepBatch Batch(const RunSpec& run) {
  StepBatch batch;
  for (uint32_t i = 0; i < 4; ++i) {
    const Microbatch& made =
        batch.microbatches.emplace_back(testing::TinyMicrobatch(run.model(), i + 1));
    batch.num_source_tokens += made.num_source_tokens;
    batch.num_target_tokens += made.num_target_tokens;
  }
  return batch;
}

// Takes a step on `layout`, which must be skipped unless nothing is spoiled, and returns what is
// found, which must be the same on all ranks.
NonFiniteRecord Find(const RunSpec& run, const Layout& layout, const Spoiled& spoiled) {
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  ParallelSpec parallel;
  parallel.set_pipeline_parallel_size(layout.stages);
  parallel.set_data_parallel_size(layout.replicas);
  parallel.set_schedule(layout.schedule);
  if (layout.schedule == "zb-v") parallel.set_virtual_pipeline_size(2);
  parallel.set_recompute(NONE);
  const auto plan = MakePlan(whole, run.data(), run.optim(), run.compute(), {}, parallel);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const StepBatch batch = Batch(run);
  std::vector<NonFiniteRecord> records(static_cast<size_t>(layout.stages * layout.replicas));
  const auto statuses = RunRanks(
      static_cast<int>(records.size()), [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const auto part, MakeRankContext(run, whole, *plan, world));
        Parameters& parameters = part->model->parameters();
        parameters.Initialize(3);
        for (const Parameter& p : parameters.inventory().parameters) {
          const auto found = spoiled.find(p.name);
          if (found != spoiled.end()) parameters.Get(p.name).fill_(found->second);
        }
        part->model->Refresh();
        ASSIGN_OR_RETURN(const StepResult result, RunTrainStep(batch, 0, 1, *part));
        EXPECT_EQ(result.update.skipped, !spoiled.empty());
        ASSIGN_OR_RETURN(records[static_cast<size_t>(world.rank())],
                         LocateNonFinite(batch, 0, *part, {}));
        // Nothing is left of the search: a healthy model takes its next step.
        if (spoiled.empty()) RETURN_IF_ERROR(RunTrainStep(batch, 1, 2, *part).status());
        return absl::OkStatus();
      });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  for (const NonFiniteRecord& record : records) {
    EXPECT_EQ(record.SerializeAsString(), records[0].SerializeAsString());
  }
  return records[0];
}

const std::vector<Layout> kLayouts = {{1, 1}, {3, 1}, {3, 1, "zb-v"}, {1, 2}, {2, 2}};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(LocateNonFinite, NamesTheFirstSublayerOfTheForwardPassAndItsRank) {
  const RunSpec run = Run(DEEPNORM);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(NonFiniteLine(Find(run, layout, {{"decoder.layers.2.fc1.weight", kNaN}})));
    const NonFiniteRecord fc = Find(run, layout, {{"decoder.layers.2.fc1.weight", kNaN}});
    EXPECT_EQ(fc.sublayer(), "decoder.layers.2.final");
    EXPECT_EQ(fc.pass(), "forward");
    EXPECT_EQ(fc.value(), "branch");
    EXPECT_EQ(fc.rank() > 0, layout.stages > 1) << "the last ranks of the first replica";
    EXPECT_LT(fc.rank(), layout.stages);

    // The lowest in the chain counts, whatever a later one does.
    const NonFiniteRecord lower = Find(run, layout,
                                       {{"decoder.layers.2.fc1.weight", kNaN},
                                        {"encoder.layers.1.self_attn.out_proj.weight", kNaN}});
    EXPECT_EQ(lower.sublayer(), "encoder.layers.1.self_attn");
    EXPECT_EQ(lower.rank(), 0);
  }
}

// The stream's gradient comes in as about 1e36 and leaves layer 1's second product as infinite.
TEST(LocateNonFinite, NamesTheFirstParameterOfTheBackwardPass) {
  const RunSpec run = Run(PRE_LN);
  const Spoiled spoiled = {{"decoder.layer_norm.weight", 1e36f},
                           {"decoder.layers.1.fc2.weight", 1e4f}};
  for (const Layout& layout : kLayouts) {
    const NonFiniteRecord found = Find(run, layout, spoiled);
    SCOPED_TRACE(NonFiniteLine(found));
    EXPECT_EQ(found.pass(), "backward");
    EXPECT_EQ(found.sublayer(), "decoder.layers.1.final");
    EXPECT_THAT(found.value(), HasSubstr("gradient of decoder.layers.1."));
  }
}

TEST(LocateNonFinite, SaysThatAStepWasFiniteAndLeavesNoTrace) {
  const NonFiniteRecord found = Find(Run(DEEPNORM), {2, 2}, {});
  EXPECT_EQ(found.sublayer(), "");
  EXPECT_THAT(NonFiniteLine(found), HasSubstr("finite"));
}

}  // namespace
}  // namespace deepnet
