#include "trainer/kernels/traced_ops.h"

#include <utility>

#include "parallel/base/clock.h"

namespace deepnet {
namespace {

using at::Tensor;

// Ops of a CPU between two looks at the clock each.
class TimedOps : public TracedOps {
 public:
  explicit TimedOps(std::unique_ptr<Ops> inner)
      : TracedOps(inner->shared_session()), inner_(std::move(inner)) {}

  void StartTrace() override {
    kernels_.clear();
    tracing_ = true;
  }
  std::vector<TimedKernel> StopTrace() override {
    tracing_ = false;
    return std::exchange(kernels_, {});
  }

  at::TensorOptions ResidualOptions() const override { return inner_->ResidualOptions(); }
  at::TensorOptions OperandOptions() const override { return inner_->OperandOptions(); }
  bool HasReluBackwardWithBias() const override { return inner_->HasReluBackwardWithBias(); }
  std::unique_ptr<Weight> MakeWeight(Tensor master, bool backward) override {
    return inner_->MakeWeight(std::move(master), backward);
  }

  void Refresh(Weight& weight) override { Time<&Ops::Refresh>("Refresh", weight); }
  void Linear(const LinearArgs& a) override {
    Time<&Ops::Linear>("Linear", a);
    Note({ProductForm::kForward, a.rows, a.y_RO.size(1), a.x_RI.size(1)});
  }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    Time<&Ops::LinearBackwardInput>("LinearBackwardInput", a);
    Note({ProductForm::kInputGradient, a.rows, a.dx_RI.size(1), a.dy_RO.size(1)});
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    Time<&Ops::LinearBackwardWeight>("LinearBackwardWeight", rows, dy, x, dw, dbias);
    Note({ProductForm::kWeightGradient, dw.size(0), dw.size(1), rows});
  }
  void ResidualNorm(const ResidualNormArgs& a) override {
    Time<&Ops::ResidualNorm>(a.gain_D.defined() ? "ResidualNorm" : "ResidualSum", a);
  }
  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    Time<&Ops::ResidualNormBackward>("ResidualNormBackward", a);
  }
  void NormOutput(int64_t rows, const NormState& state, const Tensor& gain, const Tensor& bias,
                  const Tensor& y) override {
    Time<&Ops::NormOutput>("NormOutput", rows, state, gain, bias, y);
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    Time<&Ops::AddBranchBackward>("AddBranchBackward", rows, dx, rate, mask, dbranch);
  }
  void ScaleShift(const ScaleShiftArgs& a) override { Time<&Ops::ScaleShift>("ScaleShift", a); }
  void ScaleShiftBackward(const ScaleShiftGradArgs& a) override {
    Time<&Ops::ScaleShiftBackward>("ScaleShiftBackward", a);
  }
  void Attention(const AttentionArgs& a) override { Time<&Ops::Attention>("Attention", a); }
  void AttentionBackward(const AttentionGradArgs& a) override {
    Time<&Ops::AttentionBackward>("AttentionBackward", a);
  }
  void DecodeAttention(const DecodeAttentionArgs& a) override {
    Time<&Ops::DecodeAttention>("DecodeAttention", a);
  }
  void Relu(int64_t rows, const Tensor& x) override { Time<&Ops::Relu>("Relu", rows, x); }
  void ReluBackward(int64_t rows, const Tensor& output, const Tensor& dx) override {
    Time<&Ops::ReluBackward>("ReluBackward", rows, output, dx);
  }
  void ReluBackwardWithBias(int64_t rows, const Tensor& output, const Tensor& dx,
                            const Tensor& dbias) override {
    Time<&Ops::ReluBackwardWithBias>("ReluBackwardWithBias", rows, output, dx, dbias);
  }
  void Gelu(int64_t rows, const Tensor& pre, const Tensor& h) override {
    Time<&Ops::Gelu>("Gelu", rows, pre, h);
  }
  void GeluBackward(int64_t rows, const Tensor& pre, const Tensor& dh,
                    const Tensor& dpre) override {
    Time<&Ops::GeluBackward>("GeluBackward", rows, pre, dh, dpre);
  }
  void Dropout(int64_t rows, const DropoutSite& dropout, const PackedRows& ids, const Tensor& x,
               const Tensor& mask) override {
    Time<&Ops::Dropout>("Dropout", rows, dropout, ids, x, mask);
  }
  void DropoutBackward(int64_t rows, double rate, const Tensor& mask, const Tensor& dx) override {
    Time<&Ops::DropoutBackward>("DropoutBackward", rows, rate, mask, dx);
  }
  void Embed(const EmbedArgs& a) override { Time<&Ops::Embed>("Embed", a); }
  void EmbedBackward(const EmbedGradArgs& a) override {
    Time<&Ops::EmbedBackward>("EmbedBackward", a);
  }
  void CrossEntropy(const CrossEntropyArgs& a) override {
    Time<&Ops::CrossEntropy>("CrossEntropy", a);
  }
  void LogSoftmax(int64_t rows, const Tensor& logits) override {
    Time<&Ops::LogSoftmax>("LogSoftmax", rows, logits);
  }
  void AverageLogProbs(int n, const Tensor& x, const Tensor& y) override {
    Time<&Ops::AverageLogProbs>("AverageLogProbs", n, x, y);
  }
  void ChooseTokens(const Tensor& log_probs, const native::TokenChoices& choices) override {
    Time<&Ops::ChooseTokens>("ChooseTokens", log_probs, choices);
  }
  void InitialNormal(uint64_t seed, std::string_view name, double std, const Tensor& x) override {
    Time<&Ops::InitialNormal>("InitialNormal", seed, name, std, x);
  }
  void Adam(const AdamArgs& a) override { Time<&Ops::Adam>("Adam", a); }
  void SumSquares(std::span<const SquareSums> all) override {
    Time<&Ops::SumSquares>("SumSquares", all);
  }
  void Scale(int64_t rows, const Tensor& x, double factor) override {
    Time<&Ops::Scale>("Scale", rows, x, factor);
  }
  void AddScaled(const AddScaledArgs& a) override { Time<&Ops::AddScaled>("AddScaled", a); }
  void AddScaledBackward(const AddScaledGradArgs& a) override {
    Time<&Ops::AddScaledBackward>("AddScaledBackward", a);
  }
  void Add(const Tensor& y, const Tensor& x) override { Time<&Ops::Add>("Add", y, x); }
  void Copy(int64_t rows, const Tensor& x, const Tensor& y) override {
    Time<&Ops::Copy>("Copy", rows, x, y);
  }

 private:
  template <auto kFunction, typename... Arguments>
  void Time(const char* name, Arguments&&... arguments) {
    const double start = tracing_ ? SecondsNow() : 0.0;
    (*inner_.*kFunction)(std::forward<Arguments>(arguments)...);
    if (tracing_) kernels_.push_back({name, start, start, SecondsNow()});
  }

  // Says of which product the last time is.
  void Note(const ProductShape& product) {
    if (tracing_) kernels_.back().product = product;
  }

  const std::unique_ptr<Ops> inner_;
  bool tracing_ = false;
  std::vector<TimedKernel> kernels_;
};

}  // namespace

std::unique_ptr<TracedOps> Traced(std::unique_ptr<Ops> ops) {
  if (auto* const traced = dynamic_cast<TracedOps*>(ops.get())) {
    static_cast<void>(ops.release());
    return std::unique_ptr<TracedOps>(traced);
  }
  return std::make_unique<TimedOps>(std::move(ops));
}

}  // namespace deepnet
