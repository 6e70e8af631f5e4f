#include "trainer/kernels/native/residual_norm.h"

#include <array>
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {

void ResidualNormForward(Cpu& cpu, const ResidualNormForwardArgs& args) {
  DEEPNET_CHECK(args.width >= 1 && args.width <= kMaxNormWidth) << "width " << args.width;
  if (args.rows == 0) return;  // arrays of no rows may have no address
  DEEPNET_CHECK(args.x != nullptr || args.branch.data != nullptr);
  CheckElements(args.branch, args.y_operand);
  const DropoutStream stream =
      args.branch.data == nullptr ? DropoutStream{} : MakeDropoutStream(args.dropout);
  DEEPNET_CHECK(!stream.active() || args.mask != nullptr) << "dropout needs a mask";
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, args.rows, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(args.width);
      kernels.keep_bits(stream, args.ids.pair + begin, args.ids.position + begin, end - begin, 0,
                        num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    kernels.residual_norm_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void NormOutput(Cpu& cpu, ConstMatrix xhat, const float* gain, const float* bias, Matrix y) {
  CheckElements(xhat, y);
  ForRowBlocks(cpu.pool, xhat.rows, [&](int64_t begin, int64_t end, int) {
    cpu.table.elementwise.norm_output(xhat, gain, bias, y, begin, end);
  });
}

void ResidualNormBackward(Cpu& cpu, const ResidualNormBackwardArgs& args) {
  DEEPNET_CHECK(args.width >= 1 && args.width <= kMaxNormWidth) << "width " << args.width;
  DEEPNET_CHECK(args.d_bias == nullptr || args.d_gain != nullptr);
  CheckElements(args.d_branch);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  const bool want_gain = args.d_gain != nullptr;
  const int64_t num_blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * args.width;
  float* partials = want_gain ? cpu.scratch.Reserve(num_blocks * partial_size) : nullptr;
  const float keep_scale = args.rate > 0.0 ? KeepScale(args.rate) : 0.0f;
  ForRowBlocks(cpu.pool, args.rows, [&](int64_t begin, int64_t end, int) {
    float* partial = want_gain ? partials + begin / kRowsPerBlock * partial_size : nullptr;
    kernels.residual_norm_backward(args, keep_scale, begin, end, partial);
  });
  if (!want_gain) return;
  // Partials are [block][gain, bias][width]: the columns are independent of each other.
  constexpr int64_t kColumnsPerBlock = 256;
  ForBlocks(cpu.pool, args.width, kColumnsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.fold_rows(partials + begin, num_blocks, partial_size, args.d_gain + begin, end - begin);
    if (args.d_bias == nullptr) return;
    kernels.fold_rows(partials + args.width + begin, num_blocks, partial_size, args.d_bias + begin,
                      end - begin);
  });
}

// --- BatchNorm ---

namespace {

constexpr int64_t kBatchNormColumns = 64;

// One number for each column of a block.
using Columns = std::array<double, kBatchNormColumns>;

Matrix View(float* x, int64_t rows, int64_t width) {
  return {x, Element::kFloat32, rows, width, width};
}

// Columns [begin, end): x becomes normalised.
void NormalizeColumns(const ResidualNormForwardArgs& args, int64_t begin, int64_t end, float* x,
                      float* rstd) {
  const int64_t rows = args.rows, width = args.width;
  const double count = static_cast<double>(rows), epsilon = args.epsilon;
  Columns mean = {}, variance = {};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = begin; c < end; ++c) mean[c - begin] += x[r * width + c];
  }
  for (double& m : mean) m /= count;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      const double deviation = x[r * width + c] - mean[c - begin];
      variance[c - begin] += deviation * deviation;
    }
  }
  for (int64_t c = begin; c < end; ++c) {
    rstd[c] = static_cast<float>(1.0 / std::sqrt(variance[c - begin] / count + epsilon));
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      float& value = x[r * width + c];
      value = static_cast<float>((value - mean[c - begin]) * rstd[c]);
    }
  }
}

// Columns [begin, end) of the gradient of the sum, and of gain and bias, which are added to.
void BackwardColumns(const ResidualNormBackwardArgs& args, int64_t begin, int64_t end,
                     float* dsum) {
  const double count = static_cast<double>(args.rows);
  Columns gradient = {}, product = {};
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      const double dy = args.dy[r * args.width + c];
      gradient[c - begin] += dy;
      product[c - begin] += dy * args.xhat[r * args.width + c];
    }
  }
  for (int64_t c = begin; c < end; ++c) {
    args.d_gain[c] += static_cast<float>(product[c - begin]);
    if (args.d_bias != nullptr) args.d_bias[c] += static_cast<float>(gradient[c - begin]);
  }
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = r * args.width + c;
      const double centred = args.dy[at] - gradient[c - begin] / count;
      const double slope = centred - args.xhat[at] * (product[c - begin] / count);
      dsum[at] = static_cast<float>(slope * args.gain[c] * args.rstd[c]);
    }
  }
}

}  // namespace

void BatchNormForward(Cpu& cpu, const ResidualNormForwardArgs& args) {
  DEEPNET_CHECK(args.centred && args.gain != nullptr && args.sum == nullptr);
  if (args.rows == 0) return;
  const int64_t size = args.rows * args.width;
  float* own = cpu.scratch.Reserve(size + args.width);
  float* xhat = args.xhat != nullptr ? args.xhat : own;
  float* rstd = args.rstd != nullptr ? args.rstd : own + size;

  ResidualNormForwardArgs sum = args;
  sum.gain = sum.bias = nullptr;
  sum.sum = xhat;
  sum.y = sum.xhat = sum.rstd = nullptr;
  sum.y_operand = {};
  ResidualNormForward(cpu, sum);
  ForBlocks(cpu.pool, args.width, kBatchNormColumns, [&](int64_t begin, int64_t end, int) {
    NormalizeColumns(args, begin, end, xhat, rstd);
  });
  const Matrix normal = View(xhat, args.rows, args.width);
  if (args.y != nullptr) {
    NormOutput(cpu, normal, args.gain, args.bias, View(args.y, args.rows, args.width));
  }
  if (args.y_operand.data != nullptr) {
    NormOutput(cpu, normal, args.gain, args.bias, args.y_operand);
  }
}

void BatchNormBackward(Cpu& cpu, const ResidualNormBackwardArgs& args) {
  DEEPNET_CHECK(args.centred && args.d_gain != nullptr);
  if (args.rows == 0) return;
  float* dsum = cpu.scratch.Reserve(args.rows * args.width);
  ForBlocks(cpu.pool, args.width, kBatchNormColumns,
            [&](int64_t begin, int64_t end, int) { BackwardColumns(args, begin, end, dsum); });
  const Matrix gradient = View(dsum, args.rows, args.width);
  if (args.d_residual != nullptr) {
    ResidualNormForwardArgs dx = {.rows = args.rows,
                                  .width = args.width,
                                  .alpha = args.alpha,
                                  .x = dsum,
                                  .sum = args.d_residual};
    if (args.accumulate_residual) dx.branch = View(args.d_residual, args.rows, args.width);
    ResidualNormForward(cpu, dx);
  }
  if (args.d_branch.data == nullptr) return;
  if (args.dpast != nullptr) Add(cpu, args.dpast, dsum, args.rows * args.width);
  Cast(cpu, gradient, args.d_branch);
  if (args.rate > 0) DropoutBackward(cpu, args.rate, args.mask, args.d_branch);
}

}  // namespace deepnet::native
