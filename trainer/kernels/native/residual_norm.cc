#include "trainer/kernels/native/residual_norm.h"

#include "parallel/base/check.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/row_blocks.h"
#include "trainer/kernels/native/scratch.h"

namespace deepnet::native {

void ResidualNormForward(ThreadPool& pool, const KernelTable& table,
                         const ResidualNormForwardArgs& args) {
  DEEPNET_CHECK(args.width >= 1 && args.width <= kMaxNormWidth) << "width " << args.width;
  DEEPNET_CHECK(args.x != nullptr || args.branch.data != nullptr);
  const DropoutStream stream =
      args.branch.data == nullptr ? DropoutStream{} : MakeDropoutStream(args.dropout);
  DEEPNET_CHECK(!stream.active() || args.mask != nullptr) << "dropout needs a mask";
  const ElementwiseTable& kernels = table.elementwise;
  ForRowBlocks(pool, args.rows, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(args.width);
      kernels.keep_bits(stream, args.ids.pair + begin, args.ids.position + begin, end - begin, 0,
                        num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    kernels.residual_norm_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void NormOutput(ThreadPool& pool, const KernelTable& table, ConstMatrix xhat, const float* gain,
                const float* bias, Matrix y) {
  ForRowBlocks(pool, xhat.rows, [&](int64_t begin, int64_t end, int) {
    table.elementwise.norm_output(xhat, gain, bias, y, begin, end);
  });
}

void ResidualNormBackward(ThreadPool& pool, const KernelTable& table,
                          const ResidualNormBackwardArgs& args, Scratch& scratch) {
  DEEPNET_CHECK(args.width >= 1 && args.width <= kMaxNormWidth) << "width " << args.width;
  DEEPNET_CHECK(args.d_bias == nullptr || args.d_gain != nullptr);
  const ElementwiseTable& kernels = table.elementwise;
  const bool want_gain = args.d_gain != nullptr;
  const int64_t num_blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * args.width;
  float* partials = want_gain ? scratch.Reserve(num_blocks * partial_size) : nullptr;
  const float keep_scale = args.rate > 0.0 ? KeepScale(args.rate) : 0.0f;
  ForRowBlocks(pool, args.rows, [&](int64_t begin, int64_t end, int) {
    float* partial = want_gain ? partials + begin / kRowsPerBlock * partial_size : nullptr;
    kernels.residual_norm_backward(args, keep_scale, begin, end, partial);
  });
  if (!want_gain) return;
  // Partials are [block][gain, bias][width]: the columns are independent of each other.
  constexpr int64_t kColumnsPerBlock = 256;
  ForBlocks(pool, args.width, kColumnsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.fold_rows(partials + begin, num_blocks, partial_size, args.d_gain + begin, end - begin);
    if (args.d_bias == nullptr) return;
    kernels.fold_rows(partials + args.width + begin, num_blocks, partial_size, args.d_bias + begin,
                      end - begin);
  });
}

}  // namespace deepnet::native
