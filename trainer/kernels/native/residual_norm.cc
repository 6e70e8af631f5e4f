#include "trainer/kernels/native/residual_norm.h"

#include <array>
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

constexpr int64_t kBatchNormColumns = 64;

// One number for each column of a block.
using PerColumn = std::array<double, kBatchNormColumns>;

Matrix View(float* x, int64_t rows, int64_t width) {
  return {x, Element::kFloat32, rows, width, width};
}

// Normalises columns [begin, end) of x [args.rows, width].
void NormalizeColumns(const ResidualNormArgs& args, int64_t begin, int64_t end, float* x,
                      float* rstd) {
  const int64_t rows = args.rows, width = WidthOf(args);
  const double count = static_cast<double>(rows), epsilon = args.epsilon;
  PerColumn mean = {}, variance = {};
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

// Makes columns [begin, end) of the gradient of the sum; adds to those of gain and bias.
void BackwardColumns(const ResidualNormGradArgs& args, int64_t begin, int64_t end, float* dsum) {
  const double count = static_cast<double>(args.rows);
  const int64_t width = args.dy_RD.cols;
  const auto* const given = static_cast<const float*>(args.dy_RD.data);
  const float* const xhat = args.state.xhat_RD;
  PerColumn gradient = {}, product = {};
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      const double dy = given[r * width + c];
      gradient[c - begin] += dy;
      product[c - begin] += dy * xhat[r * width + c];
    }
  }
  for (int64_t c = begin; c < end; ++c) {
    args.dgain_D[c] += static_cast<float>(product[c - begin]);
    if (args.dbias_D != nullptr) args.dbias_D[c] += static_cast<float>(gradient[c - begin]);
  }
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = r * width + c;
      const double centred = given[at] - gradient[c - begin] / count;
      const double slope = centred - xhat[at] * (product[c - begin] / count);
      dsum[at] = static_cast<float>(slope * args.gain_D[c] * args.state.rstd[c]);
    }
  }
}

void BatchNormForward(Cpu& cpu, const ResidualNormArgs& args) {
  DEEPNET_CHECK(args.centred && args.gain_D != nullptr && args.sum_RD == nullptr);
  if (args.rows == 0) return;
  const int64_t width = WidthOf(args);
  const int64_t size = args.rows * width;
  float* own = cpu.scratch.Reserve(size + width);
  float* xhat = args.state.xhat_RD != nullptr ? args.state.xhat_RD : own;
  float* rstd = args.state.rstd != nullptr ? args.state.rstd : own + size;

  ResidualNormArgs sum = args;
  sum.over_rows = false;
  sum.gain_D = nullptr;
  sum.sum_RD = xhat;
  ResidualNormForward(cpu, sum);
  ForBlocks(cpu.pool, width, kBatchNormColumns, [&](int64_t begin, int64_t end, int) {
    NormalizeColumns(args, begin, end, xhat, rstd);
  });
  const Matrix normal = View(xhat, args.rows, width);
  if (args.y_RD != nullptr) {
    NormOutput(cpu, normal, args.gain_D, args.bias_D, View(args.y_RD, args.rows, width));
  }
  if (args.y_operand_RD.data != nullptr) {
    NormOutput(cpu, normal, args.gain_D, args.bias_D, args.y_operand_RD);
  }
}

void BatchNormBackward(Cpu& cpu, const ResidualNormGradArgs& args) {
  DEEPNET_CHECK(args.centred && args.dgain_D != nullptr);
  if (args.rows == 0) return;
  const int64_t width = args.dy_RD.cols;
  float* dsum = cpu.scratch.Reserve(args.rows * width);
  ForBlocks(cpu.pool, width, kBatchNormColumns,
            [&](int64_t begin, int64_t end, int) { BackwardColumns(args, begin, end, dsum); });
  const Matrix gradient = View(dsum, args.rows, width);
  if (args.dx_RD != nullptr) {
    ResidualNormArgs dx = {
        .rows = args.rows, .x_RD = gradient, .alpha = args.alpha, .sum_RD = args.dx_RD};
    if (args.accumulate_dx) dx.branch_RD = View(args.dx_RD, args.rows, width);
    ResidualNormForward(cpu, dx);
  }
  if (args.dbranch_RD.data == nullptr) return;
  if (args.dpast_RD != nullptr) Add(cpu, args.dpast_RD, dsum, args.rows * width);
  Matrix dbranch = args.dbranch_RD;
  dbranch.rows = args.rows;
  Cast(cpu, gradient, dbranch);
  if (args.dropout_rate > 0) DropoutBackward(cpu, args.dropout_rate, args.mask, dbranch);
}

}  // namespace

void ResidualNormForward(Cpu& cpu, const ResidualNormArgs& args) {
  if (args.over_rows) return BatchNormForward(cpu, args);
  const int64_t width = WidthOf(args);
  DEEPNET_CHECK(width <= kMaxNormWidth) << "width " << width;
  if (args.rows == 0) return;  // arrays of no rows may have no address
  DEEPNET_CHECK(args.x_RD.data != nullptr || args.branch_RD.data != nullptr);
  DEEPNET_CHECK(args.gain_D != nullptr || args.sum_RD != nullptr) << "nothing is wanted";
  CheckFloats(args.x_RD);
  CheckElements(args.branch_RD, args.y_operand_RD);
  const DropoutStream stream =
      args.branch_RD.data == nullptr ? DropoutStream{} : MakeDropoutStream(args.dropout);
  DEEPNET_CHECK(!stream.active() || args.mask != nullptr) << "dropout needs a mask";
  ForBlocks(cpu.pool, args.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    if (stream.active()) {
      const int64_t num_bytes = MaskBytes(width);
      cpu.kernels.keep_bits(stream, args.ids.pairs + begin, args.ids.positions + begin, end - begin,
                            0, num_bytes, args.mask + begin * num_bytes, num_bytes);
    }
    cpu.kernels.residual_norm_forward(args, stream.active() ? stream.scale : 0.0f, begin, end);
  });
}

void NormOutput(Cpu& cpu, ConstMatrix xhat, const float* gain, const float* bias, Matrix y) {
  CheckElements(xhat, y);
  RunBlocks(cpu, xhat.rows, kRowsPerBlock, cpu.kernels.norm_output, xhat, gain, bias, y);
}

void ResidualNormBackward(Cpu& cpu, const ResidualNormGradArgs& args) {
  const int64_t width = args.dy_RD.cols;
  DEEPNET_CHECK(width >= 1 && width <= kMaxNormWidth) << "width " << width;
  CheckFloats(args.dy_RD);
  if (args.over_rows) return BatchNormBackward(cpu, args);
  DEEPNET_CHECK(args.dbias_D == nullptr || args.dgain_D != nullptr);
  CheckElements(args.dbranch_RD);
  const bool want_gain = args.dgain_D != nullptr;
  const int64_t num_blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * width;
  float* partials = want_gain ? cpu.scratch.Reserve(num_blocks * partial_size) : nullptr;
  const float keep_scale = args.dropout_rate > 0.0 ? KeepScale(args.dropout_rate) : 0.0f;
  ForBlocks(cpu.pool, args.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    float* partial = want_gain ? partials + begin / kRowsPerBlock * partial_size : nullptr;
    cpu.kernels.residual_norm_backward(args, keep_scale, begin, end, partial);
  });
  if (!want_gain) return;
  // Partials are [block][gain, bias][width]: the columns are independent of each other.
  constexpr int64_t kColumnsPerBlock = 256;
  ForBlocks(cpu.pool, width, kColumnsPerBlock, [&](int64_t begin, int64_t end, int) {
    const auto fold = [&](const float* from, float* to) {
      if (to == nullptr) return;
      cpu.kernels.fold_rows(from + begin, num_blocks, partial_size, to + begin, end - begin);
    };
    fold(partials, args.dgain_D);
    fold(partials + width, args.dbias_D);
  });
}

}  // namespace deepnet::native
