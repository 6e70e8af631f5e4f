// The ends of the chain, where rows are tokens: lookup in an embedding matrix, and the product with
// one that ends in the loss.
//
// Letters: R rows, D width, V vocabulary, P positions.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/residual.h"

namespace deepnet {

// The matrix that `use` reads in `model`, as trainer/model/describe.h names it.
std::string EmbeddingName(const ModelSpec& model, EmbeddingUse use);

// fairseq's sinusoidal positions [count, width], offset 2: row p is that of position p + 2;
// computed in double precision.
at::Tensor SinusoidalPositions(int64_t count, int64_t width);

// Tokens and positions of one stack; `use` is kSource or kTarget.
class Embedding {
 public:
  Embedding(const ModelSpec& spec, const Ops& ops, const Parameters& parameters, EmbeddingUse use);

  // The mask of one microbatch of at most `capacity` rows; undefined without dropout.
  at::Tensor MakeMask(const Ops& ops, int64_t capacity) const;
  void Forward(const PassContext& pass, const Stream& stream, const at::Tensor& mask) const;
  // `dx_RD` (stream): gradient of what Forward wrote; overwritten by its masked form.
  void Backward(const PassContext& pass, const at::Tensor& dx_RD, const at::Tensor& mask) const;

 private:
  int stack_;
  double scale_, dropout_;
  int64_t width_;
  at::Tensor table_VD_, dtable_VD_;          // dtable: the accumulator of this use
  at::Tensor positions_PD_, dpositions_PD_;  // dpositions undefined if fixed
};

struct LossOptions {
  double label_smoothing = 0.0;
  double gradient_scale = 1.0;  // 1 / target tokens of the step
};

// The matrix whose product with the last hidden rows gives logits.
class OutputLayer {
 public:
  OutputLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters);

  // Loss of `labels` [rows], summed. With `dhidden_RD` (stream) defined: the gradient of
  // `hidden_RD` (operand), and that of the matrix is added to its accumulator. `token_nll` [rows]
  // may be null.
  LossSums Loss(const PassContext& pass, const at::Tensor& hidden_RD, const int32_t* labels,
                const LossOptions& options, const at::Tensor& dhidden_RD, float* token_nll) const;
  // `logits_RV` (stream) out.
  void Logits(const PassContext& pass, const at::Tensor& hidden_RD,
              const at::Tensor& logits_RV) const;
  void Refresh(Ops& ops) { ops.Refresh(*weight_VD_); }

 private:
  std::unique_ptr<Weight> weight_VD_;
  at::Tensor dweight_VD_;
};

}  // namespace deepnet
