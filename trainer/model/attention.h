// Attention as a sub-layer: of the rows of a stack to themselves, or of the decoder's rows to the
// encoder's output.
//
// Letters: R rows, D width, H heads.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/model/residual.h"
#include "trainer/model/sublayer.h"

namespace deepnet {

class AttentionLayer {
 public:
  struct Saved {
    bool recomputed = false;  // the products below lie in workspaces; Backward recomputes them
    at::Tensor projected_RC;  // operand, of the own rows: q, k and v; in cross-attention q
    at::Tensor kv_R2D;        // operand, of the keys' rows: a slice of the above in self-attention
    at::Tensor q_RD, k_RD, v_RD;  // operand: slices
    at::Tensor context_RD;        // operand
    at::Tensor log_sum_exp_RH;    // residual
    NormState inner;
    ResidualConnection::Saved residual;
  };

  // `place.kind`: kSelfAttention, or kCrossAttention, whose keys and values come from
  // pass.encoder_output. In a decoder's self-attention a row sees the rows of its sentence up to
  // itself; otherwise all of them.
  AttentionLayer(const BuildContext& build, const SublayerPlace& place);

  // `source_capacity`: of the rows of the encoder's output. `recompute_work` holds what is not
  // kept, `source_recompute_work` the keys and values of those rows; null: everything is kept.
  Saved MakeSaved(const Ops& ops, int64_t capacity, int64_t source_capacity,
                  const Workspace* recompute_work = nullptr,
                  const Workspace* source_recompute_work = nullptr) const;
  void Forward(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;
  void Backward(const PassContext& pass, const Upstream& upstream, const at::Tensor& dstream_RD,
                Saved& saved) const;
  // Cross-attention: writes keys and values of all rows of the encoder's output to kv_R2D
  // (operand); Forward does it for a microbatch, decoding once for a batch of sentences.
  void FillCache(const PassContext& pass, const at::Tensor& kv_R2D) const;
  // Decoding: one new row for each hypothesis.
  void Step(const PassContext& pass, const ResidualStream& stream, Saved& saved,
            const StepCache& cache) const;
  const ResidualConnection& residual() const { return residual_; }

 private:
  void Project(const PassContext& pass, const at::Tensor& input_RD, Saved& saved) const;
  AttentionArgs Args(const PassContext& pass, const Saved& saved) const;
  void LeaveBranch(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;

  int64_t width_;
  int heads_;
  bool causal_;
  DropoutSite dropout_;
  LinearLayer project_;            // of the own rows
  std::optional<LinearLayer> kv_;  // cross-attention: of the encoder's output
  LinearLayer out_;
  ResidualConnection residual_;
  InnerNorm inner_norm_;
};

}  // namespace deepnet
