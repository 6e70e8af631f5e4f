#include "trainer/kernels/native/elementwise.h"

#include <algorithm>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

void CheckSameShape(const ConstMatrix& a, const ConstMatrix& b) {
  CheckElements(a, b);
  DEEPNET_CHECK_EQ(a.rows, b.rows);
  DEEPNET_CHECK_EQ(a.cols, b.cols);
}

// Spreads factors over the columns, so that one kernel serves groups of every size.
void Spread(const ConstMatrix& scale_G, int64_t cols, float* columns) {
  if (scale_G.data == nullptr) {
    std::fill_n(columns, cols, 1.0f);
    return;
  }
  const int64_t groups = scale_G.cols;
  DEEPNET_CHECK(groups >= 1 && cols % groups == 0) << cols << " columns, " << groups << " groups";
  for (int64_t g = 0; g < groups; ++g) {
    std::fill_n(columns + g * (cols / groups), cols / groups,
                static_cast<const float*>(scale_G.data)[g]);
  }
}

// sums[g] += the columns of group g, from the left.
void AddGroups(const float* columns, int64_t cols, int64_t groups, float* sums) {
  const int64_t size = cols / groups;
  for (int64_t c = 0; c < cols; ++c) sums[c / size] += columns[c];
}

}  // namespace

void Add(Cpu& cpu, const float* x, float* y, int64_t n) {
  ForBlocks(cpu.pool, n, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    cpu.kernels.add(x + begin, y + begin, end - begin);
  });
}

void GeluForward(Cpu& cpu, ConstMatrix x, Matrix y) {
  CheckSameShape(x, y);
  RunBlocks(cpu, x.rows, kRowsPerBlock, cpu.kernels.gelu_forward, x, y);
}

void GeluBackward(Cpu& cpu, ConstMatrix x, ConstMatrix dy, Matrix dx) {
  CheckSameShape(x, dy);
  CheckSameShape(x, dx);
  RunBlocks(cpu, x.rows, kRowsPerBlock, cpu.kernels.gelu_backward, x, dy, dx);
}

void Cast(Cpu& cpu, ConstMatrix from, Matrix to) {
  CheckSameShape(from, to);
  RunBlocks(cpu, from.rows, kRowsPerBlock, cpu.kernels.cast, from, to);
}

void ScaleShiftForward(Cpu& cpu, const ScaleShiftArgs& args) {
  CheckElements(args.x_RD, args.y_RD);
  CheckFloats(args.scale_G);
  float* columns = cpu.scratch.Reserve(args.x_RD.cols);
  Spread(args.scale_G, args.x_RD.cols, columns);
  const float shift = args.shift_1 != nullptr ? *args.shift_1 : 0.0f;
  RunBlocks(cpu, args.rows, kRowsPerBlock, cpu.kernels.scale_shift_forward, args.x_RD, columns,
            shift, args.y_RD);
}

void ScaleShiftBackward(Cpu& cpu, const ScaleShiftGradArgs& args) {
  const ConstMatrix x = args.scale_G.data != nullptr ? args.x_RD : ConstMatrix();
  CheckElements(args.dy_RD, x, args.dx_RD);
  CheckFloats(args.scale_G);
  const int64_t cols = args.dy_RD.cols;
  const int64_t num_blocks = (args.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * cols;
  float* columns = cpu.scratch.Reserve(cols + (num_blocks + 1) * partial_size);
  float* sums = columns + cols;  // [scale, shift][cols]
  float* partials = sums + partial_size;
  Spread(args.scale_G, cols, columns);
  const float shift = args.shift_1 != nullptr ? *args.shift_1 : 0.0f;
  ForBlocks(cpu.pool, args.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    cpu.kernels.scale_shift_backward(args.dy_RD, x, columns, shift, args.dx_RD, begin, end,
                                     partials + begin / kRowsPerBlock * partial_size);
  });
  std::fill_n(sums, partial_size, 0.0f);
  cpu.kernels.fold_rows(partials, num_blocks, partial_size, sums, partial_size);
  if (args.dscale_G != nullptr) AddGroups(sums, cols, args.scale_G.cols, args.dscale_G);
  if (args.dshift_1 == nullptr) return;
  float total = 0.0f;
  AddGroups(sums + cols, cols, 1, &total);
  *args.dshift_1 -= total;
}

}  // namespace deepnet::native
