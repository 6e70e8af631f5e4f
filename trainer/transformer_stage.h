// The whole model as the one stage of a pipeline: what a schedule drives on a single rank.
#pragma once

#include <memory>
#include <vector>

#include "parallel/exec/stage.h"
#include "trainer/data/microbatch.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/replica_tree.h"

namespace deepnet {

struct StageOptions {
  uint64_t seed = 0;
  double label_smoothing = 0.0;
  int virtual_replicas = 1;  // a power of two that divides the microbatches of a step
};

class TransformerStage : public Stage {
 public:
  TransformerStage(Transformer& model, StageOptions options);

  // Clears the gradient; `batch` must outlive the step.
  void BeginStep(const StepBatch& batch, int64_t step);
  absl::Status Forward(int chunk, int microbatch) override;
  absl::Status Backward(int chunk, int microbatch) override;
  absl::Status BackwardInput(int chunk, int microbatch) override;
  absl::Status BackwardWeight(int chunk, int microbatch) override;
  std::vector<Buffer> Buffers(Boundary, int, int) override { return {}; }
  void Release(Boundary, int, int) override {}
  // After the schedule: the gradient of the step is in parameters().FoldedGradient().
  void FinishStep();

  // Summed over the step's target tokens so far.
  const LossSums& loss() const { return loss_; }

 private:
  struct InFlight {
    int microbatch = -1;  // -1: free
    std::unique_ptr<Activations> kept;
  };

  Activations& Claim(int microbatch);
  InFlight& Find(int microbatch);

  Transformer& model_;
  StageOptions options_;
  ReplicaTree tree_;
  std::vector<InFlight> in_flight_;  // grows to the most that a schedule keeps alive
  const StepBatch* batch_ = nullptr;
  int64_t step_ = 0;
  LossSums loss_;
};

}  // namespace deepnet
