// Training runs whose passes go to the emulated GPU as CUDA graphs, ranks being threads: the bits
// of the same run without graphs, from microbatches of many sizes, in a fraction of the launches.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/device_group.h"
#include "parallel/base/check.h"
#include "proto/run.pb.h"
#include "tests/gpu/emulated/device.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A graph is made in the second step that has its buffers, and launched from the third on.
constexpr int kSteps = 8;

class GpuGraphsTest : public testing::CorpusTest {
 protected:
  struct Layout {
    int stages = 1, replicas = 1;
    std::string schedule = "";
  };

  static RunSpec Run(const Layout& layout, DataType dtype, bool graphs) {
    static int number = 0;
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 40
                   dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 30 global_microbatches: 4
                  microbatch { max_source_tokens: 32 max_target_tokens: 32 max_sentences: 2 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
           compute { threads_per_rank: 1 device: 'cuda' }
           train { checkpoint_every_steps: 1000 log_every_steps: 1 })",
        &run));
    run.set_folder("run" + std::to_string(++number));
    run.mutable_cluster()->set_device_memory_gib(8);
    run.mutable_compute()->set_dtype(dtype);
    run.mutable_compute()->set_cuda_graphs(graphs);
    run.mutable_train()->set_steps(kSteps);
    run.mutable_parallel()->set_pipeline_parallel_size(layout.stages);
    run.mutable_parallel()->set_data_parallel_size(layout.replicas);
    run.mutable_parallel()->set_schedule(layout.schedule);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Returns the log of rank 0.
  static std::string Train(const RunSpec& run) {
    std::vector<std::unique_ptr<Communicator>> joined(static_cast<size_t>(
        run.parallel().pipeline_parallel_size() * run.parallel().data_parallel_size()));
    return testing::MustTrainInThreads(run, {.root = root_.string()},
                                       [&](int rank, TrainOptions& options) {
                                         auto devices = JoinDevices(run.compute(), *options.world);
                                         DEEPNET_CHECK(devices.ok()) << devices.status();
                                         if (*devices == nullptr) return;
                                         joined[static_cast<size_t>(rank)] = *std::move(devices);
                                         options.world = joined[static_cast<size_t>(rank)].get();
                                       });
  }

  struct Launched {
    std::string weights;
    int64_t launches = 0, replayed = 0;  // of all ranks
  };
  static Launched Count(const RunSpec& run) {
    const emulated_gpu::Counters before = emulated_gpu::ReadCounters();
    const std::string log = Train(run);
    EXPECT_THAT(log, Not(HasSubstr("warning: CUDA graphs")));
    const emulated_gpu::Counters after = emulated_gpu::ReadCounters();
    return {.weights = testing::WeightsLine(log),
            .launches = after.launches - before.launches,
            .replayed = after.replayed - before.replayed};
  }

  // The run that most others are held against: one rank, bfloat16, no graphs.
  static const Launched& Eager() {
    static const Launched eager = Count(Run({}, BFLOAT16, false));
    return eager;
  }
};

TEST_F(GpuGraphsTest, AStepIsAFractionOfTheLaunchesAndHasTheSameBits) {
  for (const DataType dtype : {FLOAT32, BFLOAT16, FLOAT16}) {
    const Launched eager = dtype == BFLOAT16 ? Eager() : Count(Run({}, dtype, false));
    const Launched graphs = Count(Run({}, dtype, true));
    EXPECT_EQ(graphs.weights, eager.weights) << DataType_Name(dtype);
    EXPECT_EQ(eager.replayed, 0);
    // Five of eight steps have graphs for everything that may be in one.
    EXPECT_LT(graphs.launches, eager.launches * 6 / 10) << DataType_Name(dtype);
    EXPECT_GT(graphs.replayed, 0);
  }
}

TEST_F(GpuGraphsTest, EveryScheduleHasTheBitsOfOneRank) {
  for (const Layout& layout : std::vector<Layout>{{2, 1, "gpipe"},
                                                  {2, 1, "1f1b"},
                                                  {2, 1, "zb-h1"},
                                                  {2, 1, "zb-v"},
                                                  {2, 1, "interleaved"},
                                                  {1, 2, ""},
                                                  {2, 2, "1f1b"}}) {
    const Launched graphs = Count(Run(layout, BFLOAT16, true));
    EXPECT_EQ(graphs.weights, Eager().weights) << layout.schedule;
    EXPECT_GT(graphs.replayed, 0) << layout.schedule;
  }
}

TEST_F(GpuGraphsTest, RecomputedLayersAndOtherSchemesHaveTheSameBits) {
  for (const Recompute level : {SELECTIVE_GEMM, FULL}) {
    RunSpec run = Run({}, BFLOAT16, true);
    run.mutable_parallel()->set_recompute(level);
    const Launched graphs = Count(run);
    EXPECT_EQ(graphs.weights, Eager().weights) << Recompute_Name(level);
    EXPECT_GT(graphs.replayed, 0);
  }
  for (const Residual residual : {B2T, RESIDUAL_DUAL, DLCL, NORMFORMER}) {
    const auto run = [&](bool graphs) {
      RunSpec spec = Run({}, FLOAT32, graphs);
      spec.mutable_model()->set_residual(residual);
      spec.mutable_model()->set_encoder_layers(1);
      spec.mutable_model()->set_decoder_layers(1);
      return spec;
    };
    const Launched graphs = Count(run(true));
    EXPECT_EQ(graphs.weights, testing::WeightsLine(Train(run(false)))) << Residual_Name(residual);
    EXPECT_GT(graphs.replayed, 0);
  }
}

// LibTorch's attention stays outside of graphs, which end before it.
TEST_F(GpuGraphsTest, FlashAttentionStandsBetweenGraphs) {
  const auto run = [](bool graphs) {
    RunSpec spec = Run({}, BFLOAT16, graphs);
    spec.mutable_model()->set_attention_dropout(0);
    spec.mutable_compute()->set_attention(FLASH);
    return spec;
  };
  const Launched graphs = Count(run(true));
  EXPECT_EQ(graphs.weights, testing::WeightsLine(Train(run(false))));
  EXPECT_GT(graphs.replayed, 0);
}

TEST_F(GpuGraphsTest, ARunThatIsResumedAndLaunchesThatAreWaitedForHaveTheSameBits) {
  RunSpec resumed = Run({}, BFLOAT16, true);
  resumed.mutable_train()->set_steps(kSteps / 2);
  Train(resumed);
  resumed.mutable_train()->set_steps(kSteps);
  EXPECT_EQ(testing::WeightsLine(Train(resumed)), Eager().weights);
  RunSpec waited = Run({}, BFLOAT16, true);
  waited.mutable_compute()->set_check_launches(true);
  const Launched one_by_one = Count(waited);
  EXPECT_EQ(one_by_one.weights, Eager().weights);
  EXPECT_EQ(one_by_one.replayed, 0);
}

// The first graph that is tried leaves out a kernel.
TEST_F(GpuGraphsTest, GraphsThatHaveOtherBitsAreNamedAndNotUsed) {
  const std::string eager = Eager().weights;  // whose run has no graph to fail at
  emulated_gpu::FailAt("last node of a graph", 1, 1);
  const std::string log = Train(Run({}, BFLOAT16, true));
  EXPECT_EQ(testing::WeightsLine(log), eager);
  const std::string named =
      "warning: CUDA graphs of chunk 0, the forward pass, slot 0 do not give the bits";
  EXPECT_THAT(log, HasSubstr(named));
  EXPECT_EQ(log.find("warning: CUDA graphs", log.find(named) + 1), log.npos);
}

}  // namespace
}  // namespace deepnet
