// How a sub-layer joins the residual stream: the seam at which residual schemes differ.
//
// A sub-layer (attention or feed-forward) is a branch f between two hooks of its join:
//
//   input  = Enter(stream)            post-norm: the stream itself    pre-norm: LN(stream)
//   branch = f(input)
//   stream = Leave(stream, branch)    post-norm: LN(alpha stream + dropout(branch))
//                                     pre-norm:  stream + dropout(branch)
//
// and backwards: LeaveBackward turns the gradient of the stream into that of the branch, the branch
// writes the gradient of its input where InputGradientAddsToStream says, EnterBackward finishes.
// DEEPNORM and POST_LN are one join with different alpha; another scheme is another class here.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"

namespace deepnet {

// The residual stream of one stack: rows in stream type and, for products, in operand type. Both
// are one tensor where the types are.
struct Stream {
  at::Tensor value_RD;
  at::Tensor operand_RD;
};

class DeferredWeights;

// What a pass needs to know besides its tensors.
struct PassContext {
  Ops* ops = nullptr;
  const PackedRows* rows = nullptr;  // of this stack
  uint64_t seed = 0;
  int64_t step = 0;
  bool keep = true;  // training: dropout on, state kept for the backward pass
  // Backward: weight gradients go here instead of being computed; null: they are computed.
  DeferredWeights* deferred = nullptr;
};

// Gain and bias of one normalisation with their accumulators.
struct NormParameters {
  NormParameters(const Parameters& parameters, const std::string& name);
  at::Tensor gain_D, bias_D, dgain_D, dbias_D;
};

class Join;

// What a join keeps of one microbatch.
struct JoinSaved {
  NormState norm;
  at::Tensor mask;
};

// Where the stream that a sub-layer reads came from: an earlier join, or the embedding.
struct Upstream {
  const Join* join = nullptr;
  const JoinSaved* saved = nullptr;
  at::Tensor embedded_RD;  // operand; used where join is null
};

struct JoinOptions {
  double alpha = 1.0;
  double dropout = 0.0;
  double epsilon = 1e-5;
  int stack = 0;  // 0 encoder, 1 decoder
  int layer = 0;
  Site site = kSiteSelfAttention;
};

class Join {
 public:
  Join(JoinOptions options, NormParameters norm) : options_(options), norm_(std::move(norm)) {}
  virtual ~Join() = default;

  // Buffers of one microbatch of at most `capacity` rows.
  JoinSaved MakeSaved(const Ops& ops, int64_t capacity, int64_t width) const;

  // The branch's input (operand), valid until the stream changes; may use `scratch_RD` (operand).
  virtual at::Tensor Enter(const PassContext& pass, const Stream& stream,
                           const at::Tensor& scratch_RD, JoinSaved& saved) const = 0;
  // The stream after the sub-layer, in place.
  virtual void Leave(const PassContext& pass, const Stream& stream, const at::Tensor& branch_RD,
                     JoinSaved& saved) const = 0;

  // The branch's input again, bit for bit; may use `scratch_RD` (operand).
  virtual at::Tensor Input(const PassContext& pass, const JoinSaved& saved,
                           const Upstream& upstream, const at::Tensor& scratch_RD) const = 0;
  // `dstream_RD` (stream): gradient behind the sub-layer on entry, of the residual path on return.
  // Writes the branch's gradient to `dbranch_RD` (operand).
  virtual void LeaveBackward(const PassContext& pass, JoinSaved& saved,
                             const at::Tensor& dstream_RD, const at::Tensor& dbranch_RD) const = 0;
  // True: the branch adds the gradient of its input to the stream's; false: it writes it to a
  // buffer that EnterBackward then reads.
  virtual bool InputGradientAddsToStream() const = 0;
  virtual void EnterBackward(const PassContext& pass, JoinSaved& saved, const at::Tensor& dinput_RD,
                             const at::Tensor& dstream_RD) const = 0;

  // Output of a join that ends in a normalisation, again.
  void Output(const PassContext& pass, const JoinSaved& saved, const at::Tensor& y_RD) const;

 protected:
  DropoutSite Dropout(const PassContext& pass) const;

  JoinOptions options_;
  NormParameters norm_;
};

// The join of `residual`.
std::unique_ptr<Join> MakeJoin(Residual residual, JoinOptions options, NormParameters norm);

}  // namespace deepnet
