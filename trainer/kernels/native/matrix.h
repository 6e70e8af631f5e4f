// Views of row-major matrices, packed rows, and of what arguments of kernels are made besides.
// Plain data: also included by the files that are compiled once per instruction set.
#pragma once

#include <cstdint>

namespace deepnet {

class RowIndex;

// The tokens of one packed side: sentences one after another. The arrays are in the memory that the
// Ops reads (DeviceSession::Upload) and outlive the call.
struct PackedRows {
  int64_t count = 0;                    // real rows
  int num_sentences = 0;                // real sentences
  const int32_t* tokens = nullptr;      // [count]
  const uint32_t* positions = nullptr;  // [count] index within the sentence
  const uint32_t* pairs = nullptr;      // [count] the pair's ordinal in the step
  const int32_t* offsets = nullptr;     // [num_sentences + 1] first row of each sentence
  const RowIndex* index = nullptr;      // null: none is needed
};

}  // namespace deepnet

namespace deepnet::native {

struct Cpu;
class PackedWeight;

// bfloat16 is held as uint16_t. float16 is for GPUs: kernels of this folder refuse it.
enum class Element { kFloat32, kBfloat16, kFloat16 };

[[gnu::always_inline]] constexpr int64_t BytesOf(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

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

// Operations declare their arguments once, in templates over the types of what is in memory: those
// here are for kernels, and Tensors (trainer/kernels/ops.h) has LibTorch's for layers, of which
// ArgsOf (trainer/kernels/native_args.h) makes the kernels'. A matrix has all rows of its memory;
// how many of them are real is an argument beside it.
struct Pointers {
  using In = ConstMatrix;  // data null: undefined
  using Out = Matrix;
  using InFloats = const float*;  // float32 without gaps; null: undefined
  using Floats = float*;
  using InMask = const uint8_t*;  // uint8 [R, MaskBytes(D)], see dropout.h
  using Mask = uint8_t*;
  using Rows = PackedRows;
  using Weight = const PackedWeight*;
  using Real = float;
};

}  // namespace deepnet::native
