// Self-attention as a sub-layer: queries, keys and values of one stack's own rows.
//
// Letters: R rows, D width, H heads.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/model/sublayer.h"

namespace deepnet {

class SelfAttention {
 public:
  struct Saved {
    bool again = false;                    // qkv is the workspace's, made again by Backward
    at::Tensor qkv_R3D, q_RD, k_RD, v_RD;  // operand; the latter are slices
    at::Tensor context_RD;                 // operand
    at::Tensor log_sum_exp_RH;             // stream
    NormState inner;
    JoinSaved join;
  };

  SelfAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int stack,
                int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity, const Workspace* again = nullptr) const;
  void Forward(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  // One new row per hypothesis; its key and value go to row `first_row` + hypothesis of `cache`.
  void Step(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved,
            KeyValueCache& cache, int64_t first_row, const CacheIndex& index) const;
  void Refresh(Ops& ops);
  const Join& join() const { return join_; }

 private:
  AttentionArgs Args(const PassContext& pass, const Saved& saved) const;

  int64_t width_;
  int heads_;
  DropoutSite dropout_;
  LinearLayer qkv_, out_;
  Join join_;
  BeforeLast before_last_;
};

}  // namespace deepnet
