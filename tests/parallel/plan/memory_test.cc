#include "parallel/plan/memory.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

#include "tests/parallel/plan/planner_toy.h"

namespace deepnet {
namespace {

using Pending = std::vector<PendingMatrices>;
using testing::kDecoderOperands;
using testing::kEncoderOperands;
using testing::kInner;
using testing::kPackedRows;
using testing::kRows;
using testing::kState;
using testing::kWidth;
using testing::Toy;

constexpr int64_t kStream = 4 * kRows * kWidth;  // bytes of one float32 stream

RankUse Whole(const Inventory& inventory, int slots = 1) {
  return {.chunks = {{.layers = {0, static_cast<int>(inventory.layers.size())}, .slots = slots}}};
}

TEST(Memory, CountsEveryCategoryOfAWholeModel) {
  const Inventory inventory = Toy(1);
  const MemoryEstimate memory = EstimateMemory(inventory, Whole(inventory, 3), {});
  constexpr int64_t kTable = 80, kMatrix = kInner * kWidth;
  EXPECT_EQ(memory.weights(), 4 * (kTable + 2 * kMatrix));
  EXPECT_EQ(memory.working_copies(), 2 * 4 * (kTable + 2 * kMatrix));  // the output multiplies it
  EXPECT_EQ(memory.gradients(), 4 * (3 * kTable + 2 * kMatrix));       // used three times
  EXPECT_EQ(memory.partial_sums(), 0);
  EXPECT_EQ(memory.moments(), 8 * (kTable + 2 * kMatrix));
  // Two layers with the first input of each stack, and the gradient that the loss leaves.
  EXPECT_EQ(memory.activations(),
            3 * (2 * kState + 4 * (kEncoderOperands + kDecoderOperands) + 2 * kStream + kStream));
  // Two streams; three memories.
  EXPECT_EQ(memory.boundary(), 2 * kStream + 3 * kStream);
  EXPECT_EQ(memory.recompute(), 0);
  EXPECT_EQ(memory.workspace(), 2 * 4 * kRows * (8 * kWidth + kInner) + 4 * kPackedRows * kInner);
  EXPECT_EQ(memory.logits(), 4 * kRows * 10);  // the gradient is made in their place
  EXPECT_EQ(memory.communication(), 0);
  EXPECT_EQ(memory.total(), memory.weights() + memory.working_copies() + memory.gradients() +
                                memory.moments() + memory.activations() + memory.boundary() +
                                memory.workspace() + memory.logits());
}

TEST(Memory, ARankPaysOnlyForItsOwnLayers) {
  const RankUse encoder{.chunks = {{.layers = {0, 2}}}};
  const MemoryEstimate memory = EstimateMemory(Toy(1), encoder, {});
  EXPECT_EQ(memory.gradients(), 4 * (80 + kInner * kWidth));
  EXPECT_EQ(memory.working_copies(), 2 * 4 * kInner * kWidth);  // a table looked up is not packed
  EXPECT_EQ(memory.boundary(), kStream);                        // the stream alone
  EXPECT_EQ(memory.workspace(), 4 * kRows * (8 * kWidth + kInner) + 4 * kPackedRows * kInner);
  EXPECT_EQ(memory.logits(), 0);
  // A decoder layer works on the encoder's rows too; an embedding on no other rows.
  const RankUse decoder{.chunks = {{.layers = {3, 4}}}}, target{.chunks = {{.layers = {2, 3}}}};
  EXPECT_EQ(EstimateMemory(Toy(1), decoder, {}).workspace(),
            2 * 4 * kRows * (8 * kWidth + kInner) + 4 * kPackedRows * kInner);
  EXPECT_EQ(EstimateMemory(Toy(1), target, {}).boundary(), 0);
}

TEST(Memory, ATiedTableOfTwoChunksIsHeldOnceAndSummedForEachUse) {
  const RankUse ends{.chunks = {{.layers = {0, 1}}, {.layers = {4, 5}}}};
  const MemoryEstimate memory = EstimateMemory(Toy(1), ends, {});
  EXPECT_EQ(memory.weights(), 4 * 80);
  EXPECT_EQ(memory.gradients(), 2 * 4 * 80);
  EXPECT_EQ(memory.moments(), 8 * 80);
}

// Every element of the model is in one rank's copy.
TEST(Memory, ATiedTableIsCopiedForSavingByItsFirstStage) {
  const Inventory inventory = Toy(1);
  const auto copied = [&](LayerSpan layers, int replicas) {
    return EstimateMemory(inventory, {.chunks = {{.layers = layers}}, .num_replicas = replicas},
                          {.snapshot = true})
        .snapshot();
  };
  EXPECT_EQ(copied({0, 1}, 1), 12 * 80);
  EXPECT_EQ(copied({4, 5}, 1), 0);
  EXPECT_EQ(copied({0, 2}, 1) + copied({2, 5}, 1), copied({0, 5}, 1));
  EXPECT_EQ(copied({3, 5}, 2), copied({3, 4}, 2));
}

TEST(Memory, ChunksThatAreNotFullTogetherShareBuffersOfOneKind) {
  const Inventory inventory = Toy(4);  // layers 1..4 encode, 6..9 decode
  RankUse rank{.chunks = {{.layers = {1, 2}, .slots = 3}, {.layers = {3, 5}, .slots = 3}}};
  const auto bytes = [&] { return EstimateMemory(inventory, rank, {}).activations(); };
  const int64_t layer = kState + 4 * kEncoderOperands, first = kStream;
  EXPECT_EQ(bytes(), 3 * (layer + first) + 3 * (2 * layer + first));
  rank.peaks = {{3, 1}, {1, 3}};
  EXPECT_EQ(bytes(), (layer + first) + 3 * (2 * layer + first));
  // Layers of the other kind have other buffers: each kind is as full as it gets.
  rank.chunks[1].layers = {6, 8};
  const int64_t decoder = kState + 4 * kDecoderOperands;
  EXPECT_EQ(bytes(), 3 * (layer + first) + 3 * (2 * decoder + first));
}

// A layer outside of stacks keeps its own for every slot of its chunk, whatever the peaks are.
TEST(Memory, PeaksSpareNeitherDeferredGradientsNorLayersOutsideOfStacks) {
  const Inventory inventory = Toy(1);
  RankUse rank = Whole(inventory, 3);
  rank.peaks = {{1}};
  rank.deferred_bytes = 123;
  EXPECT_EQ(
      EstimateMemory(inventory, rank, {}).activations(),
      123 + 3 * kStream + 2 * kState + 4 * (kEncoderOperands + kDecoderOperands) + 2 * kStream);
}

// Every category, also one that a later program adds.
TEST(Memory, TheTotalIsTheSumOfAllOtherFields) {
  const Inventory inventory = Toy(4);
  RankUse rank{.chunks = {{.layers = {0, 11}, .message_bytes = 10}},
               .recompute = {SELECTIVE_GEMM, 1},
               .partial_sums = 1,
               .num_replicas = 2};
  const MemoryEstimate memory =
      EstimateMemory(inventory, rank, {.snapshot = true, .instruments = true});
  int64_t sum = 0;
  for (int i = 0; i < MemoryEstimate::descriptor()->field_count(); ++i) {
    const auto* field = MemoryEstimate::descriptor()->field(i);
    if (field->name() == "total" || field->name() == "gpu") continue;
    const int64_t bytes = memory.GetReflection()->GetInt64(memory, field);
    EXPECT_GT(bytes, 0) << field->name();
    sum += bytes;
  }
  EXPECT_EQ(memory.total(), sum);
}

TEST(Memory, TheEncodersEndKeepsTheMemoryForALaterChunkOfItsRank) {
  const Inventory inventory = Toy(1);
  RankUse rank{.chunks = {{.layers = {1, 2}, .slots = 5}, {.layers = {3, 4}, .slots = 2}}};
  EXPECT_EQ(EstimateMemory(inventory, rank, {}).boundary(), 2 * kStream + 5 * kStream);
}

TEST(Memory, ConstantsAreHeldOncePerLayer) {
  Inventory inventory = Toy(1);
  const int64_t without = EstimateMemory(inventory, Whole(inventory, 3), {}).workspace();
  inventory.layers[0].constant_bytes = 1000;
  EXPECT_EQ(EstimateMemory(inventory, Whole(inventory, 3), {}).workspace(), without + 1000);
}

TEST(Memory, EachLevelKeepsLess) {
  const Inventory inventory = Toy(4);
  const LayerSpan encoder{1, 5};
  const auto kept = [&](Recompute level, int segment = 1) {
    return KeptBytes(inventory, encoder, {level, segment}, {});
  };
  EXPECT_EQ(kept(NONE), 4 * (kState + 4 * kEncoderOperands) + kStream);
  EXPECT_EQ(kept(SELECTIVE_FFN), 4 * (kState + 4 * kRows * 4 * kWidth) + kStream);
  EXPECT_EQ(kept(SELECTIVE_GEMM), 4 * (kState + 4 * kRows * kWidth) + kStream);  // contexts stay
  EXPECT_EQ(kept(FULL), 4 * kStream);
  EXPECT_EQ(kept(FULL, 3), 2 * kStream);       // three layers, then one
  const MemoryRules half{.operand_bytes = 2};  // of what products take; segments begin with float32
  EXPECT_EQ(KeptBytes(inventory, encoder, {NONE, 1}, half),
            4 * (kState + 2 * kEncoderOperands) + kStream / 2);
  EXPECT_EQ(KeptBytes(inventory, encoder, {FULL, 1}, half), 4 * kStream);
}

TEST(Memory, SegmentsEndWithTheirStack) {
  const Inventory inventory = Toy(3);  // layers 1..3 encode, 5..7 decode
  EXPECT_EQ(KeptBytes(inventory, {2, 7}, {FULL, 8}, {}), 2 * kStream);
}

TEST(Memory, RecomputationNeedsOneLayerOrSegmentOnce) {
  const Inventory inventory = Toy(4);
  RankUse rank{.chunks = {{.layers = {1, 5}, .slots = 7}}};
  const auto again = [&](Recompute level, int segment = 1) {
    rank.recompute = {level, segment};
    return EstimateMemory(inventory, rank, {}).recompute();
  };
  EXPECT_EQ(again(NONE), 0);
  EXPECT_EQ(again(SELECTIVE_FFN), 4 * kRows * kInner);
  EXPECT_EQ(again(SELECTIVE_GEMM), 4 * kRows * (kInner + 3 * kWidth));
  EXPECT_EQ(again(FULL, 2), 2 * (kState + 4 * kEncoderOperands) + kStream);
  EXPECT_EQ(again(FULL, 8), 4 * (kState + 4 * kEncoderOperands) + kStream);
  rank.chunks = {{.layers = {1, 2}}, {.layers = {2, 5}}};  // which are never computed again at once
  EXPECT_EQ(again(FULL, 8), 3 * (kState + 4 * kEncoderOperands) + kStream);
}

TEST(Memory, DeferredWeightGradientsHoldBothOperandsOfEveryProduct) {
  const Inventory inventory = Toy(1);
  const int64_t encoder = 4 * kRows * ((3 + 1 + 1 + 1 + 1 + 1) * kWidth + 2 * kInner);
  EXPECT_EQ(PendingBytes(MakePendingMatrices(inventory, {0, 2}, {})), encoder);
  // q, its input, the output, its input; keys and values; the encoder output itself.
  EXPECT_EQ(PendingBytes(MakePendingMatrices(inventory, {3, 4}, {})),
            encoder + 4 * kRows * (4 + 2 + 1) * kWidth);
  EXPECT_EQ(PendingBytes(MakePendingMatrices(Toy(2), {4, 6}, {})),
            2 * (encoder + 4 * kRows * (4 + 2) * kWidth) + 4 * kRows * kWidth);
  EXPECT_TRUE(MakePendingMatrices(inventory, {0, 5}, {}).contains({kRows, kInner}));
  RankUse rank = Whole(inventory);
  const int64_t without = EstimateMemory(inventory, rank, {}).activations();
  rank.deferred_bytes = 123;
  EXPECT_EQ(EstimateMemory(inventory, rank, {}).activations(), without + 123);
}

TEST(Memory, ReplicasShareMomentsAndExchangeParts) {
  const Inventory inventory = Toy(1);
  RankUse rank = Whole(inventory);
  rank.num_replicas = 4;
  const MemoryEstimate memory = EstimateMemory(inventory, rank, {});
  EXPECT_EQ(memory.moments(), 8 * (80 + 2 * kInner * kWidth) / 4);
  EXPECT_EQ(memory.communication(), memory.gradients() / 4 * 3);
  // Two other stages use this table too.
  const RankUse source{.chunks = {{.layers = {0, 1}}}, .num_replicas = 4};
  EXPECT_EQ(EstimateMemory(inventory, source, {}).communication(), 320 / 4 * 3 + 2 * 320 / 4);
}

TEST(Memory, TheWeightsAverageIsSharedLikeMoments) {
  const Inventory inventory = Toy(1);
  RankUse rank = Whole(inventory);
  rank.num_replicas = 4;
  const MemoryRules with{.snapshot = true, .average = true}, without{.snapshot = true};
  const MemoryEstimate memory = EstimateMemory(inventory, rank, with);
  const MemoryEstimate before = EstimateMemory(inventory, rank, without);
  const int64_t share = (80 + 2 * kInner * kWidth) / 4;
  EXPECT_EQ(memory.moments(), 12 * share);
  EXPECT_EQ(memory.snapshot() - before.snapshot(), 4 * share);
  EXPECT_EQ(memory.workspace() - before.workspace(), 4 * share);
}

TEST(Memory, WaitingSumsAreWholeGradients) {
  const Inventory inventory = Toy(1);
  RankUse rank = Whole(inventory);
  rank.partial_sums = 3;
  const MemoryEstimate memory = EstimateMemory(inventory, rank, {});
  EXPECT_EQ(memory.partial_sums(), 3 * memory.gradients());
}

TEST(Memory, OnlyTheLargestMessageOfARankHasBuffers) {
  const Inventory inventory = Toy(4);
  RankUse rank{
      .chunks = {{.layers = {1, 2}, .message_bytes = 10}, {.layers = {3, 4}, .message_bytes = 30}}};
  const int64_t with = EstimateMemory(inventory, rank, {}).boundary();
  for (ChunkUse& chunk : rank.chunks) chunk.message_bytes = 0;
  EXPECT_EQ(with - EstimateMemory(inventory, rank, {}).boundary(), kMessageSlots * 30);
}

// Six tensors of logits' size at once; without an output layer, what the widest operation needs.
TEST(Memory, LibTorchsOperationsHaveTemporaries) {
  const Inventory inventory = Toy(1);
  const MemoryRules library{.num_packed_copies = 0, .native = false};
  EXPECT_EQ(EstimateMemory(inventory, Whole(inventory), library).logits(), 6 * 4 * kRows * 10);
  const RankUse encoder{.chunks = {{.layers = {1, 2}}}};
  MemoryRules bare = library;  // the same without either kind's extras
  bare.native = true;
  const int64_t packed = 4 * kPackedRows * kInner;
  const int64_t without = EstimateMemory(inventory, encoder, bare).workspace() - packed;
  constexpr int64_t kUpdate = 2 * 4 * kInner * kWidth, kRelu = 13 * kRows * kInner;
  EXPECT_EQ(EstimateMemory(inventory, encoder, library).workspace() - without,
            std::max(kUpdate, kRelu));
  // Temporaries take the place of the logits: what exceeds those is counted.
  EXPECT_EQ(EstimateMemory(inventory, Whole(inventory), library).workspace(),
            2 * 4 * kRows * (8 * kWidth + kInner) + 2 * 4 * (80 + 2 * kInner * kWidth) -
                6 * 4 * kRows * 10);
}

TEST(Memory, FollowsTheArithmetic) {
  ComputeSpec compute;
  EXPECT_EQ(MakeMemoryRules(compute).operand_bytes, 4);
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 2);
  compute.set_dtype(BFLOAT16);
  EXPECT_EQ(MakeMemoryRules(compute).operand_bytes, 2);
  EXPECT_EQ(MakeMemoryRules(compute).packed_bytes, 4);
  compute.set_isa(AVX512_BF16);
  EXPECT_EQ(MakeMemoryRules(compute).packed_bytes, 2);
  compute.set_device("cuda");
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 1);
  compute.set_dtype(FLOAT32);
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 0);
}

TEST(Memory, OfAGpuHasWhatLiesBesideTensors) {
  ComputeSpec compute;
  compute.set_device("cuda");
  compute.set_dtype(BFLOAT16);
  Inventory inventory = Toy(1);
  inventory.batch_bytes = 1000;
  inventory.layers.back().device_loss = {{.bytes = 70, .copies = 5}};
  inventory.stacks[1].device_scratch = {.bytes = 300};
  RankUse rank = Whole(inventory, 3);
  const auto estimate = [&] { return EstimateMemory(inventory, rank, MakeMemoryRules(compute)); };
  const MemoryEstimate memory = estimate();
  EXPECT_EQ(memory.working_copies(), memory.weights() / 2);
  const RankUse looks_up{.chunks = {{.layers = {0, 2}}}};  // and multiplies by no table
  const MemoryEstimate encoder = EstimateMemory(inventory, looks_up, MakeMemoryRules(compute));
  EXPECT_EQ(encoder.working_copies(), encoder.weights() / 2);
  EXPECT_EQ(memory.logits(), 70 + 2 * 5);
  EXPECT_EQ(memory.gpu().messages(), 0);
  inventory.stacks[1].device_scratch = {};
  EXPECT_EQ(memory.workspace(), estimate().workspace() + 300);
  rank.microbatches = 3;
  rank.lanes = 2;
  rank.num_replicas = 2;
  EXPECT_EQ(estimate().gpu().uploads(), memory.gpu().uploads() + 2000);
  EXPECT_EQ(estimate().gpu().messages(), 2 * kLaneBytes + ReplicasBytes(2));
  const MemoryEstimate more = estimate();
  EXPECT_EQ(more.total(), TensorBytes(more) + more.gpu().fragmentation() + more.gpu().context() +
                              more.gpu().messages());
  EXPECT_EQ(ArenaBytes(more), TensorBytes(more) + more.gpu().fragmentation() - kProductsBytes);
  EXPECT_GT(ReplicasBytes(8), ReplicasBytes(7));
  EXPECT_EQ(ReplicasBytes(64), ReplicasBytes(8));  // of one node
  inventory.work = {{.forward = {{.name = "kernel", .launches = 5}}}};
  for (Layer& layer : inventory.layers) layer.work = 0;
  EXPECT_EQ(estimate().gpu().graphs(), 0);
  compute.set_cuda_graphs(true);
  const auto layers = static_cast<int64_t>(inventory.layers.size());
  EXPECT_EQ(estimate().gpu().graphs(), rank.chunks[0].slots * layers * 5 * kGraphNodeBytes);
  EXPECT_EQ(estimate().total(), more.total() + estimate().gpu().graphs());
  EXPECT_EQ(ArenaBytes(estimate()), ArenaBytes(more));
  EXPECT_FALSE(EstimateMemory(inventory, rank, MakeMemoryRules(ComputeSpec())).has_gpu());
}

constexpr Op F = Op::kForward, I = Op::kBackwardInput, W = Op::kBackwardWeight, B = Op::kBackward;

int64_t DeferredBytes(const std::vector<Action>& actions, const Pending& pending, int per_sum) {
  return CountInFlight(Schedule{{actions}}, pending, per_sum).deferred_bytes.at(0);
}

TEST(CountInFlight, FindsTheMostOfEveryChunkAndThePeaksWhenNoOtherMomentHasAsMuch) {
  const PeakInFlight most = CountInFlight(Schedule{{{{F, 0, 0},
                                                     {F, 0, 1},
                                                     {F, 1, 0},
                                                     {B, 0, 0},
                                                     {F, 1, 1},
                                                     {B, 1, 0},
                                                     {B, 1, 1},
                                                     {B, 0, 1}}}},
                                          Pending(2), /*per_sum=*/2);
  EXPECT_EQ(most.slots, (std::vector<int>{2, 2}));
  EXPECT_EQ(most.peaks.at(0), (std::vector<std::vector<int>>{{2, 1}, {1, 2}}));
  EXPECT_EQ(most.deferred_bytes, std::vector<int64_t>{0});
}

TEST(CountInFlight, WeightGradientsOfAVirtualReplicaAreThereBeforeTheNextOneBegins) {
  const Pending pending = {{{{5, 2}, 10}}};
  const std::vector<Action> late = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {I, 0, 0}, {I, 0, 1},
                                    {I, 0, 2}, {W, 0, 0}, {W, 0, 1}, {W, 0, 2}};
  EXPECT_EQ(DeferredBytes(late, pending, 3), 30);
  EXPECT_EQ(DeferredBytes(late, pending, 2), 20);
  EXPECT_EQ(DeferredBytes(late, pending, 1), 10);
}

TEST(CountInFlight, AWholeBackwardPassBeginsAVirtualReplicaToo) {
  const Pending pending = {{{{5, 2}, 10}}};
  const std::vector<Action> mixed = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {I, 0, 0},
                                     {B, 0, 1}, {I, 0, 2}, {W, 0, 0}, {W, 0, 2}};
  EXPECT_EQ(DeferredBytes(mixed, pending, 3), 20);
  EXPECT_EQ(DeferredBytes(mixed, pending, 1), 10);
}

// The first chunk's matrices wait before those of the second.
TEST(CountInFlight, ChunksLendEachOtherBuffersOfOneShapeAlone) {
  const std::vector<Action> turns = {{F, 0, 0}, {F, 1, 0}, {I, 1, 0},
                                     {W, 1, 0}, {I, 0, 0}, {W, 0, 0}};
  const PendingMatrices small{{{5, 2}, 10}}, large{{{5, 2}, 30}}, other{{{2, 5}, 10}};
  const PendingMatrices both{{{5, 2}, 10}, {{2, 5}, 10}};
  EXPECT_EQ(DeferredBytes(turns, {small, large}, 1), 30);
  EXPECT_EQ(DeferredBytes(turns, {other, large}, 1), 40);
  EXPECT_EQ(DeferredBytes(turns, {both, large}, 1), 40);
}

}  // namespace

}  // namespace deepnet
