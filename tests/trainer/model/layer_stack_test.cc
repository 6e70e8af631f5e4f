// Every level of recomputation against a plain loop over layers that keeps everything: outputs,
// input gradients and weight gradients, to the bit.
#include "trainer/model/layer_stack.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/layer_bytes.h"
#include "tests/trainer/model/stack_rig.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using testing::AllOps;
using testing::NamedOps;
using testing::RunPlainLayers;
using testing::SameBits;
using testing::StackResult;
using testing::StackRig;
using testing::StackVariants;
using testing::TinyCapacity;

std::vector<RecomputeChoice> Levels() {
  return {{NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}, {FULL, 1}, {FULL, 2},
          {FULL, 3}, {FULL, 9}};
}

std::string NameOf(const RecomputeChoice& options) {
  return Recompute_Name(options.level) + " " + std::to_string(options.segment);
}

TEST(LayerStack, EveryLevelGivesTheBitsOfPlainLayers) {
  for (const NamedOps& each : AllOps()) {
    for (const ModelSpec& spec : StackVariants()) {
      const StackResult plain = RunPlainLayers(spec, *each.ops, 1);
      for (const RecomputeChoice& options : Levels()) {
        SCOPED_TRACE(each.name);
        SCOPED_TRACE(NameOf(options) + " " + spec.ShortDebugString());
        StackRig rig(spec, *each.ops, options, /*num_chunks=*/1);
        rig.Forward(0);
        rig.Backward(0);
        EXPECT_TRUE(SameBits(rig.Result(), plain));
      }
    }
  }
}

// Three microbatches in flight over two chunks a side that share workspaces, as on a rank of an
// interleaved pipeline: what one microbatch computes again must not be taken for another's.
TEST(LayerStack, MicrobatchesInFlightShareWorkspacesWithoutMeeting) {
  for (const NamedOps& each : AllOps()) {
    const ModelSpec spec = StackVariants()[1];
    const StackResult plain = RunPlainLayers(spec, *each.ops, 3);
    for (const RecomputeChoice& options : Levels()) {
      SCOPED_TRACE(each.name);
      SCOPED_TRACE(NameOf(options));
      StackRig rig(spec, *each.ops, options, /*num_chunks=*/2);
      rig.Forward(0);
      rig.Forward(1);
      rig.Backward(0);
      rig.Forward(2);
      rig.Backward(1);
      rig.Backward(2);
      EXPECT_TRUE(SameBits(rig.Result(), plain));
    }
  }
}

TEST(LayerStack, AStackWithoutLayersPassesTheStreamOn) {
  for (const RecomputeChoice& options : Levels()) {
    const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
    ModelSpec spec = StackVariants()[0];
    StackRig whole(spec, *ops, options, /*num_chunks=*/1);
    StackRig shredded(spec, *ops, options, /*num_chunks=*/7);  // some of them empty
    for (StackRig* rig : {&whole, &shredded}) {
      rig->Forward(0);
      rig->Backward(0);
    }
    EXPECT_TRUE(SameBits(whole.Result(), shredded.Result())) << NameOf(options);
  }
}

// --- bytes ---------------------------------------------------------------------------------------

// Sizes of distinct allocations, those of `elsewhere` left out.
class Allocations {
 public:
  explicit Allocations(const std::vector<at::Tensor>& elsewhere) {
    for (const at::Tensor& x : elsewhere) {
      if (x.defined()) seen_.insert(x.storage().data());
    }
  }
  void AddTensors(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& x : tensors) {
      if (!x.defined() || !seen_.insert(x.storage().data()).second) continue;
      bytes_ += static_cast<int64_t>(x.storage().nbytes());
    }
  }
  void Add(const NormState& norm) { AddTensors({norm.xhat_RD, norm.rstd}); }
  void Add(const ResidualConnection::Saved& saved) {
    for (const NormState& norm : saved.norms) Add(norm);
    AddTensors({saved.stream_RD, saved.branch_RD, saved.mask});
  }
  void Add(const AttentionLayer::Saved& s) {
    AddTensors({s.projected_RC, s.kv_R2D, s.context_RD, s.log_sum_exp_RH});
    Add(s.inner);
    Add(s.residual);
  }
  void Add(const FeedForward::Saved& s) {
    AddTensors({s.inner_RF, s.pre_RF, s.mask});
    Add(s.inner);
    Add(s.residual);
  }
  void Add(const TransformerLayer::Saved& s) {
    Add(s.self_attention);
    Add(s.cross_attention);
    Add(s.feed_forward);
  }
  void Add(const SegmentWorkspace& segment) {
    for (const auto& saved : segment.saved) Add(saved);
    AddTensors({segment.stream.value_RD, segment.stream.operand_RD, segment.input_RD});
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::set<const void*> seen_;
  int64_t bytes_ = 0;
};

std::vector<at::Tensor> TensorsOf(const Workspace& w) {
  return {w.qkv_R3D, w.inner_RF, w.pre_RF, w.inner_mask_RF};
}

// One stack of 6 layers, so that segments of 1, 2 and 3 come out even.
void ExpectBytesAsAllocated(LayerKind kind, const ModelSpec& spec, Ops& ops,
                            const RecomputeChoice& options) {
  constexpr int kLayers = 6;
  ModelSpec deep = spec;
  deep.set_encoder_layers(kLayers);
  deep.set_decoder_layers(kLayers);
  const MicrobatchSpec capacity = TinyCapacity();
  const int64_t operand_bytes = ops.OperandOptions().dtype().itemsize();
  const Parameters parameters(Describe(deep, capacity), ops, /*trainable=*/true);
  const LayerStack stack({deep, capacity, ops, parameters}, options,
                         {.stack = StackOfKind(deep, kind), .count = kLayers});
  const Workspace source(deep, ops, capacity.max_source_tokens(), options.level);
  const Workspace target(deep, ops, capacity.max_target_tokens(), options.level);
  const Workspace& own = kind == LayerKind::kEncoder ? source : target;

  std::vector<at::Tensor> shared = TensorsOf(source);
  for (const at::Tensor& x : TensorsOf(target)) shared.push_back(x);
  Allocations kept(shared);
  KeptPool empty;
  const auto microbatch = stack.TakeKept(empty, own, source);
  for (const auto& saved : microbatch.saved) kept.Add(saved);
  kept.AddTensors(microbatch.inputs_RD);
  const int64_t per_layer =
      testing::KeptBytes(deep, capacity, kind, options.level).Total(operand_bytes);
  EXPECT_EQ(kept.bytes(), per_layer * kLayers / options.segment);

  Allocations again({});
  again.AddTensors(TensorsOf(own));
  SegmentWorkspace segment;
  stack.Prepare(segment);
  stack.Prepare(segment);  // the second time makes nothing
  again.Add(segment);
  const DataType operand = operand_bytes == 4 ? FLOAT32 : BFLOAT16;
  EXPECT_EQ(again.bytes(),
            testing::RecomputeBytes(deep, capacity, kind, options, operand).Total(operand_bytes));
}

TEST(LayerStack, BytesKeptAndComputedAgainAreThoseOfTheFormula) {
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    const auto ops = MakeAtenOps(operand, at::kFloat);
    for (const ModelSpec& spec : StackVariants()) {
      for (const RecomputeChoice& options : {RecomputeChoice{NONE, 1},
                                             {SELECTIVE_FFN, 1},
                                             {SELECTIVE_GEMM, 1},
                                             {FULL, 1},
                                             {FULL, 2},
                                             {FULL, 3}}) {
        SCOPED_TRACE(NameOf(options) + " " + spec.ShortDebugString());
        ExpectBytesAsAllocated(LayerKind::kEncoder, spec, *ops, options);
        ExpectBytesAsAllocated(LayerKind::kDecoder, spec, *ops, options);
      }
    }
  }
}

}  // namespace
}  // namespace deepnet
