// The plan's bytes against what a rank really holds in a step: native kernels in float32 where
// nothing else is said.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include <gtest/gtest.h>

#include "tests/trainer/memory_rig.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/decode/search.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/telemetry/report.h"
#include "trainer/telemetry/tensor_memory.h"

namespace deepnet {
namespace {

using testing::MeasureRanks;
using testing::RankBytes;

constexpr double kTolerance = 0.05;         // planned against measured
constexpr double kBoundedTolerance = 0.02;  // peaks of steps of different length

// Small, but with all of a real run's parts: dropout, tied embeddings, several microbatches.
RunSpec SmallRun(int layers, int microbatches) {
  RunSpec run;
  run.set_name("memory");
  run.set_seed(3);
  ModelSpec& model = *run.mutable_model();
  model.set_encoder_layers(layers);
  model.set_decoder_layers(layers);
  model.set_d_model(64);
  model.set_ffn_dim(128);
  model.set_num_heads(2);
  model.set_residual(DEEPNORM);
  model.set_dropout(0.1);
  model.set_vocabulary_size(1024);
  DataSpec& data = *run.mutable_data();
  data.mutable_microbatch()->set_max_source_tokens(220);
  data.mutable_microbatch()->set_max_target_tokens(200);
  data.mutable_microbatch()->set_max_sentences(16);
  data.set_global_microbatches(microbatches);
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_parallel()->set_pipeline_parallel_size(1);
  run.mutable_parallel()->set_data_parallel_size(1);
  run.mutable_parallel()->set_recompute(NONE);
  return run;
}

// `uneven`: bytes by which ranks' shares of the moments may differ from equal ones.
void ExpectAsPlanned(const std::vector<RankBytes>& ranks, const std::string& where,
                     int64_t uneven = 0) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    SCOPED_TRACE(where + ", rank " + std::to_string(r) + ": " + ranks[r].ToText());
    EXPECT_LE(std::abs(ranks[r].state - ranks[r].PlannedState()), uneven);
    EXPECT_LE(std::abs(ranks[r].Difference()), kTolerance);
  }
}

int64_t LiveBytes(TensorMemory& memory) {
  memory.ForgetPeak();
  return memory.peak_bytes();
}

TEST(TensorMemory, CountsWhatTheThreadAllocatesUntilItIsFreed) {
  TensorMemory memory("cpu");
  {
    const at::Tensor kept = at::zeros({1000}, at::kFloat);
    { const at::Tensor passing = at::zeros({500}, at::kFloat); }
    EXPECT_EQ(memory.peak_bytes(), 6000);
    EXPECT_EQ(LiveBytes(memory), 4000);
  }
  EXPECT_EQ(LiveBytes(memory), 0);
}

TEST(TensorMemory, LeavesRawMemoryOfProductsAlone) {
  TensorMemory memory("cpu");
  const at::Tensor x = at::ones({64, 512}, at::kFloat), w = at::ones({512, 512}, at::kFloat);
  const int64_t before = LiveBytes(memory);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(at::mm(x.to(type), w.to(type)).sum().item<float>(), 64.0f * 512 * 512);
  }
  EXPECT_EQ(LiveBytes(memory), before);
}

TEST(MemoryLine, NamesTheRankThatIsFarthestFromItsPlan) {
  constexpr int64_t kMiB = 1 << 20;
  const std::vector<RankMemory> ranks = {{100 * kMiB, 101 * kMiB}, {200 * kMiB, 186 * kMiB}};
  EXPECT_EQ(MemoryLine(ranks),
            "memory: planned 200.0 MiB, measured 186.0 MiB (-7.0 %) on rank 1; all others are "
            "nearer to the plan");
  EXPECT_GT(std::abs(ranks[1].Difference()), kMemoryTolerance);
}

TEST(StartLine, NamesThePhasesThatTookTime) {
  const std::vector<TimedPhase> phases = {
      {"corpus", 0.04}, {"plan", 0.5}, {"weights", 1.46}, {"links", 0.1}};
  EXPECT_EQ(StartLine(phases), "ready after 2.1 s: plan 0.5, weights 1.5, links 0.1");
  EXPECT_EQ(StartLine(std::span(phases).first(2)), "");
}

TEST(PlannedMemory, OfALoneRankIsWhatItHoldsAtEveryLevelOfRecomputation) {
  for (const Recompute level : {NONE, SELECTIVE_FFN, SELECTIVE_GEMM, FULL}) {
    RunSpec run = SmallRun(8, 3);
    run.mutable_parallel()->set_recompute(level);
    ExpectAsPlanned(MeasureRanks(run), Recompute_Name(level));
  }
}

TEST(PlannedMemory, OfTheWeightsAverageIsWhatRanksHold) {
  for (const int replicas : {1, 2}) {
    RunSpec run = SmallRun(4, 2);
    run.mutable_optim()->set_ema_decay(0.999);
    run.mutable_parallel()->set_data_parallel_size(replicas);
    ExpectAsPlanned(MeasureRanks(run), std::to_string(replicas), replicas == 1 ? 0 : 12 * 4096);
  }
}

TEST(PlannedMemory, OfAModelOfOneStackIsWhatItHoldsAtEveryLevelOfRecomputation) {
  for (const Recompute level : {NONE, SELECTIVE_FFN, SELECTIVE_GEMM, FULL}) {
    for (const int ranks : {1, 2}) {
      RunSpec run = SmallRun(8, 4);
      run.mutable_model()->set_architecture(ranks == 1 ? ENCODER_ONLY : DECODER_ONLY);
      ranks == 1 ? run.mutable_model()->set_decoder_layers(0)
                 : run.mutable_model()->set_encoder_layers(0);
      run.mutable_data()->mutable_microbatch()->set_max_source_tokens(0);
      run.mutable_parallel()->set_recompute(level);
      run.mutable_parallel()->set_pipeline_parallel_size(ranks);
      ExpectAsPlanned(MeasureRanks(run), Recompute_Name(level));
    }
  }
}

// Few layers of many rows: what lies beside a stack is a large part of all.
RunSpec ManyRows(Residual residual, Norm norm, DataType dtype) {
  RunSpec run = SmallRun(2, 1);
  run.mutable_model()->set_residual(residual);
  run.mutable_model()->set_norm(norm);
  run.mutable_model()->set_vocabulary_size(64);
  run.mutable_data()->mutable_microbatch()->set_max_source_tokens(1500);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(1400);
  run.mutable_data()->mutable_microbatch()->set_max_sentences(60);
  run.mutable_parallel()->set_recompute(FULL);
  run.mutable_compute()->set_dtype(dtype);
  return run;
}

TEST(PlannedMemory, OfWhatSchemesHaveBesideAStackIsWhatARankHolds) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    for (const Residual residual : {B2T, RESIDUAL_DUAL, DLCL, SUB_LN, NORMFORMER, PERI_LN}) {
      ExpectAsPlanned(MeasureRanks(ManyRows(residual, LAYER_NORM, dtype)),
                      Residual_Name(residual) + " " + DataType_Name(dtype));
    }
    for (const Residual residual : {POST_LN, SUB_LN}) {
      ExpectAsPlanned(MeasureRanks(ManyRows(residual, BATCH_NORM, dtype)),
                      "BATCH_NORM " + Residual_Name(residual) + " " + DataType_Name(dtype));
    }
  }
}

TEST(PlannedMemory, OfBfloat16IsWhatARankHoldsAtEveryLevelOfRecomputation) {
  for (const Isa isa : {BASELINE, ISA_UNSPECIFIED}) {
    for (const Recompute level : {NONE, SELECTIVE_FFN, SELECTIVE_GEMM, FULL}) {
      RunSpec run = SmallRun(8, 3);
      run.mutable_compute()->set_dtype(BFLOAT16);
      run.mutable_compute()->set_isa(isa);
      run.mutable_parallel()->set_recompute(level);
      ExpectAsPlanned(MeasureRanks(run), Isa_Name(isa) + " bfloat16, " + Recompute_Name(level));
    }
  }
}

// Wide enough for activations to weigh more than fixed buffers do.
TEST(PlannedMemory, OfWideLayersIsWhatTwoStagesHoldInBothTypes) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    for (const Recompute level : {NONE, SELECTIVE_GEMM, FULL}) {
      RunSpec run = SmallRun(4, 3);
      run.mutable_model()->set_d_model(256);
      run.mutable_model()->set_ffn_dim(1024);
      run.mutable_model()->set_num_heads(4);
      run.mutable_model()->set_vocabulary_size(4000);
      run.mutable_data()->mutable_microbatch()->set_max_source_tokens(600);
      run.mutable_data()->mutable_microbatch()->set_max_target_tokens(560);
      run.mutable_data()->mutable_microbatch()->set_max_sentences(30);
      run.mutable_compute()->set_dtype(dtype);
      run.mutable_parallel()->set_recompute(level);
      run.mutable_parallel()->set_pipeline_parallel_size(2);
      run.mutable_parallel()->set_schedule("1f1b");
      ExpectAsPlanned(MeasureRanks(run), DataType_Name(dtype) + ", " + Recompute_Name(level));
    }
  }
}

// LibTorch's operations have temporaries, which the plan counts by their shapes.
TEST(PlannedMemory, OfLibTorchsOperationsIsWhatARankHolds) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    for (const Recompute level : {NONE, FULL}) {
      RunSpec run = SmallRun(4, 2);
      run.mutable_compute()->set_matmul(LIBRARY);
      run.mutable_compute()->set_dtype(dtype);
      run.mutable_parallel()->set_recompute(level);
      ExpectAsPlanned(MeasureRanks(run),
                      "LIBRARY, " + DataType_Name(dtype) + ", " + Recompute_Name(level));
    }
  }
}

// The logits of a small vocabulary take less than a layer's inside; an embedding's rank has none.
TEST(PlannedMemory, OfLibTorchsOperationsIsWhatStagesHold) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    RunSpec run = SmallRun(8, 4);
    run.mutable_model()->set_vocabulary_size(100);
    run.mutable_model()->set_activation_dropout(0.1);
    run.mutable_compute()->set_matmul(LIBRARY);
    run.mutable_compute()->set_dtype(dtype);
    run.mutable_parallel()->set_pipeline_parallel_size(2);
    run.mutable_parallel()->set_schedule("1f1b");
    ExpectAsPlanned(MeasureRanks(run), "LIBRARY, two stages, " + DataType_Name(dtype));
  }
}

TEST(PlannedMemory, OfEveryStageOfAPipelineIsWhatItHolds) {
  for (const Recompute level : {NONE, FULL}) {
    for (const int chunks : {1, 2}) {
      RunSpec run = SmallRun(8, 8);
      ParallelSpec& parallel = *run.mutable_parallel();
      parallel.set_recompute(level);
      parallel.set_pipeline_parallel_size(2);
      parallel.set_virtual_pipeline_size(chunks);
      parallel.set_schedule(chunks == 1 ? "1f1b" : "interleaved");
      ExpectAsPlanned(MeasureRanks(run),
                      Recompute_Name(level) + ", chunks " + std::to_string(chunks));
    }
  }
}

// Here a rank's chunks are full at different times: if each had buffers of its own, rank 2 would
// hold more than the plan allows.
TEST(PlannedMemory, OfChunksThatTakeTurnsIsWhatTheyHold) {
  RunSpec run = SmallRun(16, 16);
  run.mutable_parallel()->set_pipeline_parallel_size(4);
  run.mutable_parallel()->set_virtual_pipeline_size(4);
  run.mutable_parallel()->set_schedule("interleaved");
  ExpectAsPlanned(MeasureRanks(run), "four ranks of four chunks");
}

// `schedule` of `stages` stages and `replicas` replicas, four microbatches a replica. Sources are
// longer than targets, so that encoder and decoder layers have buffers of their own.
RunSpec Scheduled(const std::string& schedule, int stages, int replicas, int virtual_replicas) {
  RunSpec run = SmallRun(8, 4 * replicas);
  ParallelSpec& parallel = *run.mutable_parallel();
  parallel.set_pipeline_parallel_size(stages);
  parallel.set_data_parallel_size(replicas);
  parallel.set_schedule(schedule);
  parallel.set_virtual_pipeline_size(schedule == "interleaved" || schedule == "zb-v" ? 2 : 1);
  run.mutable_optim()->set_virtual_replicas(virtual_replicas);
  return run;
}

std::string NameOf(const RunSpec& run) {
  const ParallelSpec& parallel = run.parallel();
  return absl::StrFormat("%s, %d stages, %d replicas, R = %d", parallel.schedule(),
                         parallel.pipeline_parallel_size(), parallel.data_parallel_size(),
                         run.optim().virtual_replicas());
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

// Small layers: what lies at cuts, sums of virtual replicas and deferred weight gradients weigh
// most.
class PlannedMemoryOfSchedules : public ::testing::TestWithParam<const char*> {};

TEST_P(PlannedMemoryOfSchedules, IsWhatStagesOfEveryLayoutHold) {
  constexpr int64_t kBlockOfMoments = 4096 * 8;  // shares are dealt in whole blocks
  for (const int stages : {2, 4}) {
    for (const int replicas : {1, 2}) {
      for (int virtual_replicas = replicas; virtual_replicas <= 4; virtual_replicas *= 2) {
        const RunSpec run = Scheduled(GetParam(), stages, replicas, virtual_replicas);
        ExpectAsPlanned(MeasureRanks(run), NameOf(run), replicas == 1 ? 0 : kBlockOfMoments);
      }
    }
  }
}

TEST_P(PlannedMemoryOfSchedules, IsWhatStagesOfAMiddleWidthHold) {
  for (const int virtual_replicas : {1, 4}) {
    RunSpec run = Scheduled(GetParam(), /*stages=*/4, /*replicas=*/1, virtual_replicas);
    run.mutable_model()->set_d_model(192);
    run.mutable_model()->set_ffn_dim(768);
    run.mutable_model()->set_encoder_layers(5);
    run.mutable_model()->set_decoder_layers(5);
    ExpectAsPlanned(MeasureRanks(run), NameOf(run) + ", width 192");
  }
}

INSTANTIATE_TEST_SUITE_P(AllSchedules, PlannedMemoryOfSchedules, ::testing::ValuesIn(kSchedules),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// The copies that a save is written from and that instruments compare with: each element is in that
// of one rank, tied ones too.
TEST(PlannedMemory, OfCopiesIsWhatRanksCopy) {
  for (const int replicas : {1, 2}) {
    const RunSpec run = Scheduled("1f1b", /*stages=*/2, replicas, replicas);
    const int64_t uneven = replicas == 1 ? 0 : 4096;  // elements, of a block
    for (const RankBytes& rank : MeasureRanks(run)) {
      EXPECT_LE(std::abs(rank.copied - rank.planned_copy), 12 * uneven);
      EXPECT_LE(std::abs(rank.compared - rank.planned_compared), 4 * uneven);
      EXPECT_EQ(3 * rank.planned_compared, rank.planned_copy);
    }
  }
}

TEST(PlannedMemory, OfReplicasIsWhatTheyHold) {
  RunSpec run = SmallRun(8, 4);
  run.mutable_parallel()->set_data_parallel_size(2);
  run.mutable_optim()->set_virtual_replicas(4);
  constexpr int64_t kBlockOfMoments = 4096 * 8;  // shares are dealt in whole blocks
  ExpectAsPlanned(MeasureRanks(run), "two replicas of two virtual ones", kBlockOfMoments);
}

TEST(PlannedMemory, IsBoundedHoweverManyMicrobatchesAStepHas) {
  const auto peaks = [](int microbatches) {
    RunSpec run = SmallRun(6, microbatches);
    run.mutable_parallel()->set_pipeline_parallel_size(2);
    run.mutable_parallel()->set_schedule("1f1b");
    return MeasureRanks(run);
  };
  const std::vector<RankBytes> few = peaks(8), many = peaks(64);
  for (size_t r = 0; r < few.size(); ++r) {
    EXPECT_NEAR(static_cast<double>(many[r].measured) / static_cast<double>(few[r].measured), 1.0,
                kBoundedTolerance)
        << "rank " << r << ": " << few[r].ToText() << "\n"
        << many[r].ToText();
  }
}

// Every hypothesis becomes as long as it may, in a batch as large as the room allows.
TEST(DecodingMemory, ABatchTakesNoMoreThanWasCounted) {
  constexpr int64_t kRoom = int64_t{8} << 20;
  const ModelSpec spec = [] {
    ModelSpec model = SmallRun(2, 1).model();
    model.set_max_positions(200);
    model.set_layer_norm_epsilon(1e-5);
    return model;
  }();
  DecodeSpec decode;
  decode.set_beam_size(5);
  decode.set_max_tokens(100);
  decode.set_batch_tokens(250);
  ComputeSpec compute;
  compute.set_dtype(FLOAT32);
  compute.set_threads_per_rank(1);
  const auto ops = MakeNativeOps(compute);
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(250);
  capacity.set_max_target_tokens(40);
  capacity.set_max_sentences(40);
  Transformer model(spec, capacity, *ops, /*trainable=*/false);
  model.parameters().Initialize(5);
  model.Refresh();
  const auto limits = FitBatches(decode, {&spec, 1}, sizeof(float), kRoom);
  ASSERT_TRUE(limits.ok()) << limits.status();
  const auto sentences = static_cast<int>(limits->max_sentences);
  ASSERT_GT(sentences, 3);
  SearchBatch batch;
  for (int i = 0; i < sentences; ++i) {
    batch.sources.emplace_back(250 / sentences, 4 + i);
    batch.sources.back().back() = kEos;
  }
  ModelScorer scorer(model);
  TensorMemory memory("cpu");
  Search(scorer, batch, {.beam_size = 5, .min_tokens = 100, .max_tokens = 100});
  EXPECT_LE(memory.peak_bytes(), kRoom);
  EXPECT_GE(memory.peak_bytes(), kRoom / 2);
}

}  // namespace
}  // namespace deepnet
