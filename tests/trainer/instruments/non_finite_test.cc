// A value that is not finite is found in the layer, sub-layer and rank where a test put it, on
// every layout.
#include "trainer/instruments/non_finite.h"

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
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

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

RunSpec TinyRun(Residual residual) {
  RunSpec run;
  *run.mutable_model() = testing::TinySpec();
  run.mutable_model()->set_encoder_layers(3);
  run.mutable_model()->set_decoder_layers(4);
  run.mutable_model()->set_residual(residual);
  run.mutable_model()->set_dropout(0.1);
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

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "";
};

const std::vector<Layout> kLayouts = {{1, 1},         {2, 1}, {3, 1}, {3, 1, "zb-h1"},
                                      {3, 1, "zb-v"}, {1, 2}, {2, 2}};

StepBatch Batch(const RunSpec& run) {
  StepBatch batch;
  for (uint32_t i = 0; i < 4; ++i) {
    batch.Add(testing::TinyMicrobatch(run.model(), i + 1));
  }
  return batch;
}

Plan PlanFor(const RunSpec& run, const Inventory& whole, const Layout& layout) {
  ParallelSpec parallel;
  parallel.set_pipeline_parallel_size(layout.stages);
  parallel.set_data_parallel_size(layout.replicas);
  parallel.set_schedule(layout.schedule);
  if (layout.schedule == "zb-v") parallel.set_virtual_pipeline_size(2);
  parallel.set_recompute(NONE);
  const auto plan = MakePlan(whole, {run.data(), run.optim(), run.compute(), {}, parallel});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Fills parameters, by name, of a rank's part of the model.
using Weights = std::map<std::string, float>;
// One element of each is changed, or all.
enum class Part { kOneElement, kAll };

void Spoil(const Weights& weights, Part part, Transformer& model) {
  Parameters& parameters = model.parameters();
  for (const Parameter& p : parameters.inventory().parameters) {
    const auto found = weights.find(p.name);
    if (found == weights.end()) continue;
    at::Tensor flat = parameters.Get(p.name).view({-1});
    if (part == Part::kOneElement) flat = flat.narrow(0, flat.size(0) / 2, 1);
    flat.fill_(found->second);
  }
  model.Refresh();
}

// Runs `body` on every rank of the layout and returns the records, which must be the same.
NonFiniteRecord OnAllRanks(
    const RunSpec& run, const Layout& layout,
    const std::function<absl::StatusOr<NonFiniteRecord>(RankContext&)>& body) {
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  const Plan plan = PlanFor(run, whole, layout);
  std::vector<NonFiniteRecord> records(static_cast<size_t>(layout.stages * layout.replicas));
  const auto statuses =
      RunRanks(static_cast<int>(records.size()), [&](Communicator& world) -> absl::Status {
        ASSIGN_OR_RETURN(const auto context, MakeRankContext(run, whole, plan, world));
        context->model->parameters().Initialize(3);
        context->model->Refresh();
        ASSIGN_OR_RETURN(records[static_cast<size_t>(world.rank())], body(*context));
        return absl::OkStatus();
      });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  for (const NonFiniteRecord& record : records) {
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(record, records[0]));
  }
  return records[0];
}

// Takes a step of `batch`, which must be skipped, and returns where it went wrong.
NonFiniteRecord Find(const RunSpec& run, const Layout& layout, const StepBatch& batch,
                     const Weights& weights, Part part) {
  return OnAllRanks(run, layout, [&](RankContext& context) -> absl::StatusOr<NonFiniteRecord> {
    Spoil(weights, part, *context.model);
    ASSIGN_OR_RETURN(const StepResult result, RunTrainStep(batch, 0, 1, context));
    EXPECT_TRUE(result.update.skipped);
    return LocateNonFinite(batch, 0, context);
  });
}

// The first replica's rank that computes the layer at `position` of the chain.
int RankOf(const RunSpec& run, const Layout& layout, int position) {
  const Plan plan = PlanFor(run, Describe(run.model(), run.data().microbatch()), layout);
  for (const ChunkPlan& chunk : plan.chunks()) {
    if (position >= chunk.first_layer() && position < chunk.end_layer()) return chunk.rank();
  }
  return -1;
}

TEST(LocateNonFinite, NamesTheSublayerOfASpoiledWeightAndItsRank) {
  struct Case {
    Residual residual;
    std::string weight, sublayer, value;
    int position;  // of the layer: 0 embedding, 1-3 encoder, 4 embedding, 5-8 decoder, 9 output
  };
  const std::vector<Case> cases = {
      {DEEPNORM, "decoder.layers.2.fc1.weight", "decoder.layers.2.final", "branch", 7},
      {DEEPNORM, "encoder.layers.1.self_attn.v_proj.weight", "encoder.layers.1.self_attn", "branch",
       2},
      {DEEPNORM, "decoder.layers.0.encoder_attn.out_proj.weight", "decoder.layers.0.encoder_attn",
       "branch", 5},
      {DEEPNORM, "encoder.layers.0.self_attn_layer_norm.weight", "encoder.layers.0.self_attn",
       "output", 1},
      {DEEPNORM, "encoder.layers.2.final_layer_norm.weight", "encoder.layers.2.final", "output", 3},
      {DEEPNORM, "decoder.layers.3.final_layer_norm.bias", "decoder.layers.3.final", "output", 8},
      {PRE_LN, "decoder.layers.1.final_layer_norm.weight", "decoder.layers.1.final", "input", 6},
      {PRE_LN, "encoder.layer_norm.weight", "encoder.layer_norm", "output", 3},
      {PRE_LN, "decoder.layer_norm.weight", "decoder.layer_norm", "output", 8}};
  for (const Case& c : cases) {
    const RunSpec run = TinyRun(c.residual);
    for (const Layout& layout : kLayouts) {
      const NonFiniteRecord found =
          Find(run, layout, Batch(run), {{c.weight, kNaN}}, Part::kOneElement);
      SCOPED_TRACE(c.weight + ": " + NonFiniteLine(found));
      EXPECT_EQ(found.pass(), "forward");
      EXPECT_EQ(found.sublayer(), c.sublayer);
      EXPECT_EQ(found.value(), c.value);
      EXPECT_EQ(found.rank(), RankOf(run, layout, c.position));
      EXPECT_NE(found.host(), "");
    }
  }
}

TEST(LocateNonFinite, NamesTheEarliestOfSeveralPlaces) {
  const RunSpec run = TinyRun(DEEPNORM);
  for (const Layout& layout : kLayouts) {
    const NonFiniteRecord found =
        Find(run, layout, Batch(run),
             {{"decoder.layers.2.fc1.weight", kNaN}, {"encoder.layers.2.fc2.bias", kNaN}},
             Part::kOneElement);
    EXPECT_EQ(found.sublayer(), "encoder.layers.2.final");
    EXPECT_EQ(found.rank(), RankOf(run, layout, 3));
  }
}

TEST(LocateNonFinite, NamesAnEmbeddingAndTheOutputLayer) {
  RunSpec run = TinyRun(DEEPNORM);
  run.mutable_model()->set_tied_embeddings(TIE_NONE);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  const auto table_of = [&](size_t position) {
    return whole.parameters[static_cast<size_t>(whole.layers[position].parameters[0])].name;
  };
  for (const Layout& layout : kLayouts) {
    const NonFiniteRecord source = Find(run, layout, Batch(run), {{table_of(0), kNaN}}, Part::kAll);
    EXPECT_EQ(source.sublayer(), whole.layers[0].name) << NonFiniteLine(source);
    EXPECT_EQ(source.rank(), 0);
    const NonFiniteRecord target = Find(run, layout, Batch(run), {{table_of(4), kNaN}}, Part::kAll);
    EXPECT_EQ(target.sublayer(), whole.layers[4].name) << NonFiniteLine(target);
    EXPECT_EQ(target.rank(), RankOf(run, layout, 4));
    const NonFiniteRecord output = Find(run, layout, Batch(run), {{table_of(9), kNaN}}, Part::kAll);
    EXPECT_EQ(output.sublayer(), "output") << NonFiniteLine(output);
    EXPECT_EQ(output.value(), "loss");
    EXPECT_EQ(output.rank(), RankOf(run, layout, 9));
  }
}

// The gradient comes into decoder layer 1 as about 1e36, and its last matrix makes that infinite.
TEST(LocateNonFinite, NamesTheFirstSublayerOfTheBackwardPass) {
  const RunSpec run = TinyRun(PRE_LN);
  const Weights weights = {{"decoder.layer_norm.weight", 1e36f},
                           {"decoder.layers.1.fc2.weight", 1e5f}};
  StepBatch late = Batch(run);  // only the second half of the microbatches has a loss
  for (size_t i = 0; i < 2; ++i)
    late.microbatches[i].labels.assign(late.microbatches[i].labels.size(), -1);
  for (const Layout& layout : kLayouts) {
    for (const StepBatch& batch : {Batch(run), late}) {
      const NonFiniteRecord found = Find(run, layout, batch, weights, Part::kAll);
      SCOPED_TRACE(NonFiniteLine(found));
      EXPECT_EQ(found.pass(), "backward");
      EXPECT_EQ(found.sublayer(), "decoder.layers.1.final");
      EXPECT_EQ(found.value(), "gradient of decoder.layers.1.final_layer_norm.bias");
      const bool of_last_replica = batch == late;
      EXPECT_EQ(found.rank(), RankOf(run, layout, 6) +
                                  (of_last_replica ? (layout.replicas - 1) * layout.stages : 0));
    }
  }
}

TEST(LocateNonFinite, SaysThatAStepWasFiniteAndLeavesNoTrace) {
  const RunSpec run = TinyRun(DEEPNORM);
  const StepBatch batch = Batch(run);
  for (const Layout& layout : kLayouts) {
    const NonFiniteRecord found =
        OnAllRanks(run, layout, [&](RankContext& context) -> absl::StatusOr<NonFiniteRecord> {
          // The same step, not updated, before and after.
          const auto withhold = [&]() {
            return RunTrainStep(batch, 1, 1, context,
                                {.wanted = [](double, double) { return false; }});
          };
          ASSIGN_OR_RETURN(const StepResult before, withhold());
          ASSIGN_OR_RETURN(NonFiniteRecord record, LocateNonFinite(batch, 0, context));
          ASSIGN_OR_RETURN(const StepResult after, withhold());
          EXPECT_EQ(after.loss, before.loss);
          EXPECT_EQ(after.update.gradient_norm, before.update.gradient_norm);
          return record;
        });
    EXPECT_EQ(found.pass(), "");
    EXPECT_THAT(NonFiniteLine(found), HasSubstr("all values were finite"));
  }
}

}  // namespace
}  // namespace deepnet
