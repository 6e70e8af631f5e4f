// How a sub-layer joins the residual stream: the seam at which residual schemes differ.
//
// A sub-layer (attention or feed-forward) is a branch f between two hooks of its join, which does
// what the sub-layer's scheme says (trainer/model/scheme.h):
//
//   input  = Enter(stream)            post-norm: the stream itself    pre-norm: N(stream)
//   branch = f(input)
//   stream = Leave(stream, branch)    post-norm: N(alpha stream + dropout(branch))
//                                     pre-norm:  stream + dropout(branch)
//
// and backwards: LeaveBackward turns the gradient of the stream into that of the branch, the branch
// writes the gradient of its input where InputGradientAddsToStream says, EnterBackward finishes.
//
// Nothing is kept twice: the branch's input comes again from the norm that made it, its own or the
// one that ended the sub-layer before; only where there is no norm the stream itself is kept.
#pragma once

#include <array>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/modulation.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"
#include "trainer/model/scheme.h"
#include "trainer/model/sublayer_probe.h"

namespace deepnet {

class Join;

// What a join keeps of one microbatch. What its scheme does not need is undefined.
struct JoinSaved {
  std::array<NormState, 3> norms;  // of those it has, in the order input, output, end
  at::Tensor stream_RD;            // stream: as it entered
  at::Tensor branch_RD;            // stream: before its trained factor
  at::Tensor mask;                 // of dropout
};

// Where the stream that a sub-layer reads came from: an earlier join, or the embedding.
struct Upstream {
  const Join* join = nullptr;
  const JoinSaved* saved = nullptr;
  at::Tensor embedded_RD;  // operand; used where join is null
};

class Join {
 public:
  Join(const ModelSpec& spec, const Parameters& parameters, int stack, int layer,
       SublayerKind kind);

  const SublayerScheme& scheme() const { return scheme_; }

  // Buffers of one microbatch of at most `capacity` rows.
  JoinSaved MakeSaved(const Ops& ops, int64_t capacity) const;

  // The branch's input (operand), valid until the stream changes; may use `scratch_RD` (operand).
  at::Tensor Enter(const PassContext& pass, const Stream& stream, const at::Tensor& scratch_RD,
                   JoinSaved& saved) const;
  // The stream after the sub-layer, in place. `branch_RD` (stream) is overwritten by some schemes.
  void Leave(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
             JoinSaved& saved) const;

  // The branch's input again, bit for bit; may use `scratch_RD` (operand).
  at::Tensor Input(const PassContext& pass, const JoinSaved& saved, const Upstream& upstream,
                   const at::Tensor& scratch_RD) const;
  // `dstream_RD` (stream): gradient behind the sub-layer on entry, of the residual path on return.
  // Writes the branch's gradient to `dbranch_RD` (operand).
  void LeaveBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dstream_RD,
                     const at::Tensor& dbranch_RD) const;
  // True: the branch adds the gradient of its input to the stream's; false: it writes it to a
  // buffer that EnterBackward then reads and overwrites.
  bool InputGradientAddsToStream() const { return !scheme_.input_norm && !scheme_.shifts; }
  void EnterBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dinput_RD,
                     const at::Tensor& dstream_RD) const;

 private:
  // Index into JoinSaved::norms.
  int OutputIndex() const { return scheme_.input_norm ? 1 : 0; }
  int EndIndex() const { return scheme_.NumNorms() - 1; }
  DropoutSite Dropout(const PassContext& pass) const;
  at::Tensor SecondStream(const PassContext& pass) const;
  at::Tensor BranchInput(const PassContext& pass, const Stream& stream,
                         const at::Tensor& scratch_RD, JoinSaved& saved) const;
  SublayerView View(const Stream& stream) const;
  void ShowLeave(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
                 const JoinSaved& saved) const;
  void AddBranch(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
                 JoinSaved& saved) const;
  void AddBranchAndNorm(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
                        JoinSaved& saved) const;

  SublayerScheme scheme_;
  SublayerKind kind_;
  DropoutSite dropout_;
  int64_t width_;
  std::optional<NormLayer> input_norm_, output_norm_, end_norm_;
  std::optional<Modulation> stream_scale_, branch_scale_, shift_;
};

}  // namespace deepnet
