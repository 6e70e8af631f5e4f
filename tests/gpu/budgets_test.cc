// A pass of a model launches, waits and allocates on a GPU as often as stated here, by the count of
// the emulated GPU: these bounds stand in place of a stopwatch.
//
// The cost of a layer is the difference between two models of which one has a layer more. The
// second pass is counted, since the first one makes buffers.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "tests/gpu/emulated/device.h"
#include "tests/support/tiny_model.h"
#include "tests/support/whole_pass.h"
#include "trainer/data/batcher.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"
#include "trainer/model/transformer.h"
#include "trainer/model/work.h"
#include "trainer/rank_context.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

struct Costs {
  int64_t forward = 0;   // launches
  int64_t backward = 0;  // launches
  int64_t waits = 0;
  int64_t allocations = 0;
};

Costs CostsOf(const ModelSpec& spec) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  const auto ops = MakeCudaOps(guard.getDevice(), at::kBFloat16, /*check_launches=*/false);
  Transformer model(spec, testing::TinyCapacity(), *ops, /*trainable=*/true);
  model.parameters().Initialize(5);
  const auto kept = model.MakeActivations(/*shared=*/false);
  const Microbatch mb = testing::TinyMicrobatch(spec, 3);
  Costs costs;
  model.Refresh();  // converted by the first pass
  for (int pass = 0; pass < 2; ++pass) {
    const emulated_gpu::Counters start = emulated_gpu::ReadCounters();
    testing::Forward(model, mb, 1, 2, /*training=*/true, {.label_smoothing = 0.1}, *kept);
    const emulated_gpu::Counters middle = emulated_gpu::ReadCounters();
    testing::Backward(model, mb, 1, 2, *kept);
    const emulated_gpu::Counters end = emulated_gpu::ReadCounters();
    costs = {.forward = middle.launches - start.launches,
             .backward = end.launches - middle.launches,
             .waits = end.waits - start.waits,
             .allocations = end.allocations - start.allocations};
  }
  return costs;
}

ModelSpec Spec(Residual residual) {
  ModelSpec spec = testing::WithResidual(testing::TinySpec(), residual);
  spec.set_ffn_dim(16);  // whole eights, as models have them: biases lie aligned
  spec.set_dropout(0.1);
  spec.set_attention_dropout(0.1);
  return spec;
}

// Launches of a layer, forward and backward.
struct LayerCosts {
  int64_t encoder_forward, encoder_backward, decoder_forward, decoder_backward;

  friend bool operator==(const LayerCosts&, const LayerCosts&) = default;
};

LayerCosts LayerCostsOf(const ModelSpec& spec, const Costs& model) {
  ModelSpec longer = spec;
  longer.set_encoder_layers(spec.encoder_layers() + 1);
  const Costs encoder = CostsOf(longer);
  longer = spec;
  longer.set_decoder_layers(spec.decoder_layers() + 1);
  const Costs decoder = CostsOf(longer);
  return {encoder.forward - model.forward, encoder.backward - model.backward,
          decoder.forward - model.forward, decoder.backward - model.backward};
}

TEST(GpuBudgets, OfADeepNormLayerAndOfWhatIsAroundLayers) {
  const ModelSpec spec = Spec(DEEPNORM);
  const Costs model = CostsOf(spec);
  const LayerCosts layer = LayerCostsOf(spec, model);
  EXPECT_LE(layer.encoder_forward, 9);
  EXPECT_LE(layer.encoder_backward, 20);
  EXPECT_LE(layer.decoder_forward, 15);
  EXPECT_LE(layer.decoder_backward, 34);
  // Embeddings, output and loss: 6 launches and 4 for each chunk of logits, of which there is one.
  EXPECT_LE(model.forward - spec.encoder_layers() * layer.encoder_forward -
                spec.decoder_layers() * layer.decoder_forward,
            10);
}

// The most launches of each scheme. Biases behind a scheme's single factors are copied for
// products.
const std::map<Residual, LayerCosts> kBudgets = {
    {DEEPNORM, {7, 20, 12, 34}},
    {POST_LN, {7, 20, 12, 34}},
    {PRE_LN, {9, 22, 15, 37}},
    {POST_LN_INIT, {7, 20, 12, 34}},
    {DS_INIT, {7, 20, 12, 34}},
    {ADMIN, {11, 24, 18, 40}},
    {REZERO, {19, 22, 31, 37}},
    {R_FIXUP, {20, 30, 30, 45}},
    {T_FIXUP, {11, 18, 18, 31}},
    {NORMFORMER, {14, 31, 23, 46}},
    {SUB_LN, {11, 29, 17, 44}},
    {RESIDUAL_ONLY, {11, 18, 18, 31}},
    {NORM_ONLY, {7, 20, 12, 34}},
    {NEITHER, {11, 18, 18, 31}},
    {B2T, {9, 22, 14, 36}},
    {MIX_LN, {9, 22, 12, 34}},
    {LAYERNORM_SCALING, {11, 26, 18, 43}},
    {PERI_LN, {11, 26, 18, 43}},
    {KEEL, {9, 24, 15, 40}},
    {DLCL, {18, 37, 25, 55}},
    {RESIDUAL_DUAL, {9, 20, 15, 34}},
    {BRANCH_NORM, {9, 22, 15, 37}},
};

// The table of kernels that plans take their seconds from, held to what a pass really launches.

using Launches = std::map<std::string, int64_t>;

using Bytes = std::map<std::string, double>;

struct PassWork {
  Launches forward, backward;
  emulated_gpu::Counters products;  // of both
  Bytes bytes;                      // of both, by kernel
};

// Sentences for a model, with the capacity of the buffers that they lie in.
struct Rows {
  Microbatch microbatch;
  MicrobatchSpec capacity;
};

Rows TinyRows(const ModelSpec& spec) {
  return {testing::TinyMicrobatch(spec, 3), testing::TinyCapacityOf(spec)};
}

Launches Since(const Launches& before, const Launches& now) {
  Launches since;
  for (const auto& [name, count] : now) {
    const auto old = before.find(name);
    const int64_t more = count - (old == before.end() ? 0 : old->second);
    if (more != 0) since[name] = more;
  }
  return since;
}

// LibTorch's flash attention has another name here.
template <typename ByName>
ByName Renamed(ByName launches) {
  for (const auto& [here, there] :
       {std::pair{"flash_attention_forward", "FlashAttentionForward"},
        std::pair{"flash_attention_backward", "FlashAttentionBackward"}}) {
    auto node = launches.extract(here);
    if (node.empty()) continue;
    node.key() = there;
    launches.insert(std::move(node));
  }
  return launches;
}

PassWork WorkOf(const ModelSpec& spec, const Rows& rows, at::ScalarType operand,
                AttentionKernel attention, bool watches = false) {
  const c10::impl::VirtualGuardImpl guard(GpuType().value());
  guard.setDevice({guard.type(), 0});
  const auto ops = MakeCudaOps(guard.getDevice(), operand, /*check_launches=*/false, attention);
  Transformer model(spec, rows.capacity, *ops, /*trainable=*/true);
  model.parameters().Initialize(5);
  const auto kept = model.MakeActivations(/*shared=*/false);
  const Microbatch& mb = rows.microbatch;
  model.Refresh();
  constexpr int64_t kStep = 10;  // behind BRANCH_NORM's ramp
  testing::Forward(model, mb, 1, kStep, /*training=*/true, {.label_smoothing = 0.1}, *kept);
  ops->session().ReadBack();
  const emulated_gpu::Counters start = emulated_gpu::ReadCounters();
  const Launches before = emulated_gpu::ReadLaunches();
  const auto touched_before = emulated_gpu::ReadTouched();
  emulated_gpu::WatchMemory(watches);
  testing::Forward(model, mb, 1, kStep, /*training=*/true, {.label_smoothing = 0.1}, *kept);
  const Launches middle = emulated_gpu::ReadLaunches();
  testing::Backward(model, mb, 1, kStep, *kept);
  emulated_gpu::Counters products = emulated_gpu::ReadCounters();
  products.product_operations -= start.product_operations;
  products.product_bytes -= start.product_bytes;
  ops->session().ReadBack();
  emulated_gpu::WatchMemory(false);
  Bytes bytes;
  for (const auto& [name, touched] : emulated_gpu::ReadTouched()) {
    bytes[name] = static_cast<double>(touched.read + touched.written);
  }
  for (const auto& [name, touched] : touched_before) {
    bytes[name] -= static_cast<double>(touched.read + touched.written);
  }
  return {.forward = Renamed(Since(before, middle)),
          .backward = Renamed(Since(middle, emulated_gpu::ReadLaunches())),
          .products = products,
          .bytes = Renamed(std::move(bytes))};
}

void AddTo(Launches& launches, const std::vector<KernelWork>& kernels) {
  for (const KernelWork& kernel : kernels) {
    if (kernel.name != kZeroFill) launches[kernel.name] += kernel.launches;
  }
}

// The same by the table, for the rows that the microbatch really has.
PassWork PlannedWork(const ModelSpec& spec, const Microbatch& mb, DataType dtype,
                     AttentionKernel attention) {
  MicrobatchSpec rows;
  rows.set_max_source_tokens(mb.source.NumTokens());
  rows.set_max_target_tokens(mb.target.NumTokens());
  rows.set_max_sentences(mb.num_sentences);
  ComputeSpec compute;
  compute.set_device("cuda");
  compute.set_dtype(dtype);
  compute.set_attention(attention);
  Inventory inventory = Describe(spec, rows);
  DescribeWork(spec, rows, compute, inventory);
  PassWork planned;
  double operations = 0, bytes = 0;
  for (const Layer& layer : inventory.layers) {
    const LayerWork& work = inventory.work[layer.work];
    AddTo(planned.forward, work.forward);
    AddTo(planned.backward, work.backward_input);
    AddTo(planned.backward, work.backward_weight);
    for (const auto* kernels : {&work.forward, &work.backward_input, &work.backward_weight}) {
      for (const KernelWork& kernel : *kernels) {
        planned.bytes[kernel.name] += kernel.bytes;
        if (kernel.product.depth == 0) continue;
        operations += kernel.flops;
        bytes += kernel.bytes;
      }
    }
  }
  planned.products.product_operations = static_cast<int64_t>(operations);
  planned.products.product_bytes = static_cast<int64_t>(bytes);
  return planned;
}

void ExpectAsPlanned(const ModelSpec& spec, const Rows& rows, at::ScalarType operand,
                     DataType dtype, AttentionKernel attention) {
  const PassWork counted = WorkOf(spec, rows, operand, attention);
  const PassWork planned = PlannedWork(spec, rows.microbatch, dtype, attention);
  EXPECT_EQ(counted.forward, planned.forward);
  EXPECT_EQ(counted.backward, planned.backward);
  EXPECT_EQ(counted.products.product_operations, planned.products.product_operations);
  EXPECT_EQ(counted.products.product_bytes, planned.products.product_bytes);
}

void ExpectAsPlanned(const ModelSpec& spec, at::ScalarType operand, DataType dtype,
                     AttentionKernel attention) {
  ExpectAsPlanned(spec, TinyRows(spec), operand, dtype, attention);
}

TEST(GpuBudgets, ThePlannersTableOfKernelsIsWhatEverySchemeLaunches) {
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    ExpectAsPlanned(Spec(residual), at::kBFloat16, BFLOAT16, OWN);
  }
}

TEST(GpuBudgets, ThePlannersTableOfKernelsHoldsForOtherModels) {
  const auto with = [](Residual residual, const auto& change) {
    ModelSpec spec = Spec(residual);
    change(spec);
    return spec;
  };
  const auto gelu = [](ModelSpec& spec) {
    spec.set_activation(GELU);
    spec.set_activation_dropout(0.1);
    spec.set_positions(LEARNED);
  };
  const auto plain = [](ModelSpec& spec) {
    spec.set_dropout(0);
    spec.set_attention_dropout(0);
    spec.set_activation_dropout(0.1);
    spec.set_norm(RMS_NORM);
  };
  const auto over_rows = [](ModelSpec& spec) { spec.set_norm(BATCH_NORM); };
  for (const Residual residual : {DEEPNORM, PRE_LN, NORMFORMER, R_FIXUP}) {
    SCOPED_TRACE(Residual_Name(residual));
    ExpectAsPlanned(with(residual, gelu), at::kBFloat16, BFLOAT16, OWN);
    ExpectAsPlanned(with(residual, plain), at::kFloat, FLOAT32, OWN);
    ExpectAsPlanned(with(residual, over_rows), at::kBFloat16, BFLOAT16, OWN);
  }
  for (const Architecture architecture : {DECODER_ONLY, ENCODER_ONLY}) {
    ExpectAsPlanned(testing::WithArchitecture(Spec(PRE_LN), architecture), at::kBFloat16, BFLOAT16,
                    OWN);
  }
  ModelSpec flash = Spec(DEEPNORM);  // heads of 8 features
  flash.set_d_model(16);
  flash.set_attention_dropout(0);
  ExpectAsPlanned(flash, at::kBFloat16, BFLOAT16, FLASH);
}

// Wide enough that tensors of rows have many pages.
ModelSpec WideSpec(Residual residual) {
  ModelSpec spec = Spec(residual);
  spec.set_encoder_layers(1);
  spec.set_decoder_layers(1);
  spec.set_d_model(256);
  spec.set_ffn_dim(512);
  spec.set_num_heads(4);
  spec.set_vocabulary_size(512);
  spec.set_max_positions(64);
  return spec;
}

// Sentences of 40 tokens, each of its own.
Rows LongRows(int sentences) {
  constexpr int kLength = 40;
  MicrobatchSpec capacity;
  capacity.set_max_source_tokens(sentences * kLength);
  capacity.set_max_target_tokens(sentences * kLength);
  capacity.set_max_sentences(sentences);
  MicrobatchBuilder builder({sentences * kLength, sentences * kLength, sentences});
  for (int s = 0; s < sentences; ++s) {
    std::vector<int32_t> ids(kLength);
    std::iota(ids.begin(), ids.end(), 4 + s * kLength);
    builder.Add(static_cast<uint32_t>(s), {ids, ids});
  }
  return {std::move(builder).Build(), capacity};
}

TEST(GpuBudgets, ThePlannersTableOfKernelsHoldsForSoManyRowsThatBiasesHavePartialSums) {
  ModelSpec spec = Spec(DEEPNORM);
  spec.set_vocabulary_size(800);
  spec.set_max_positions(64);
  ExpectAsPlanned(spec, LongRows(16), at::kBFloat16, BFLOAT16, OWN);
}

// Kernels that read a tensor again, or rows of a table that others read too: the table has more.
const std::set<std::string> kReadAgain = {"BatchNorm", "BatchNormBackward", "CrossEntropy",
                                          "EmbedForward"};
// Kernels that read or write a part of rows, those of q, k and v beside each other: pages hold
// parts of all three.
const std::set<std::string> kPartsOfRows = {"AttentionForward", "AttentionQueryGradient",
                                            "AttentionKeyGradient", "BiasGradient"};

// The bytes of the table beside those of the pages that kernels touch. They may differ by the ends
// of tensors and by what counts nothing: vectors of features, statistics of rows.
void ExpectBytesAsPlanned(const ModelSpec& spec, at::ScalarType operand, DataType dtype) {
  constexpr double kPage = 4096, kPagesApart = 5, kShareApart = 0.08;
  const Rows rows = LongRows(4);
  const PassWork counted = WorkOf(spec, rows, operand, OWN, /*watches=*/true);
  const PassWork planned = PlannedWork(spec, rows.microbatch, dtype, OWN);
  const auto launches = [](const Launches& of, const std::string& name) {
    return of.contains(name) ? of.at(name) : 0;
  };
  for (const auto& [name, bytes] : planned.bytes) {
    if (name == kZeroFill) continue;
    const auto count =
        static_cast<double>(launches(planned.forward, name) + launches(planned.backward, name));
    const double touched = counted.bytes.contains(name) ? counted.bytes.at(name) : 0.0;
    const double apart = kShareApart * bytes + kPagesApart * kPage * count;
    EXPECT_LE(touched, (kPartsOfRows.contains(name) ? 1.4 : 1.0) * bytes + apart) << name;
    EXPECT_GE(touched, (kReadAgain.contains(name) ? 0.5 : 1.0) * bytes - apart) << name;
  }
}

TEST(GpuBudgets, TheBytesOfThePlannersTableAreThoseThatKernelsTouch) {
  for (const Residual residual : {DEEPNORM, NORMFORMER, R_FIXUP, DLCL, B2T}) {
    SCOPED_TRACE(Residual_Name(residual));
    ExpectBytesAsPlanned(WideSpec(residual), at::kBFloat16, BFLOAT16);
  }
  ModelSpec other = WideSpec(NORMFORMER);
  other.set_activation(GELU);
  other.set_activation_dropout(0.1);
  other.set_norm(BATCH_NORM);
  ExpectBytesAsPlanned(other, at::kBFloat16, BFLOAT16);
  ExpectBytesAsPlanned(WideSpec(PRE_LN), at::kFloat, FLOAT32);
}

TEST(GpuBudgets, APassWaitsOnceForItsLossAllocatesNothingAndKeepsToItsScheme) {
  for (const Residual residual : testing::AllResiduals()) {
    SCOPED_TRACE(Residual_Name(residual));
    const Costs costs = CostsOf(Spec(residual));
    EXPECT_EQ(costs.waits, 1);  // ReadBack, which a training step calls once
    EXPECT_EQ(costs.allocations, 0);
    const LayerCosts layer = LayerCostsOf(Spec(residual), costs);
    const auto most = kBudgets.find(residual);
    EXPECT_TRUE(most != kBudgets.end());
    if (most == kBudgets.end()) continue;
    EXPECT_LE(layer.encoder_forward, most->second.encoder_forward);
    EXPECT_LE(layer.encoder_backward, most->second.encoder_backward);
    EXPECT_LE(layer.decoder_forward, most->second.decoder_forward);
    EXPECT_LE(layer.decoder_backward, most->second.decoder_backward);
  }
}

// A run of a rank that is alone.
RunSpec LoneRun() {
  RunSpec run;
  *run.mutable_model() = Spec(DEEPNORM);
  *run.mutable_data()->mutable_microbatch() = testing::TinyCapacity();
  run.mutable_optim()->set_learning_rate(1e-3);
  run.mutable_optim()->set_clip_norm(1.0);
  run.mutable_optim()->set_virtual_replicas(1);
  run.mutable_optim()->set_schedule(CONSTANT);
  run.mutable_optim()->set_beta1(0.9);
  run.mutable_optim()->set_beta2(0.98);
  run.mutable_optim()->set_epsilon(1e-8);
  run.mutable_compute()->set_device("cuda");
  run.mutable_compute()->set_dtype(BFLOAT16);
  run.mutable_compute()->set_matmul(LIBRARY);
  return run;
}

StepBatch BatchOf(std::vector<Microbatch> microbatches) {
  StepBatch batch;
  for (const Microbatch& microbatch : microbatches) {
    batch.num_source_tokens += microbatch.num_source_tokens;
    batch.num_target_tokens += microbatch.num_target_tokens;
  }
  batch.microbatches = std::move(microbatches);
  return batch;
}

// A whole step costs no more than the update beyond its passes.
TEST(GpuBudgets, AStepUpdatesInFewLaunchesWaitsOnceAndAllocatesNothing) {
  const RunSpec run = LoneRun();
  const Costs passes = CostsOf(run.model());
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  SelfCommunicator world;
  const auto context = MakeRankContext(run, whole, LonePlan(whole, 1), world);
  ASSERT_TRUE(context.ok()) << context.status();
  RankContext& rank = **context;
  rank.model->parameters().Initialize(5);
  rank.model->Refresh();
  const StepBatch batch = BatchOf({testing::TinyMicrobatch(run.model(), 3)});
  for (int64_t step = 0; step < 3; ++step) {
    const emulated_gpu::Counters start = emulated_gpu::ReadCounters();
    const auto result = RunTrainStep(batch, step, step + 1, rank);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->update.skipped);
    const emulated_gpu::Counters end = emulated_gpu::ReadCounters();
    if (step == 0) continue;  // which makes buffers
    EXPECT_EQ(end.waits - start.waits, 1);
    EXPECT_EQ(end.allocated_bytes - start.allocated_bytes, 0);
    // The squares and room for them, Adam before and behind a gap of the weights, and the weights
    // as operands.
    EXPECT_LE(end.launches - start.launches - passes.forward - passes.backward, 6);
  }
}

// The first `count` sentences; the others have no tokens.
Microbatch FirstSentences(Microbatch mb, int count) {
  for (std::vector<int32_t>* offsets : {&mb.source.offsets, &mb.target.offsets}) {
    std::fill(offsets->begin() + count, offsets->end(), (*offsets)[count]);
  }
  mb.num_source_tokens = mb.source.offsets.back();
  mb.num_target_tokens = mb.target.offsets.back();
  std::fill(mb.labels.begin() + mb.num_target_tokens, mb.labels.end(), -1);
  return mb;
}

TEST(GpuBudgets, StepsOfEverySizePinNoMemory) {
  const RunSpec run = LoneRun();
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  SelfCommunicator world;
  const auto context = MakeRankContext(run, whole, LonePlan(whole, 2), world);
  ASSERT_TRUE(context.ok()) << context.status();
  (*context)->model->parameters().Initialize(5);
  (*context)->model->Refresh();
  const emulated_gpu::Counters start = emulated_gpu::ReadCounters();
  EXPECT_GT(start.pinned, 0);
  const Microbatch mb = testing::TinyMicrobatch(run.model(), 3);
  for (int step = 0; step < 20; ++step) {
    const StepBatch batch =
        BatchOf({FirstSentences(mb, 1 + step / 7), FirstSentences(mb, 1 + step * 5 % 3)});
    const auto result = RunTrainStep(batch, step, step + 1, **context);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(emulated_gpu::ReadCounters().pinned, start.pinned) << "step " << step;
  }
}

}  // namespace
}  // namespace deepnet
