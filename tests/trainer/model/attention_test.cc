// A decoder's self-attention is causal, an encoder's is not.
#include "trainer/model/attention.h"

#include <memory>

#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// True if the first row of the first sentence changes with that sentence's last row.
bool FirstRowSeesTheLast(int stack) {
  const ModelSpec spec = testing::TinySpec();
  const MicrobatchSpec capacity = testing::TinyCapacity();
  const auto ops = MakeAtenOps(at::kDouble, at::kDouble);
  Parameters parameters(Describe(spec, capacity), *ops, /*trainable=*/false);
  parameters.Initialize(5);
  AttentionLayer attention({spec, capacity, *ops, parameters},
                           {stack, /*layer=*/0, SublayerKind::kSelfAttention});
  parameters.Refresh();

  const Microbatch mb = testing::TinyMicrobatch(spec, 3);
  const PackedRows rows = RowsOf(mb.target, mb.target_pairs, mb.num_sentences);
  const MicrobatchPass microbatch{};
  Workspace work(spec, *ops, capacity.max_target_tokens());
  const PassContext pass{.ops = ops.get(), .rows = &rows, .microbatch = &microbatch, .work = &work};
  AttentionLayer::Saved saved =
      attention.MakeSaved(*ops, capacity.max_target_tokens(), capacity.max_source_tokens());
  const auto first_row = [&](double of_last) {
    const ResidualStream stream =
        MakeResidualStream(*ops, capacity.max_target_tokens(), spec.d_model());
    const at::Tensor& x_RD = stream.value_RD;
    x_RD.copy_(at::sin(at::arange(x_RD.numel(), x_RD.options())).reshape(x_RD.sizes()));
    x_RD[rows.offsets[1] - 1].mul_(of_last);
    attention.Forward(pass, stream, saved);
    return stream.value_RD[0].clone();
  };
  return !at::equal(first_row(1.0), first_row(-1.0));
}

TEST(SelfAttention, IsCausalInADecoderOnly) {
  EXPECT_TRUE(FirstRowSeesTheLast(/*stack=*/0));
  EXPECT_FALSE(FirstRowSeesTheLast(/*stack=*/1));
}

}  // namespace
}  // namespace deepnet
