// Tensors as the arguments of kernels (trainer/kernels/native, trainer/kernels/cuda): pointers,
// shapes and strides of what the structs of ops.h hold. Nothing is read, copied or checked.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/matrix.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

native::Element ElementOf(at::ScalarType type);

// The first `rows` rows of x [.., cols], which may be a column slice. An undefined tensor is null.
native::ConstMatrix In(const at::Tensor& x, int64_t rows);
native::Matrix Out(const at::Tensor& x, int64_t rows);

// The elements of a contiguous tensor; null where it is undefined.
float* Floats(const at::Tensor& x);
uint8_t* Bytes(const at::Tensor& x);

native::RowIds IdsOf(const PackedRows* rows);  // null: none

native::ResidualNormForwardArgs ArgsOf(const ResidualNormArgs& a);
// `dy_RD` stands for a.dy_RD, in float32; undefined: the kernel is given a.dy_RD by itself.
native::ResidualNormBackwardArgs ArgsOf(const ResidualNormGradArgs& a, const at::Tensor& dy_RD);
native::ScaleShiftForwardArgs ArgsOf(const ScaleShiftArgs& a);
native::ScaleShiftBackwardArgs ArgsOf(const ScaleShiftGradArgs& a);
native::AttentionForwardArgs ArgsOf(const AttentionArgs& a);
native::AttentionBackwardArgs ArgsOf(const AttentionGradArgs& g);
native::DecodeAttentionArgs ArgsOf(const DecodeAttentionArgs& a);
native::EmbedForwardArgs ArgsOf(const EmbedArgs& a);
// For the table of tokens; PositionArgsOf for the learned positions.
native::EmbedBackwardArgs ArgsOf(const EmbedGradArgs& a);
native::EmbedBackwardArgs PositionArgsOf(const EmbedGradArgs& a);
native::AdamRange RangeOf(const AdamArgs& a);

}  // namespace deepnet
