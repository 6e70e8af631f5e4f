// The parts of a model that depend on its residual scheme (trainer/model/scheme.h), on tensors: the
// connection of a sub-layer with the residual stream, the step before a branch's last matrix, and
// the step at the end of a stack.
//
// A sub-layer (attention or feed-forward) is a branch f between two hooks of its
// ResidualConnection:
//
//   input  = Enter(stream)            post-norm: the stream itself    pre-norm: N(stream)
//   branch = f(input)
//   stream = Leave(stream, branch)    post-norm: N(alpha stream + dropout(branch))
//                                     pre-norm:  stream + dropout(branch)
//
// In the backward pass LeaveBackward turns the gradient of the stream into that of the branch, the
// branch writes the gradient of its input where InputGradientAddsToStream says, and EnterBackward
// finishes.
//
// Nothing is kept twice: the branch's input is computed again from the norm that made it, which is
// the branch's own or the one that ended the sub-layer before; only where there is no norm the
// stream itself is kept.
//
// Letters: R rows, D width, I inner features: the width in an attention, the inner width in a
// feed-forward block.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"
#include "trainer/model/scheme.h"

namespace deepnet {

struct Upstream;

class ResidualConnection {
 public:
  // State of one microbatch. Tensors that the scheme does not need are undefined.
  struct Saved {
    // Those of the scheme's norms, in the order input, output, end, without gaps: layers of MIX_LN,
    // which have one norm in either place, share them.
    std::array<NormState, 3> norms;
    at::Tensor stream_RD;  // residual: as it entered
    at::Tensor branch_RD;  // residual: before its trained factor
    at::Tensor mask;       // of dropout
  };

  ResidualConnection(const BuildContext& build, const SublayerPlace& place);

  // Buffers of one microbatch of at most `capacity` rows.
  Saved MakeSaved(const Ops& ops, int64_t capacity) const;

  // Returns the branch's input (operand), valid until the stream or work->input_RD changes.
  at::Tensor Enter(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;
  // Makes the stream after the sub-layer, in place, from the branch's output in work->branch_RD,
  // which some schemes overwrite.
  void Leave(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;

  // Returns the branch's input once more, with the same bits; valid like that of Enter.
  at::Tensor Input(const PassContext& pass, const Saved& saved, const Upstream& upstream) const;
  // `dstream_RD` (residual): gradient after the sub-layer on entry, of the residual path on return.
  // Writes the branch's gradient to work->dbranch_RD.
  void LeaveBackward(const PassContext& pass, Saved& saved, const at::Tensor& dstream_RD) const;
  // True: the branch adds the gradient of its input to the stream's; false: it writes it to
  // work->dinput_RD, which EnterBackward then reads and overwrites.
  bool InputGradientAddsToStream() const { return !scheme_.input_norm && !scheme_.shifts; }
  // Returns where the branch writes it.
  const at::Tensor& InputGradient(const PassContext& pass, const at::Tensor& dstream_RD) const {
    return InputGradientAddsToStream() ? dstream_RD : pass.work->dinput_RD;
  }
  void EnterBackward(const PassContext& pass, Saved& saved, const at::Tensor& dstream_RD) const;

 private:
  // Index into Saved::norms.
  int OutputIndex() const { return scheme_.input_norm ? 1 : 0; }
  int EndIndex() const { return scheme_.NumNorms() - 1; }
  at::Tensor SecondStream(const PassContext& pass) const;
  at::Tensor BranchInput(const PassContext& pass, const ResidualStream& stream, Saved& saved) const;
  void ShowLeave(const PassContext& pass, const ResidualStream& stream, const Saved& saved) const;
  void AddDropped(const PassContext& pass, const at::Tensor& stream_RD, const Saved& saved) const;

  SublayerPlace place_;
  SublayerScheme scheme_;
  DropoutSite dropout_;
  int64_t width_;
  std::optional<NormLayer> input_norm_, output_norm_, end_norm_;
  std::optional<ScaleShift> stream_scale_, branch_scale_, shift_;
};

// The origin of the stream that a sub-layer reads: the residual connection before it, or the
// embedding.
struct Upstream {
  const ResidualConnection* residual = nullptr;
  const ResidualConnection::Saved* saved = nullptr;
  at::Tensor embedded_RD;  // operand; used where `residual` is null
};

// A site of the sub-layer at `place`, and the same in a pass: without dropout where nothing is kept
// for a backward pass.
DropoutSite SiteOf(const SublayerPlace& place, Site site, double rate);
DropoutSite At(DropoutSite site, const PassContext& pass);

// The step that some schemes put between the inside of a branch and its last matrix: a
// normalisation (SUB_LN, NORMFORMER), a factor for each head (NORMFORMER), a shift (R_FIXUP).
class InnerNorm {
 public:
  InnerNorm(const BuildContext& build, const SublayerPlace& place);

  // False: the last matrix reads the inside itself.
  bool any() const { return norm_.has_value() || scale_shift_.has_value(); }
  NormState MakeState(const Ops& ops, int64_t capacity) const;

  // Returns the last matrix's input (operand): `inside_RI` itself, or `scratch_RI` with what is
  // made of it.
  at::Tensor Forward(const PassContext& pass, const at::Tensor& inside_RI,
                     const at::Tensor& scratch_RI, NormState& state) const;
  // Returns the same once more, with the same bits.
  at::Tensor Recompute(const PassContext& pass, const at::Tensor& inside_RI,
                       const at::Tensor& scratch_RI, const NormState& state) const;
  // `dy_RI` (operand): gradient of the last matrix's input on entry, of the inside on return.
  void Backward(const PassContext& pass, const at::Tensor& dy_RI, const at::Tensor& inside_RI,
                NormState& state) const;

 private:
  std::optional<NormLayer> norm_;
  std::optional<ScaleShift> scale_shift_;
};

// The step after the last layer of a stack, where a scheme has one: a normalisation in pre-norm
// schemes, trained numbers in R_FIXUP, the norm of the second stream in RESIDUAL_DUAL. It belongs
// to no sub-layer.
class StackEndStep {
 public:
  // `stack`: 0 encoder, 1 decoder. EndOf(spec) is not kNothing.
  StackEndStep(const BuildContext& build, int stack);

  NormState MakeState(const Ops& ops, int64_t capacity) const;
  // Changes the stream in place, in both types.
  void Forward(const PassContext& pass, const ResidualStream& stream, NormState& state) const;
  // `dstream_RD` (residual): gradient after the step on entry, before it on return. With a second
  // stream, pass.second_RD holds that stream's gradient on return.
  void Backward(const PassContext& pass, const at::Tensor& dstream_RD, NormState& state) const;

 private:
  int64_t width_;
  bool second_;  // the norm is that of the second stream
  std::optional<NormLayer> norm_;
  std::optional<ScaleShift> scale_shift_;  // keeps the stream where a norm keeps normalised rows
};

}  // namespace deepnet
