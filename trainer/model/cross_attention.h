// Cross-attention as a sub-layer: queries of the target's rows, keys and values of the memory's.
//
// Letters: R rows, D width, H heads.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/model/sublayer.h"

namespace deepnet {

class CrossAttention {
 public:
  struct Saved {
    bool again = false;             // q and kv are of the workspaces, made again by Backward
    at::Tensor q_RD;                // operand
    at::Tensor kv_R2D, k_RD, v_RD;  // operand, rows of the memory
    at::Tensor context_RD;          // operand
    at::Tensor log_sum_exp_RH;      // stream
    NormState inner;
    JoinSaved join;
  };

  CrossAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer);

  Saved MakeSaved(const Ops& ops, int64_t source_capacity, int64_t target_capacity,
                  const Workspace* again = nullptr, const Workspace* memory_again = nullptr) const;
  void Forward(const PassContext& pass, const Memory& memory, const Stream& stream, Workspace& work,
               Saved& saved) const;
  void Backward(const PassContext& pass, const Memory& memory, const Upstream& upstream,
                const at::Tensor& dstream_RD, Workspace& work, Workspace& memory_work,
                Saved& saved) const;
  // Keys and values of the whole memory, once per sentence batch, into kv_R2D (operand).
  void FillCache(const PassContext& pass, const Memory& memory, const at::Tensor& kv_R2D) const;
  void Step(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved,
            const KeyValueCache& cache, const CacheIndex& index) const;
  void Refresh(Ops& ops);
  const Join& join() const { return join_; }

 private:
  void Project(const PassContext& pass, const Memory& memory, const at::Tensor& input_RD,
               Saved& saved) const;
  AttentionArgs Args(const PassContext& pass, const Memory& memory, const Saved& saved) const;

  int64_t width_;
  int heads_;
  DropoutSite dropout_;
  LinearLayer q_, kv_, out_;
  Join join_;
  BeforeLast before_last_;
};

}  // namespace deepnet
