// Encoder and decoder layers: sub-layers with hand-written backward passes.
//
// A sub-layer owns no tensors of a microbatch: what forward keeps for backward is in its Saved,
// what is only used in between is in a Workspace shared by all layers of a stage. The input of a
// branch's first product is not kept but computed again from the normalisation before it
// (Join::Input).
//
// Letters: R rows, D width, F inner width, H heads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/depth_scaling.h"
#include "trainer/model/parameters.h"
#include "trainer/model/residual.h"

namespace deepnet {

// One or several matrices of equal input, adjacent in the parameters, as one product.
class LinearLayer {
 public:
  LinearLayer(Ops& ops, const Parameters& parameters, const std::vector<std::string>& names);

  void Refresh(Ops& ops) { ops.Refresh(*weight_); }
  const Weight& weight() const { return *weight_; }
  void Forward(const PassContext& pass, const at::Tensor& x, bool relu, const at::Tensor& y) const {
    pass.ops->Linear(pass.rows->count, x, *weight_, bias_, relu, y);
  }
  void BackwardInput(const PassContext& pass, const at::Tensor& dy, const at::Tensor& relu_output,
                     bool accumulate, const at::Tensor& dx) const {
    pass.ops->LinearBackwardInput(pass.rows->count, dy, *weight_, relu_output, accumulate, dx);
  }
  void BackwardWeight(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x) const {
    pass.ops->LinearBackwardWeight(pass.rows->count, dy, x, dweight_, dbias_);
  }

 private:
  std::unique_ptr<Weight> weight_;
  at::Tensor bias_, dweight_, dbias_;
};

// Buffers that live only inside one sub-layer; one set a stage.
struct Workspace {
  Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity);

  at::Tensor input_RD;     // operand: a branch's input
  at::Tensor branch_RD;    // stream: a branch's output
  at::Tensor dbranch_RD;   // operand
  at::Tensor dcontext_RD;  // operand
  at::Tensor dqkv_R3D;     // operand
  at::Tensor dinput_RD;    // stream: gradient of a pre-norm branch's input
  at::Tensor dinner_RF;    // operand
};

// The encoder's output as a decoder layer sees it, and the float32 sum of its gradients: a left
// fold over decoder layers M..1.
struct Memory {
  const PackedRows* rows = nullptr;
  at::Tensor value_RD;     // operand
  at::Tensor gradient_RD;  // stream; += in the backward pass
};

// Keys and values of one attention for incremental decoding: rows are appended, lists name them.
struct KeyValueCache {
  at::Tensor keys_ND, values_ND;  // operand
};

// Which cached rows each hypothesis looks at; see DecodeAttentionArgs.
struct CacheIndex {
  const int32_t* index = nullptr;
  int64_t stride = 0;
  const int32_t* lengths = nullptr;
};

class SelfAttention {
 public:
  struct Saved {
    at::Tensor qkv_R3D, q_RD, k_RD, v_RD;  // operand; the latter are slices
    at::Tensor context_RD;                 // operand
    at::Tensor log_sum_exp_RH;             // stream
    JoinSaved join;
  };

  SelfAttention(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                const Parameters& parameters, int stack, int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity) const;
  void Forward(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  // One new row per hypothesis; its key and value go to row `first_row` + hypothesis of `cache`.
  void Step(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved,
            KeyValueCache& cache, int64_t first_row, const CacheIndex& index) const;
  void Refresh(Ops& ops);
  const Join& join() const { return *join_; }

 private:
  AttentionArgs Args(const PassContext& pass, const Saved& saved) const;

  int64_t width_;
  int heads_;
  DropoutSite dropout_;
  LinearLayer qkv_, out_;
  std::unique_ptr<Join> join_;
};

class CrossAttention {
 public:
  struct Saved {
    at::Tensor q_RD;                // operand
    at::Tensor kv_R2D, k_RD, v_RD;  // operand, rows of the memory
    at::Tensor context_RD;          // operand
    at::Tensor log_sum_exp_RH;      // stream
    JoinSaved join;
  };

  CrossAttention(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
                 const Parameters& parameters, int layer);

  Saved MakeSaved(const Ops& ops, int64_t source_capacity, int64_t target_capacity) const;
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
  const Join& join() const { return *join_; }

 private:
  AttentionArgs Args(const PassContext& pass, const Memory& memory, const Saved& saved) const;

  int64_t width_;
  int heads_;
  DropoutSite dropout_;
  LinearLayer q_, kv_, out_;
  std::unique_ptr<Join> join_;
};

class FeedForward {
 public:
  struct Saved {
    at::Tensor inner_RF;  // operand: after the activation (and its dropout)
    at::Tensor pre_RF;    // operand: before GELU; undefined with RELU
    at::Tensor mask;      // of activation dropout
    JoinSaved join;
  };

  FeedForward(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
              const Parameters& parameters, int stack, int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity) const;
  void Forward(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  void Refresh(Ops& ops);
  const Join& join() const { return *join_; }

 private:
  int64_t width_, inner_;
  bool gelu_;
  DropoutSite dropout_;
  LinearLayer fc1_, fc2_;
  std::unique_ptr<Join> join_;
};

class EncoderLayer {
 public:
  struct Saved {
    SelfAttention::Saved attention;
    FeedForward::Saved feed_forward;
  };

  EncoderLayer(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
               const Parameters& parameters, int layer);

  Saved MakeSaved(const Ops& ops, int64_t capacity) const;
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

class DecoderLayer {
 public:
  struct Saved {
    SelfAttention::Saved self_attention;
    CrossAttention::Saved cross_attention;
    FeedForward::Saved feed_forward;
  };

  DecoderLayer(const ModelSpec& spec, const DepthScaling& scaling, Ops& ops,
               const Parameters& parameters, int layer);

  Saved MakeSaved(const Ops& ops, int64_t source_capacity, int64_t target_capacity) const;
  void Forward(const PassContext& pass, const Memory& memory, const Stream& stream, Workspace& work,
               Saved& saved) const;
  void Backward(const PassContext& pass, const Memory& memory, const Upstream& upstream,
                const at::Tensor& dstream_RD, Workspace& work, Workspace& memory_work,
                Saved& saved) const;
  void FillCache(const PassContext& pass, const Memory& memory, const at::Tensor& kv_R2D) const {
    cross_attention_.FillCache(pass, memory, kv_R2D);
  }
  void Step(const PassContext& pass, const Stream& stream, Workspace& work, Saved& saved,
            KeyValueCache& self_cache, int64_t first_row, const CacheIndex& self_index,
            const KeyValueCache& memory_cache, const CacheIndex& memory_index) const;
  Upstream Output(const Saved& saved) const;
  void Refresh(Ops& ops);

 private:
  SelfAttention self_attention_;
  CrossAttention cross_attention_;
  FeedForward feed_forward_;
};

}  // namespace deepnet
