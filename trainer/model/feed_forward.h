// The feed-forward block as a sub-layer: two products with RELU or GELU between them.
//
// Letters: R rows, D width, F inner width.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/model/sublayer.h"

namespace deepnet {

class FeedForward {
 public:
  struct Saved {
    bool again = false;   // the three below are the workspace's, made again by Backward
    at::Tensor inner_RF;  // operand: after the activation (and its dropout)
    at::Tensor pre_RF;    // operand: before GELU; undefined with RELU
    at::Tensor mask;      // of activation dropout
    NormState inner;
    JoinSaved join;
  };

  FeedForward(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int stack, int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity, const Workspace* again = nullptr) const;
  void Forward(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  void Refresh(Ops& ops);
  const Join& join() const { return join_; }

 private:
  // Inner rows from the branch's input.
  void MakeInner(const PassContext& pass, const at::Tensor& input_RD, Saved& saved) const;
  // The gradient before the first matrix from that behind the second one's input, in place.
  void BackwardInner(const PassContext& pass, const at::Tensor& dinner_RF, Saved& saved) const;

  int64_t width_, inner_;
  bool gelu_;
  DropoutSite dropout_;
  LinearLayer fc1_, fc2_;
  Join join_;
  BeforeLast before_last_;
  std::optional<Modulation> middle_shift_;  // behind the first matrix
};

}  // namespace deepnet
