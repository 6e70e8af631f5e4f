// Weight gradients that are put off against those that are not, to the bit, and the bytes they
// hold.
#include "trainer/model/deferred_weights.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/layer_bytes.h"
#include "tests/trainer/model/stack_rig.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

using testing::AllOps;
using testing::NamedOps;
using testing::RunPlainLayers;
using testing::SameBits;
using testing::StackRig;
using testing::StackVariants;
using testing::TinyCapacity;

using Deferred = std::vector<DeferredWeights>;

Deferred MakeDeferred(const StackRig& rig, TensorPool& pool) {
  Deferred deferred;
  for (int c = 0; c < rig.num_chunks(); ++c) deferred.emplace_back(pool);
  return deferred;
}

void RunAll(Deferred& deferred, Ops& ops) {
  for (DeferredWeights& each : deferred) {
    each.Compute(ops);
    each.Clear();
  }
}

TEST(DeferredWeights, GiveTheSameBitsAsGradientsThatAreNotPutOff) {
  for (const NamedOps& each : AllOps()) {
    for (const ModelSpec& spec : StackVariants()) {
      const auto plain = RunPlainLayers(spec, *each.ops, 2);
      for (const Recompute level : {NONE, SELECTIVE_GEMM, FULL}) {
        SCOPED_TRACE(each.name);
        SCOPED_TRACE(Recompute_Name(level) + " " + spec.ShortDebugString());
        StackRig rig(spec, *each.ops, {.level = level}, /*num_chunks=*/2);
        TensorPool pool;
        Deferred first = MakeDeferred(rig, pool), second = MakeDeferred(rig, pool);
        rig.Forward(0);
        rig.Forward(1);
        rig.Backward(0, &first);
        rig.Backward(1, &second);
        RunAll(first, rig.ops());
        RunAll(second, rig.ops());
        EXPECT_TRUE(SameBits(rig.Result(), plain));
      }
    }
  }
}

TEST(DeferredWeights, AddNothingToMatricesBeforeTheyRun) {
  const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
  StackRig rig(StackVariants()[0], *ops, {}, /*num_chunks=*/1);
  TensorPool pool;
  Deferred deferred = MakeDeferred(rig, pool);
  rig.Forward(0);
  rig.Backward(0, &deferred);
  const at::Tensor before = rig.Result().back();
  RunAll(deferred, *ops);
  const at::Tensor after = rig.Result().back();
  // Gains and biases of normalisations come with the pass: two of 8 for each of 2 and 3 sub-layers.
  EXPECT_EQ(before.count_nonzero().item<int64_t>(), 2 * 8 * (2 * 5 + 3 * 4));
  EXPECT_GT(after.count_nonzero().item<int64_t>(), 100 * 8 * 2);
}

TEST(DeferredWeights, HoldTheBytesOfTheFormulaAndGiveThemBackToThePool) {
  for (const at::ScalarType operand : {at::kFloat, at::kBFloat16}) {
    const auto ops = MakeAtenOps(operand, at::kFloat);
    const ModelSpec spec = StackVariants()[3];
    StackRig rig(spec, *ops, {.level = SELECTIVE_FFN}, /*num_chunks=*/1);
    TensorPool pool;
    Deferred deferred = MakeDeferred(rig, pool);
    const auto operands = [&](LayerKind kind) {
      return testing::DeferredOperands(spec, TinyCapacity(), kind);
    };
    const int64_t size = ops->OperandOptions().dtype().itemsize();
    const int64_t encoder = size * spec.encoder_layers() * operands(LayerKind::kEncoder);
    const int64_t decoder = size * (spec.decoder_layers() * operands(LayerKind::kDecoder) +
                                    TinyCapacity().max_source_tokens() * spec.d_model());
    std::set<const void*> used;
    const auto bytes = [&](const DeferredWeights& held) {
      int64_t sum = 0;
      for (const at::Tensor& copy : held.copies()) {
        sum += static_cast<int64_t>(copy.nbytes());
        used.insert(copy.const_data_ptr());
      }
      return sum;
    };
    for (int m = 0; m < 3; ++m) {
      rig.Forward(m);
      rig.Backward(m, &deferred);
      EXPECT_EQ(bytes(deferred[0]), encoder);
      EXPECT_EQ(bytes(deferred[1]), decoder);
      EXPECT_EQ(used.size(), deferred[0].copies().size() + deferred[1].copies().size())
          << "the pool grew in microbatch " << m;
      RunAll(deferred, *ops);
      EXPECT_TRUE(deferred[0].copies().empty());
    }
  }
}

}  // namespace
}  // namespace deepnet
