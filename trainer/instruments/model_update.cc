#include "trainer/instruments/model_update.h"

#include <cmath>
#include <utility>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/batcher.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/train_step.h"

namespace deepnet {

double ChangeOf(const OutputRows& rows, const OutputRows& reference) {
  DEEPNET_CHECK_EQ(rows.values.size(), reference.values.size());
  double squares = 0.0;
  for (size_t i = 0; i < rows.values.size(); ++i) {
    const double change = static_cast<double>(rows.values[i]) - reference.values[i];
    squares += change * change;
  }
  return std::sqrt(squares / static_cast<double>(rows.tokens));
}

OutputProbe::OutputProbe(RankContext& part, Microbatch microbatch)
    : part_(part),
      microbatch_(std::move(microbatch)),
      kept_(part.model->MakeActivations(/*shared=*/true)) {
  for (const Chunk& chunk : part.model->chunks()) has_output_ |= chunk.has_output();
}

absl::StatusOr<std::unique_ptr<OutputProbe>> OutputProbe::Make(RankContext& part,
                                                               Microbatch microbatch,
                                                               absl::Duration limit) {
  std::unique_ptr<OutputProbe> probe(new OutputProbe(part, std::move(microbatch)));
  if (part.pipeline->size() == 1) return probe;
  ASSIGN_OR_RETURN(probe->messages_, part.pipeline->Split(0, part.pp_rank));
  probe->link_ = std::make_unique<PipelineLink>(part.route, *probe->messages_,
                                                LinkLimits{.rows = limit, .command = limit});
  return probe;
}

absl::StatusOr<OutputRows> OutputProbe::Rows(int64_t step) {
  const MicrobatchPass pass =
      MakePass(part_.model->ops(), microbatch_, /*seed=*/0, step, /*training=*/false);
  RunForward(*part_.model, link_.get(), pass, *kept_, /*token_nll=*/nullptr);
  if (link_ != nullptr) RETURN_IF_ERROR(link_->Finish());
  OutputRows rows{.tokens = pass.rows.target.count, .width = part_.model->spec().d_model()};
  if (!has_output_) return rows;
  const at::Tensor hidden_TD = kept_->values.target_RD.narrow(0, 0, rows.tokens)
                                   .to(at::Device(at::kCPU), at::kFloat)
                                   .contiguous();
  const float* first = hidden_TD.const_data_ptr<float>();
  rows.values.assign(first, first + hidden_TD.numel());
  return rows;
}

namespace {

// Makes an update as if gains of norms, and biases of norms and of linear layers, had not been
// trained. What a scheme adds stays in motion.
void RestoreGainsAndBiases(const at::Tensor& initial, Transformer& model) {
  const at::Tensor& weights = model.parameters().weights();
  for (const Parameter& p : model.parameters().inventory().parameters) {
    const bool of_scheme = p.role == Role::kResidualScale || p.role == Role::kResidualShift;
    if (p.shape.size() != 1 || of_scheme) continue;
    weights.narrow(0, p.offset, p.NumElements())
        .copy_(initial.narrow(0, p.offset, p.NumElements()));
  }
  model.Refresh();
}

}  // namespace

absl::StatusOr<double> ModelUpdate(const RunSpec& run, int64_t updates, Moving moving,
                                   BatchOfStep batch_of) {
  SelfCommunicator alone;
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  const Plan plan = LonePlan(whole, run.data().global_microbatches());
  ASSIGN_OR_RETURN(const auto part, MakeRankContext(run, whole, plan, alone));
  part->model->parameters().Initialize(run.seed());
  part->model->Refresh();
  const at::Tensor initial = part->model->parameters().weights().clone();
  ASSIGN_OR_RETURN(StepBatch unseen, batch_of(updates));
  ASSIGN_OR_RETURN(const auto probe, OutputProbe::Make(*part, std::move(unseen.microbatches[0]),
                                                       absl::InfiniteDuration()));
  ASSIGN_OR_RETURN(const OutputRows reference, probe->Rows(0));
  for (int64_t step = 0; step < updates; ++step) {
    ASSIGN_OR_RETURN(const StepBatch batch, batch_of(step));
    RETURN_IF_ERROR(RunTrainStep(batch, step, step + 1, *part).status());
    if (moving == Moving::kMatrices) RestoreGainsAndBiases(initial, *part->model);
  }
  ASSIGN_OR_RETURN(const OutputRows rows, probe->Rows(updates));
  return ChangeOf(rows, reference);
}

StepBatch MakeMadeUpBatch(const RunSpec& run, int64_t step) {
  const MicrobatchSpec& most = run.data().microbatch();
  // Lengths come round in the same order, so that every step has the same number of tokens.
  std::vector<std::pair<int, int>> lengths;
  for (int i = 0, sources = 0, targets = 0; i < most.max_sentences(); ++i) {
    const std::pair<int, int> pair = {4 + 11 * i % 57, 4 + 17 * i % 57};
    sources += pair.first;
    targets += pair.second;
    if (sources > most.max_source_tokens() || targets > most.max_target_tokens()) break;
    lengths.push_back(pair);
  }
  StepBatch batch;
  const int microbatches = run.data().global_microbatches();
  for (int m = 0; m < microbatches; ++m) {
    const auto number = static_cast<uint64_t>(step * microbatches + m);
    auto made = MakeBenchMicrobatches(
        lengths, {most.max_source_tokens(), most.max_target_tokens(), most.max_sentences()},
        static_cast<int32_t>(run.model().vocabulary_size()), run.seed() * 1000003 + number);
    DEEPNET_CHECK_EQ(made.size(), 1u);
    batch.Add(std::move(made[0]));
  }
  return batch;
}

}  // namespace deepnet
