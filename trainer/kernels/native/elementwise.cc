#include "trainer/kernels/native/elementwise.h"

#include "parallel/base/check.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/row_blocks.h"

namespace deepnet::native {
namespace {

void CheckSameShape(const ConstMatrix& a, const ConstMatrix& b) {
  DEEPNET_CHECK_EQ(a.rows, b.rows);
  DEEPNET_CHECK_EQ(a.cols, b.cols);
}

}  // namespace

void Add(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n) {
  const ElementwiseTable& kernels = table.elementwise;
  ForBlocks(pool, n, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.add(x + begin, y + begin, end - begin);
  });
}

void GeluForward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, Matrix y) {
  CheckSameShape(x, y);
  const ElementwiseTable& kernels = table.elementwise;
  ForRowBlocks(pool, x.rows,
               [&](int64_t begin, int64_t end, int) { kernels.gelu_forward(x, y, begin, end); });
}

void GeluBackward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, ConstMatrix dy,
                  Matrix dx) {
  CheckSameShape(x, dy);
  CheckSameShape(x, dx);
  const ElementwiseTable& kernels = table.elementwise;
  ForRowBlocks(pool, x.rows, [&](int64_t begin, int64_t end, int) {
    kernels.gelu_backward(x, dy, dx, begin, end);
  });
}

void Exp(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n) {
  const ElementwiseTable& kernels = table.elementwise;
  ForBlocks(pool, n, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.exp(x + begin, y + begin, end - begin);
  });
}

void Cast(ThreadPool& pool, const KernelTable& table, ConstMatrix from, Matrix to) {
  CheckSameShape(from, to);
  const ElementwiseTable& kernels = table.elementwise;
  ForRowBlocks(pool, from.rows,
               [&](int64_t begin, int64_t end, int) { kernels.cast(from, to, begin, end); });
}

}  // namespace deepnet::native
