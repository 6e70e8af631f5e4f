// Factors are first spread over the columns, so that one kernel serves every size of group.
#include "trainer/kernels/native/modulate.h"

#include <algorithm>

#include "parallel/base/check.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/row_blocks.h"
#include "trainer/kernels/native/scratch.h"

namespace deepnet::native {
namespace {

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

void ModulateForward(ThreadPool& pool, const KernelTable& table, const ModulateForwardArgs& args,
                     Scratch& scratch) {
  float* columns = scratch.Reserve(args.x.cols);
  Spread(args.scale, args.groups, args.x.cols, columns);
  const float shift = args.shift != nullptr ? *args.shift : 0.0f;
  ForRowBlocks(pool, args.x.rows, [&](int64_t begin, int64_t end, int) {
    table.elementwise.modulate_forward(args.x, columns, shift, args.y, begin, end);
  });
}

void ModulateBackward(ThreadPool& pool, const KernelTable& table, const ModulateBackwardArgs& args,
                      Scratch& scratch) {
  const int64_t rows = args.dy.rows, cols = args.dy.cols;
  const int64_t num_blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  const int64_t partial_size = 2 * cols;
  float* columns = scratch.Reserve(cols + (num_blocks + 1) * partial_size);
  float* sums = columns + cols;  // [scale, shift][cols]
  float* partials = sums + partial_size;
  Spread(args.scale, args.groups, cols, columns);
  const float shift = args.shift != nullptr ? *args.shift : 0.0f;
  ForRowBlocks(pool, rows, [&](int64_t begin, int64_t end, int) {
    table.elementwise.modulate_backward(args.dy, args.x, columns, shift, args.dx, begin, end,
                                        partials + begin / kRowsPerBlock * partial_size);
  });
  std::fill_n(sums, partial_size, 0.0f);
  table.elementwise.fold_rows(partials, num_blocks, partial_size, sums, partial_size);
  if (args.d_scale != nullptr) AddGroups(sums, cols, args.groups, args.d_scale);
  if (args.d_shift == nullptr) return;
  float total = 0.0f;
  AddGroups(sums + cols, cols, 1, &total);
  *args.d_shift -= total;
}

}  // namespace deepnet::native
