// Blocks of kRows x kColumns sums stay in registers; the compiler makes vectors of them.
#include "tests/gpu/emulated/product.h"

#include <algorithm>

namespace emulated_gpu {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 4;

struct Sizes {
  int64_t rows, columns, depth;
};

// `panel`: kRows rows of a, [depth][kRows]. Writes columns [column, column + kColumns).
inline __attribute__((always_inline)) void Block(const Sizes& sizes, const float* panel,
                                                 const float* b, int64_t row, int64_t column,
                                                 float* c) {
  float sums[kColumns][kRows] = {};
  for (int64_t p = 0; p < sizes.depth; ++p) {
    for (int j = 0; j < kColumns; ++j) {
      const float factor = b[(column + j) * sizes.depth + p];
      for (int i = 0; i < kRows; ++i) sums[j][i] += panel[p * kRows + i] * factor;
    }
  }
  const int64_t rows = std::min<int64_t>(kRows, sizes.rows - row);
  for (int j = 0; j < kColumns; ++j) {
    std::copy_n(sums[j], rows, c + (column + j) * sizes.rows + row);
  }
}

inline __attribute__((always_inline)) void Columns(const Sizes& sizes, const float* panel,
                                                   const float* b, int64_t row, float* c) {
  for (int64_t j = 0; j < sizes.columns; j += kColumns) Block(sizes, panel, b, row, j, c);
}

void AnyColumns(const Sizes& sizes, const float* panel, const float* b, int64_t row, float* c) {
  Columns(sizes, panel, b, row, c);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void Avx2Columns(const Sizes& sizes, const float* panel,
                                                 const float* b, int64_t row, float* c) {
  Columns(sizes, panel, b, row, c);
}
#endif

}  // namespace

std::vector<float> Multiply(int64_t rows, int64_t columns, int64_t depth,
                            const std::vector<float>& a, const std::vector<float>& b) {
  auto* columns_of_panel = AnyColumns;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) columns_of_panel = Avx2Columns;
#endif
  // Columns beyond the last one are computed of zeros and cut off.
  const Sizes sizes = {rows, (columns + kColumns - 1) / kColumns * kColumns, depth};
  std::vector<float> padded_b = b;
  padded_b.resize(sizes.columns * depth);
  std::vector<float> c(rows * sizes.columns), panel(depth * kRows);
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t width = std::min<int64_t>(kRows, rows - row);
    for (int64_t p = 0; p < depth; ++p) {
      std::copy_n(a.data() + p * rows + row, width, panel.data() + p * kRows);
    }
    columns_of_panel(sizes, panel.data(), padded_b.data(), row, c.data());
  }
  c.resize(rows * columns);
  return c;
}

}  // namespace emulated_gpu
