// Views of row-major matrices. Plain data: also included by the files that are compiled once per
// instruction set.
#pragma once

#include <cstdint>

namespace deepnet::native {

// bfloat16 is held as uint16_t. float16 is for GPUs: kernels of this folder refuse it.
enum class Element { kFloat32, kBfloat16, kFloat16 };

// `stride` elements from one row to the next, >= cols: a slice of a wider matrix's columns is a
// view as well. Owns nothing.
struct ConstMatrix {
  const void* data = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
};

struct Matrix {
  void* data = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  operator ConstMatrix() const { return {data, element, rows, cols, stride}; }  // NOLINT
};

}  // namespace deepnet::native
