// Encoder and decoder layers: sub-layers in their order, with hand-written backward passes.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/model/cross_attention.h"
#include "trainer/model/feed_forward.h"
#include "trainer/model/recompute.h"
#include "trainer/model/self_attention.h"

namespace deepnet {

class EncoderLayer {
 public:
  struct Saved {
    SelfAttention::Saved attention;
    FeedForward::Saved feed_forward;
  };

  EncoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer);

  // At FFN and GEMM what is not kept is in buffers of `work`, which must have them.
  Saved MakeSaved(const Ops& ops, int64_t capacity, Recompute level = NONE,
                  const Workspace* work = nullptr) const;
  void Forward(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  // What the next layer's upstream is.
  Upstream Output(const Saved& saved) const;
  void Refresh(Ops& ops);

 private:
  SelfAttention attention_;
  FeedForward feed_forward_;
};

// Without cross-attention in a model of one stack (trainer/model/architecture.h), which has no
// memory: then nobody looks at `memory`, and Step is not called.
class DecoderLayer {
 public:
  struct Saved {
    SelfAttention::Saved self_attention;
    CrossAttention::Saved cross_attention;
    FeedForward::Saved feed_forward;
  };

  DecoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer);

  // As above; keys and values of the memory are in `memory_work`.
  Saved MakeSaved(const Ops& ops, int64_t source_capacity, int64_t target_capacity,
                  Recompute level = NONE, const Workspace* work = nullptr,
                  const Workspace* memory_work = nullptr) const;
  void Forward(const PassContext& pass, const Memory& memory, const Stream& stream, Workspace& work,
               Saved& saved) const;
  void Backward(const PassContext& pass, const Memory& memory, const Upstream& upstream,
                const at::Tensor& dstream_RD, Workspace& work, Workspace& memory_work,
                Saved& saved) const;
  void FillCache(const PassContext& pass, const Memory& memory, const at::Tensor& kv_R2D) const {
    cross_attention_->FillCache(pass, memory, kv_R2D);
  }
  void Step(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved,
            KeyValueCache& self_cache, int64_t first_row, const CacheIndex& self_index,
            const KeyValueCache& memory_cache, const CacheIndex& memory_index) const;
  Upstream Output(const Saved& saved) const;
  void Refresh(Ops& ops);

 private:
  SelfAttention self_attention_;
  std::optional<CrossAttention> cross_attention_;
  FeedForward feed_forward_;
};

}  // namespace deepnet
