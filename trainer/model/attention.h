// The two attentions as sub-layers.
//
// Letters: R rows, D width, H heads.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/model/sublayer.h"

namespace deepnet {

// Queries, keys and values come from one stack's own rows.
class SelfAttention {
 public:
  struct Saved {
    bool recomputed = false;               // qkv is the workspace's, recomputed by Backward
    at::Tensor qkv_R3D, q_RD, k_RD, v_RD;  // operand; the latter are slices
    at::Tensor context_RD;                 // operand
    at::Tensor log_sum_exp_RH;             // residual
    NormState inner;
    ResidualConnection::Saved residual;
  };

  // `causal`: a row sees the rows of its sentence up to itself; otherwise all of them.
  SelfAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int stack, int layer,
                bool causal);

  // `recompute_work`: holds what is not kept; null: everything is kept.
  Saved MakeSaved(const Ops& ops, int64_t capacity,
                  const Workspace* recompute_work = nullptr) const;
  void Forward(const PassContext& pass, const ResidualStream& stream, Workspace& work,
               Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Workspace& work, Saved& saved) const;
  // Decoding: one new row for each hypothesis. Its key and value go to row `first_row` + hypothesis
  // of `cache`.
  void Step(const PassContext& pass, const ResidualStream& stream, Workspace& work, Saved& saved,
            KeyValueCache& cache, int64_t first_row, const CacheIndex& index) const;
  void Refresh(Ops& ops);
  const ResidualConnection& residual() const { return residual_; }

 private:
  AttentionArgs Args(const PassContext& pass, const Saved& saved) const;

  int64_t width_;
  int heads_;
  bool causal_;
  DropoutSite dropout_;
  LinearLayer qkv_, out_;
  ResidualConnection residual_;
  InnerNorm inner_norm_;
};

// Queries come from the decoder's rows, keys and values from the encoder's output.
class CrossAttention {
 public:
  struct Saved {
    bool recomputed = false;        // q and kv are the workspaces', recomputed by Backward
    at::Tensor q_RD;                // operand
    at::Tensor kv_R2D, k_RD, v_RD;  // operand, rows of the encoder's output
    at::Tensor context_RD;          // operand
    at::Tensor log_sum_exp_RH;      // residual
    NormState inner;
    ResidualConnection::Saved residual;
  };

  CrossAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer);

  // As above; keys and values are in `source_recompute_work`.
  Saved MakeSaved(const Ops& ops, int64_t source_capacity, int64_t target_capacity,
                  const Workspace* recompute_work = nullptr,
                  const Workspace* source_recompute_work = nullptr) const;
  void Forward(const PassContext& pass, const EncoderOutput& encoder_output,
               const ResidualStream& stream, Workspace& work, Saved& saved) const;
  void Backward(const PassContext& pass, const EncoderOutput& encoder_output,
                const Upstream& upstream, const at::Tensor& dstream_RD, Workspace& work,
                Workspace& source_work, Saved& saved) const;
  // Keys and values of all rows of the encoder's output into kv_R2D (operand): for decoding, once
  // for each batch of sentences.
  void FillCache(const PassContext& pass, const EncoderOutput& encoder_output,
                 const at::Tensor& kv_R2D) const;
  void Step(const PassContext& pass, const ResidualStream& stream, Workspace& work, Saved& saved,
            const KeyValueCache& cache, const CacheIndex& index) const;
  void Refresh(Ops& ops);
  const ResidualConnection& residual() const { return residual_; }

 private:
  void Project(const PassContext& pass, const EncoderOutput& encoder_output,
               const at::Tensor& input_RD, Saved& saved) const;
  AttentionArgs Args(const PassContext& pass, const EncoderOutput& encoder_output,
                     const Saved& saved) const;

  int64_t width_;
  int heads_;
  DropoutSite dropout_;
  LinearLayer q_, kv_, out_;
  ResidualConnection residual_;
  InnerNorm inner_norm_;
};

}  // namespace deepnet
