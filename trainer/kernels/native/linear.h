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
//   LinearForward(cpu, {.rows = rows, .x_RI = x, .weight_OI = &weight, .bias_O = bias, .y_RO = y});
#pragma once

#include <cstdint>

#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

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
  int64_t bytes() const { return forward_.bytes() + backward_.bytes(); }

  // The arguments of c = a W^T if `forward`, else of c = a W; `c` has the rows of the product.
  ProductArgs Product(const KernelTable& table, const ConstMatrix& a, bool forward,
                      const Matrix& c) const;

 private:
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

// y_RO = x_RI W^T + bias, then max(0, .) if `relu`.
template <typename T>
struct LinearArgsOf {
  int64_t rows = 0;
  typename T::In x_RI = {};  // operand, as the weight
  typename T::Weight weight_OI = nullptr;
  typename T::InFloats bias_O = {};  // residual; undefined: 0
  bool relu = false;
  typename T::Out y_RO = {};  // out, operand or residual
};
using LinearArgs = LinearArgsOf<Pointers>;

void LinearForward(Cpu& cpu, const LinearArgs& args);

// dx_RI = dy_RO W, zeroed where the output of a ReLU is not positive.
template <typename T>
struct LinearInputGradArgsOf {
  int64_t rows = 0;
  typename T::In dy_RO = {};               // operand, as the weight
  typename T::Weight weight_OI = nullptr;  // with a backward form (kTraining)
  typename T::In relu_output_RI = {};      // undefined: nothing is zeroed
  bool accumulate = false;                 // add to dx, which is residual
  typename T::Out dx_RI = {};              // out, operand or residual
};
using LinearInputGradArgs = LinearInputGradArgsOf<Pointers>;

void LinearBackwardInput(Cpu& cpu, const LinearInputGradArgs& args);

// dw [out, in] += dy^T x; dbias [out] (or null) += column sums of dy. dy is [R, out] and x [R, in]
// of the same element; dw and dbias contiguous.
void LinearBackwardWeight(Cpu& cpu, ConstMatrix dy, ConstMatrix x, float* dw, float* dbias);

}  // namespace deepnet::native
