// DLCL (Wang et al., 2019, arXiv:1906.01787, section 3): what a layer reads is a trained sum of all
// layers before it, pre-norm form.
//
//   z_0 = what entered the stack        z_k = N_k(output of layer k)
//   input of layer l + 1 = sum over k <= l of W[l, k] z_k;  output of the stack: l = number of
//   layers
//
// Rows of W start as means: W[l, k] = 1 / (l + 1). Every z_k is kept until the backward pass is
// behind its layer, whatever the level of recomputation; gradients of all z_k grow together. So a
// stack with a history is in one piece: no cut of a pipeline goes through it
// (Inventory::one_piece).
//
// Letters: R rows, D width.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

class LayerHistory {
 public:
  // What one microbatch keeps: z_0 .. z_n (stream), and states of the n norms.
  struct Saved {
    std::vector<at::Tensor> outputs_RD;
    std::vector<NormState> norms;
  };

  // Of a whole stack: 0 encoder, 1 decoder.
  LayerHistory(const ModelSpec& spec, const Parameters& parameters, int stack);

  // `trains`: with states of norms.
  Saved MakeSaved(const Ops& ops, int64_t capacity, bool trains) const;
  // Gradients of z_0 .. z_n, for one backward pass at a time.
  std::vector<at::Tensor> MakeGradients(const Ops& ops, int64_t capacity) const;

  // z_0 = the stream.
  void Begin(const PassContext& pass, const Stream& stream, Saved& saved) const;
  // The stream becomes the input of `layer` (from 0), or with the number of layers the output.
  void Mix(const PassContext& pass, int layer, const Stream& stream, const Saved& saved) const;
  // z_(layer + 1) from the stream behind `layer`.
  void Keep(const PassContext& pass, int layer, const Stream& stream, Saved& saved) const;

  // Backwards, from the output on. Mix's: the gradient of its result goes to those of the z_k and
  // of the weights; `gradients` start at the output's Mix.
  void MixBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                   const Saved& saved, const std::vector<at::Tensor>& gradients) const;
  // Keep's: `dstream_RD` becomes the gradient of the stream behind `layer`.
  void KeepBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD, Saved& saved,
                    const std::vector<at::Tensor>& gradients) const;
  // Begin's: `dstream_RD` becomes that of the stream that entered the stack.
  void BeginBackward(const PassContext& pass, const at::Tensor& dstream_RD,
                     const std::vector<at::Tensor>& gradients) const;

 private:
  int64_t width_;
  std::vector<at::Tensor> weights_, dweights_;  // [layer + 1]; behind them those of the output
  std::vector<NormLayer> norms_;                // of z_1 .. z_n
};

}  // namespace deepnet
