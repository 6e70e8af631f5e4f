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
void Spread(const float* scale, int64_t groups, int64_t cols, float* columns) {
  DEEPNET_CHECK(groups >= 1 && cols % groups == 0) << cols << " columns, " << groups << " groups";
  const int64_t size = cols / groups;
  for (int64_t g = 0; g < groups; ++g) {
    std::fill_n(columns + g * size, size, scale != nullptr ? scale[g] : 1.0f);
  }
}

// sums[g] += the columns of group g, from the left.
void AddGroups(const float* columns, int64_t cols, int64_t groups, float* sums) {
  const int64_t size = cols / groups;
  for (int64_t c = 0; c < cols; ++c) sums[c / size] += columns[c];
}

}  // namespace

void Add(Cpu& cpu, const float* x, float* y, int64_t n) {
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForBlocks(cpu.pool, n, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.add(x + begin, y + begin, end - begin);
  });
}

void GeluForward(Cpu& cpu, ConstMatrix x, Matrix y) {
  CheckSameShape(x, y);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, x.rows,
               [&](int64_t begin, int64_t end, int) { kernels.gelu_forward(x, y, begin, end); });
}

void GeluBackward(Cpu& cpu, ConstMatrix x, ConstMatrix dy, Matrix dx) {
  CheckSameShape(x, dy);
  CheckSameShape(x, dx);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, x.rows, [&](int64_t begin, int64_t end, int) {
    kernels.gelu_backward(x, dy, dx, begin, end);
  });
}

void Cast(Cpu& cpu, ConstMatrix from, Matrix to) {
  CheckSameShape(from, to);
  const ElementwiseTable& kernels = cpu.table.elementwise;
  ForRowBlocks(cpu.pool, from.rows,
               [&](int64_t begin, int64_t end, int) { kernels.cast(from, to, begin, end); });
}

void ScaleShiftForward(Cpu& cpu, const ScaleShiftForwardArgs& args) {
  CheckElements(args.x, args.y);
  float* columns = cpu.scratch.Reserve(args.x.cols);
  Spread(args.scale, args.groups, args.x.cols, columns);
  const float shift = args.shift != nullptr ? *args.shift : 0.0f;
  ForRowBlocks(cpu.pool, args.x.rows, [&](int64_t begin, int64_t end, int) {
    cpu.table.elementwise.scale_shift_forward(args.x, columns, shift, args.y, begin, end);
  });
}

void ScaleShiftBackward(Cpu& cpu, const ScaleShiftBackwardArgs& args) {
  CheckElements(args.dy, args.x, args.dx);
  const int64_t rows = args.dy.rows, cols = args.dy.cols;
  const int64_t num_blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * cols;
  float* columns = cpu.scratch.Reserve(cols + (num_blocks + 1) * partial_size);
  float* sums = columns + cols;  // [scale, shift][cols]
  float* partials = sums + partial_size;
  Spread(args.scale, args.groups, cols, columns);
  const float shift = args.shift != nullptr ? *args.shift : 0.0f;
  ForRowBlocks(cpu.pool, rows, [&](int64_t begin, int64_t end, int) {
    cpu.table.elementwise.scale_shift_backward(args.dy, args.x, columns, shift, args.dx, begin, end,
                                               partials + begin / kRowsPerBlock * partial_size);
  });
  std::fill_n(sums, partial_size, 0.0f);
  cpu.table.elementwise.fold_rows(partials, num_blocks, partial_size, sums, partial_size);
  if (args.d_scale != nullptr) AddGroups(sums, cols, args.groups, args.d_scale);
  if (args.d_shift == nullptr) return;
  float total = 0.0f;
  AddGroups(sums + cols, cols, 1, &total);
  *args.d_shift -= total;
}

}  // namespace deepnet::native
