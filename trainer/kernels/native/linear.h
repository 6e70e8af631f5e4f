// The matrix products of a linear layer Y = X W^T + b, forward and backward, on this host's
// processor.
//
// Letters: R rows (tokens), in, out; W is [out, in]. All matrices are row-major. x and dy may be
// column slices of wider matrices (stride > cols). Operands are float32, or bfloat16 with products
// summed in float32; x, dy and the weight agree.
//
// Bits: the same for any number of threads. A row of Y or dX does not depend on which other rows
// are computed with it. dW and db add up blocks of kRowBlock rows, counted from row 0.
//
// Example:
//   PackedWeight weight(cpu.table, out, in, Element::kFloat32, PackedFor::kTraining);
//   weight.Pack(cpu.pool, master);  // again after each optimizer step
//   LinearForward(cpu, {.x = x, .weight = &weight, .bias = bias, .relu = true, .y = y});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// Memory on a cache line's boundary. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes);  // zeroed

  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t bytes_ = 0;
};

enum class PackedFor {
  kInference,  // LinearForward only
  kTraining,   // LinearBackwardInput as well: twice the memory
};

// A weight in the layouts the kernels of one instruction set want; a copy of a float32 master.
class PackedWeight {
 public:
  // All zeros at first. `table` outlives it.
  PackedWeight(const KernelTable& table, int64_t out, int64_t in, Element element,
               PackedFor packed_for);

  // Takes over `weights` [out, in], contiguous; bfloat16 rounds to nearest even.
  void Pack(ThreadPool& pool, const float* weights);

  int64_t out() const { return out_; }
  int64_t in() const { return in_; }
  Element element() const { return element_; }
  int64_t bytes() const { return forward_.bytes() + backward_.bytes(); }

 private:
  friend struct LinearCalls;

  const KernelTable* table_;
  int64_t out_;
  int64_t in_;
  Element element_;
  Units units_;
  int64_t forward_panel_stride_;   // 4-byte units
  int64_t backward_panel_stride_;  // 4-byte units
  AlignedBuffer forward_;          // panels of columns of W^T
  AlignedBuffer backward_;         // panels of columns of W
};

// y = x weight^T + bias, then max(0, .) if relu.
struct LinearForwardArgs {
  ConstMatrix x = {};  // [R, in] in the weight's element
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  // [out]; null: 0
  bool relu = false;
  Matrix y = {};  // [R, out] float32 or bfloat16, not overlapping x
};

void LinearForward(Cpu& cpu, const LinearForwardArgs& args);

// dx = dy weight, zeroed where relu_output is <= 0; with `accumulate` added to dx instead of
// stored.
struct LinearBackwardInputArgs {
  ConstMatrix dy = {};                   // [R, out] in the weight's element
  const PackedWeight* weight = nullptr;  // kTraining
  ConstMatrix relu_output = {};          // [R, in] of either element; data null: nothing is zeroed
  bool accumulate = false;
  Matrix dx = {};  // [R, in] float32 or bfloat16 (float32 if accumulate), not overlapping dy
};

void LinearBackwardInput(Cpu& cpu, const LinearBackwardInputArgs& args);

// dw [out, in] += dy^T x; dbias [out] (or null) += column sums of dy. dy is [R, out] and x [R, in]
// of the same element; dw and dbias contiguous.
void LinearBackwardWeight(Cpu& cpu, ConstMatrix dy, ConstMatrix x, float* dw, float* dbias);

}  // namespace deepnet::native
