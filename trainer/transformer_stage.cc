#include "trainer/transformer_stage.h"

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {

TransformerStage::TransformerStage(Transformer& model, StageOptions options)
    : model_(model), options_(options) {}

void TransformerStage::BeginStep(const StepBatch& batch, int64_t step) {
  batch_ = &batch;
  step_ = step;
  loss_ = {};
  model_.parameters().gradient().zero_();
  for (InFlight& slot : in_flight_) slot.microbatch = -1;
}

absl::Status TransformerStage::Forward(int chunk, int microbatch) {
  DEEPNET_CHECK_EQ(chunk, 0);
  const LossOptions loss{.label_smoothing = options_.label_smoothing,
                         .gradient_scale = 1.0 / static_cast<double>(batch_->num_target_tokens)};
  const LossSums sums = model_.Forward(batch_->microbatches[microbatch], options_.seed, step_,
                                       /*training=*/true, loss, Claim(microbatch));
  loss_.loss += sums.loss;
  loss_.nll += sums.nll;
  return absl::OkStatus();
}

absl::Status TransformerStage::Backward(int chunk, int microbatch) {
  DEEPNET_CHECK_EQ(chunk, 0);
  InFlight& slot = Find(microbatch);
  model_.Backward(batch_->microbatches[microbatch], options_.seed, step_, *slot.kept);
  slot.microbatch = -1;
  if (options_.virtual_replicas == 1) return absl::OkStatus();
  const int per_replica = static_cast<int>(batch_->microbatches.size()) / options_.virtual_replicas;
  if ((microbatch + 1) % per_replica == 0) {
    tree_.Push(model_.ops(), model_.parameters().gradient());
    model_.parameters().gradient().zero_();
  }
  return absl::OkStatus();
}

absl::Status TransformerStage::BackwardInput(int, int) {
  return absl::UnimplementedError("this stage cannot split its backward pass");
}

absl::Status TransformerStage::BackwardWeight(int, int) {
  return absl::UnimplementedError("this stage cannot split its backward pass");
}

void TransformerStage::FinishStep() {
  if (options_.virtual_replicas > 1) tree_.Finish(model_.parameters().gradient());
  model_.parameters().FoldTied(model_.ops());
}

Activations& TransformerStage::Claim(int microbatch) {
  for (InFlight& slot : in_flight_) {
    if (slot.microbatch >= 0) continue;
    slot.microbatch = microbatch;
    return *slot.kept;
  }
  in_flight_.push_back({microbatch, model_.MakeActivations(/*shared=*/false)});
  return *in_flight_.back().kept;
}

TransformerStage::InFlight& TransformerStage::Find(int microbatch) {
  for (InFlight& slot : in_flight_) {
    if (slot.microbatch == microbatch) return slot;
  }
  DEEPNET_CHECK(false) << "microbatch " << microbatch << " has no forward pass";
  return in_flight_.front();
}

}  // namespace deepnet
