// The feed-forward block as a sub-layer: two products with RELU or GELU between them.
//
// Letters: R rows, D width, F inner width.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/model/residual.h"
#include "trainer/model/sublayer.h"

namespace deepnet {

class FeedForward {
 public:
  struct Saved {
    bool recomputed = false;  // the three below are the workspace's, recomputed by Backward
    at::Tensor inner_RF;      // operand: after the activation (and its dropout)
    at::Tensor pre_RF;        // operand: before GELU; undefined with RELU
    at::Tensor mask;          // of activation dropout
    NormState inner;
    ResidualConnection::Saved residual;
  };

  FeedForward(const BuildContext& build, const SublayerPlace& place);

  Saved MakeSaved(const Ops& ops, int64_t capacity,
                  const Workspace* recompute_work = nullptr) const;
  void Forward(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Saved& saved) const;
  const ResidualConnection& residual() const { return residual_; }

 private:
  // Computes the inner rows from the branch's input.
  void MakeInner(const PassContext& pass, const at::Tensor& input_RD, Saved& saved) const;
  // Turns the gradient of the second matrix's input into that of the first one's output, in place.
  void BackwardInner(const PassContext& pass, const at::Tensor& dinner_RF, Saved& saved) const;

  int64_t width_, inner_;
  bool gelu_;
  DropoutSite dropout_;
  LinearLayer fc1_, fc2_;
  ResidualConnection residual_;
  InnerNorm inner_norm_;
  std::optional<ScaleShift> middle_shift_;  // after the first matrix
};

}  // namespace deepnet
