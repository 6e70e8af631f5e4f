// The two ends of the chain, where rows are tokens: the lookup in an embedding matrix, and the
// product with one that gives the loss.
//
// Letters: R rows, D width, V vocabulary, P positions.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

// fairseq's sinusoidal positions [count, width] with offset 2: row p is the one of position p + 2.
// Computed in double precision.
at::Tensor SinusoidalPositions(int64_t count, int64_t width);

// Tokens and positions of one stack; `use` is kSourceEmbedding or kTargetEmbedding.
class Embedding {
 public:
  Embedding(const BuildContext& build, LayerKind use);

  // The mask of one microbatch of at most `capacity` rows; undefined without dropout.
  at::Tensor MaskFor(const Ops& ops, int64_t capacity) const;
  void Forward(const PassContext& pass, const ResidualStream& stream, const at::Tensor& mask) const;
  // `dx_RD` (residual): gradient of what Forward wrote; overwritten by its masked form.
  void Backward(const PassContext& pass, const at::Tensor& dx_RD, const at::Tensor& mask) const;

 private:
  int stack_;
  double scale_, dropout_;
  int64_t width_;
  TrainedTensor table_VD_;      // gradient: the accumulator of this use
  TrainedTensor positions_PD_;  // gradient undefined if fixed
};

struct LossArgs {
  double label_smoothing = 0.0;
  double gradient_scale = 1.0;  // 1 / target tokens of the step, or the loss scale
  // Residual: gets the gradient of the last hidden rows, and that of the matrix is added to its
  // accumulator. Undefined: neither is wanted.
  at::Tensor dhidden_RD = {};
  // Host memory, written by the end of the next DeviceSession::ReadBack; null: not wanted.
  LossSums* sums = nullptr;    // of all rows
  float* token_nll = nullptr;  // [rows]
};

// The matrix whose product with the last hidden rows gives logits.
class OutputLayer {
 public:
  explicit OutputLayer(const BuildContext& build);

  // Computes the loss of the microbatch's labels from `hidden_RD` (operand).
  void Loss(const PassContext& pass, const at::Tensor& hidden_RD, const LossArgs& loss) const;
  // Writes `logits_RV` (residual).
  void Logits(const PassContext& pass, const at::Tensor& hidden_RD,
              const at::Tensor& logits_RV) const;

 private:
  const Weight* weight_VD_;
  at::Tensor dweight_VD_;
};

}  // namespace deepnet
