// The arithmetic a Transformer layer is written in, forward and backward, on tensors of one device.
//
// Implementations, compared by tests: AtenOps (plain LibTorch on a CPU: the reference, and
// LIBRARY), NativeOps (this project's CPU kernels) and CudaOps (its kernels for GPUs); all are made
// in trainer/kernels/compute.h. None builds an autograd graph: layers call the backward functions
// in order, so exactly what they keep is kept.
//
// Letters: R rows = tokens of a packed microbatch, D width, F inner width, V vocabulary, H heads,
// O x I a weight.
//
// Every implementation keeps these rules:
//   - Types. "operand" is the type of matrix products (float32, bfloat16, float16; float64 in
//     tests), "residual" the type of the residual stream, statistics, gradients and masters
//     (float32; float64 in tests). An argument has the type that its comment says.
//   - Shapes. Tensors are allocated at capacity; `rows` says how many rows are real. The others are
//     neither read nor written. Matrices are row-major with contiguous rows; they may be column
//     slices of wider ones.
//   - Aliasing. An output is none of the inputs, except where "may be" allows it.
//   - Order. Calls take effect in the order in which they were made. Results of a call may be read
//     by copies of LibTorch on the same device without further synchronisation. Only SumSquares and
//     DeviceSession::ReadBack wait for a device, and calls that have no room left for their
//     results; what goes to host memory is there after them.
//   - Bits. Dropout depends on its DropoutSite and the identity of the rows alone. NativeOps gives
//     the same bits for any number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/device_session.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/linear.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/native/sampling.h"

namespace deepnet {

// Values of DropoutSite::site. They never change: the bits of runs depend on them.
enum Site : int {
  kSiteEmbedding = 0,
  kSiteSelfAttention = 1,
  kSiteCrossAttention = 2,
  kSiteFeedForward = 3,
  kSiteSelfAttentionWeights = 4,
  kSiteCrossAttentionWeights = 5,
  kSiteActivation = 6,
};

// A weight in the form that products read. Refresh takes over its master's values.
class Weight {
 public:
  virtual ~Weight() = default;
};

// Tensors as arguments; the headers of the kernels declare the operations' own.
struct Tensors {
  using In = at::Tensor;
  using Out = at::Tensor;
  using InFloats = at::Tensor;
  using Floats = at::Tensor;
  using InMask = at::Tensor;
  using Mask = at::Tensor;
  using Rows = const PackedRows*;
  using Weight = const deepnet::Weight*;
  using Real = double;
};

using LinearArgs = native::LinearArgsOf<Tensors>;
using LinearInputGradArgs = native::LinearInputGradArgsOf<Tensors>;
using NormState = native::NormStateOf<Tensors>;
using ResidualNormArgs = native::ResidualNormArgsOf<Tensors>;
using ResidualNormGradArgs = native::ResidualNormGradArgsOf<Tensors>;
using ScaleShiftArgs = native::ScaleShiftArgsOf<Tensors>;
using ScaleShiftGradArgs = native::ScaleShiftGradArgsOf<Tensors>;
using AttentionArgs = native::AttentionArgsOf<Tensors>;
using AttentionGradArgs = native::AttentionGradArgsOf<Tensors>;
using DecodeAttentionArgs = native::DecodeAttentionArgsOf<Tensors>;
using EmbedArgs = native::EmbedArgsOf<Tensors>;
using EmbedGradArgs = native::EmbedGradArgsOf<Tensors>;
using AdamArgs = native::AdamArgsOf<Tensors>;

// Sums over rows.
struct LossSums {
  double loss = 0.0;  // label-smoothed cross-entropy, nats
  double nll = 0.0;   // negative log-likelihood of the labels, nats
};

// Cross-entropy of softmax(hidden W^T) with fairseq's label smoothing, chunk by chunk of rows: the
// logits of a whole microbatch never exist. With dhidden defined, gradients are computed on the
// way: dhidden = scale * d loss / d hidden, dweight += scale * d loss / d weight.
struct CrossEntropyArgs {
  int64_t rows = 0;
  at::Tensor hidden_RD;  // operand
  const Weight* weight_VD = nullptr;
  const int32_t* labels = nullptr;  // [rows]; -1: no loss
  const RowIndex* index = nullptr;  // of the rows
  double smoothing = 0.0;
  double scale = 1.0;
  at::Tensor dhidden_RD;  // out, residual; undefined: no gradients
  at::Tensor dweight_VD;  // +=, residual
  // Host memory that is written by the end of the next DeviceSession::ReadBack; each may be null.
  LossSums* sums = nullptr;
  float* row_nll = nullptr;  // [rows]
};

// y += factor * x, with a trained factor.
struct AddScaledArgs {
  int64_t rows = 0;
  at::Tensor x_RD;      // residual
  at::Tensor factor_1;  // residual
  at::Tensor y_RD;      // residual, +=
};

struct AddScaledGradArgs {
  int64_t rows = 0;
  at::Tensor dy_RD;      // residual
  at::Tensor x_RD;       // as given to AddScaled
  at::Tensor factor_1;   // likewise
  at::Tensor dx_RD;      // residual, += factor * dy
  at::Tensor dfactor_1;  // residual, += the sum of dy * x over the rows
};

// Where SumSquares writes the sums of the blocks of `x`, residual and contiguous.
struct SquareSums {
  at::Tensor x;
  std::span<double> sums;
};

// The operations that forward and backward passes of layers consist of.
class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual at::TensorOptions ResidualOptions() const = 0;  // residual type and device
  virtual at::TensorOptions OperandOptions() const = 0;   // operand type and device

  // Makes a working copy of `master_OI` (residual, contiguous; shared, not copied). With
  // `backward`, also in the form that LinearBackwardInput reads. Holds no values before Refresh.
  virtual std::unique_ptr<Weight> MakeWeight(at::Tensor master_OI, bool backward) = 0;
  // Takes over the master's values; must be called after each change of the master.
  virtual void Refresh(Weight& weight) = 0;

  virtual void Linear(const LinearArgs& args) = 0;
  virtual void LinearBackwardInput(const LinearInputGradArgs& args) = 0;
  // dw_OI += dy^T x, dbias_O += column sums of dy (undefined: not wanted). dy, x operand; dw, dbias
  // residual. Sums are a chain over fixed blocks of rows.
  virtual void LinearBackwardWeight(int64_t rows, const at::Tensor& dy_RO, const at::Tensor& x_RI,
                                    const at::Tensor& dw_OI, const at::Tensor& dbias_O) = 0;

  virtual void ResidualNorm(const ResidualNormArgs& args) = 0;
  virtual void ResidualNormBackward(const ResidualNormGradArgs& args) = 0;
  // y = xhat * gain + bias: the output (operand) of a ResidualNorm once more, with the same bits.
  // bias may be undefined.
  virtual void NormOutput(int64_t rows, const NormState& state, const at::Tensor& gain_D,
                          const at::Tensor& bias_D, const at::Tensor& y_operand_RD) = 0;
  // The backward pass of a ResidualNorm without a gain: dbranch (operand) = masked dx (residual).
  virtual void AddBranchBackward(int64_t rows, const at::Tensor& dx_RD, double dropout_rate,
                                 const at::Tensor& mask, const at::Tensor& dbranch_RD) = 0;

  virtual void ScaleShift(const ScaleShiftArgs& args) = 0;
  virtual void ScaleShiftBackward(const ScaleShiftGradArgs& args) = 0;

  virtual void Attention(const AttentionArgs& args) = 0;
  virtual void AttentionBackward(const AttentionGradArgs& args) = 0;

  // x = max(0, x), operand. Backward: dx = 0 where relu_output is not positive, both operand.
  virtual void Relu(int64_t rows, const at::Tensor& x_RF) = 0;
  virtual void ReluBackward(int64_t rows, const at::Tensor& relu_output_RF,
                            const at::Tensor& dx_RF) = 0;
  // ReluBackward, then dbias_F (residual) += the column sums of dx, where an Ops does both at once.
  // Only where HasReluBackwardWithBias.
  virtual bool HasReluBackwardWithBias() const { return false; }
  virtual void ReluBackwardWithBias(int64_t /*rows*/, const at::Tensor& /*relu_output_RF*/,
                                    const at::Tensor& /*dx_RF*/, const at::Tensor& /*dbias_F*/) {}
  // h = gelu(pre) in its exact form; operand. Backward: dpre = dh * gelu'(pre); dpre may be dh.
  virtual void Gelu(int64_t rows, const at::Tensor& pre_RF, const at::Tensor& h_RF) = 0;
  virtual void GeluBackward(int64_t rows, const at::Tensor& pre_RF, const at::Tensor& dh_RF,
                            const at::Tensor& dpre_RF) = 0;
  // Dropout of x (operand) in place; writes `mask`. Backward: dx (operand) masked in place.
  virtual void Dropout(int64_t rows, const DropoutSite& dropout, const PackedRows& ids,
                       const at::Tensor& x_RF, const at::Tensor& mask) = 0;
  virtual void DropoutBackward(int64_t rows, double rate, const at::Tensor& mask,
                               const at::Tensor& dx_RF) = 0;

  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void EmbedBackward(const EmbedGradArgs& args) = 0;
  virtual void CrossEntropy(const CrossEntropyArgs& args) = 0;
};

// The operations that decoding needs beside those of a forward pass.
class DecodeOps {
 public:
  virtual ~DecodeOps() = default;

  virtual void DecodeAttention(const DecodeAttentionArgs& args) = 0;
  // logits_RV (residual) = log_softmax(logits_RV), in place.
  virtual void LogSoftmax(int64_t rows, const at::Tensor& logits_RV) = 0;
  // y = log(((n - 1) exp(y) + exp(x)) / n), residual and of equal shape, without gaps: y, averaged
  // over n - 1 models as probabilities, becomes the average over n >= 2.
  virtual void AverageLogProbs(int n, const at::Tensor& x, const at::Tensor& y) = 0;
  // Makes `choices`, whose arrays are as Upload returns them, from rows of log-probabilities
  // (residual). `chosen` is host memory, written by the end of the next ReadBack.
  virtual void ChooseTokens(const at::Tensor& log_probs_RV,
                            const native::TokenChoices& choices) = 0;
};

// Operations on tensors of any meaning: initial values, sums, copies and updates.
class TensorOps {
 public:
  virtual ~TensorOps() = default;

  // x[i] = InitialNormal(seed, name, i) * std, the product in float32 (parallel/base/philox.h): the
  // same bits by every Ops. x residual, contiguous.
  virtual void InitialNormal(uint64_t seed, std::string_view name, double std,
                             const at::Tensor& x) = 0;
  virtual void Adam(const AdamArgs& args) = 0;
  // sums[b] = sum of squares of block b of x, in double, for each of `all`. Blocks have
  // native::kSumSquaresBlock elements, the last one of an x the rest. Not finite if an element is
  // not. Waits as ReadBack does.
  virtual void SumSquares(std::span<const SquareSums> all) = 0;
  // x (residual or operand) *= factor.
  virtual void Scale(int64_t rows, const at::Tensor& x_RD, double factor) {
    x_RD.narrow(0, 0, rows).mul_(factor);
  }
  virtual void AddScaled(const AddScaledArgs& a) {
    a.y_RD.narrow(0, 0, a.rows).add_(a.x_RD.narrow(0, 0, a.rows), a.factor_1.item());
  }
  virtual void AddScaledBackward(const AddScaledGradArgs& a) {
    const at::Tensor dy = a.dy_RD.narrow(0, 0, a.rows);
    a.dx_RD.narrow(0, 0, a.rows).add_(dy, a.factor_1.item());
    a.dfactor_1.add_(dy.mul(a.x_RD.narrow(0, 0, a.rows)).sum());
  }
  // y += x, residual and of equal shape.
  virtual void Add(const at::Tensor& y, const at::Tensor& x) = 0;
  // x = 0; contiguous.
  virtual void Zero(const at::Tensor& x) { x.zero_(); }
  // y = x, converted to y's type.
  virtual void Copy(int64_t rows, const at::Tensor& x, const at::Tensor& y) = 0;
};

class Ops : public LayerOps, public DecodeOps, public TensorOps {
 public:
  // The session of the device that operations compute on.
  DeviceSession& session() const { return *session_; }
  const std::shared_ptr<DeviceSession>& shared_session() const { return session_; }

 protected:
  // Without `session` the device is a CPU.
  explicit Ops(std::shared_ptr<DeviceSession> session = std::make_shared<DeviceSession>())
      : session_(std::move(session)) {}

 private:
  const std::shared_ptr<DeviceSession> session_;
};

}  // namespace deepnet
