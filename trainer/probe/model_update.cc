#include "trainer/probe/model_update.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/plan_accessors.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/decode/pipeline_link.h"

namespace deepnet {

OutputChange ChangeOf(const OutputRows& rows, const OutputRows& reference) {
  DEEPNET_CHECK_EQ(rows.values.size(), reference.values.size());
  double squares = 0.0;
  for (size_t i = 0; i < rows.values.size(); ++i) {
    const double change = static_cast<double>(rows.values[i]) - reference.values[i];
    squares += change * change;
  }
  const double per_token = std::sqrt(squares / static_cast<double>(rows.tokens));
  return {.per_token = per_token,
          .per_element = per_token / std::sqrt(static_cast<double>(rows.width))};
}

OutputProbe::OutputProbe(RankPart& part, Microbatch microbatch)
    : part_(part),
      microbatch_(std::move(microbatch)),
      kept_(part.model->MakeActivations(/*shared=*/true)) {
  for (const Chunk& chunk : part.model->chunks()) has_output_ |= chunk.has_output();
}

absl::StatusOr<std::unique_ptr<OutputProbe>> OutputProbe::Make(const Inventory& whole,
                                                               const Plan& plan, RankPart& part,
                                                               Microbatch microbatch,
                                                               absl::Duration limit) {
  std::unique_ptr<OutputProbe> probe(new OutputProbe(part, std::move(microbatch)));
  if (part.pipeline->size() == 1) return probe;
  ASSIGN_OR_RETURN(probe->messages_, part.pipeline->Split(0, part.stage));
  probe->link_ = std::make_unique<PipelineLink>(
      MakePipelineRoute(whole, ChunkEnds(plan), part.placement, part.stage), *probe->messages_,
      LinkLimits{.rows = limit, .order = limit});
  return probe;
}

absl::StatusOr<OutputRows> OutputProbe::Rows(int64_t step) {
  const MicrobatchPass pass = MakePass(microbatch_, /*seed=*/0, step, /*training=*/false);
  RunForward(*part_.model, link_.get(), pass, *kept_, /*token_nll=*/nullptr);
  if (link_ != nullptr) RETURN_IF_ERROR(link_->Finish());
  OutputRows rows{.tokens = pass.target.count, .width = part_.model->spec().width()};
  if (!has_output_) return rows;
  const at::Tensor hidden_TD = kept_->values.target_RD.narrow(0, 0, rows.tokens)
                                   .to(at::Device(at::kCPU), at::kFloat)
                                   .contiguous();
  const float* first = hidden_TD.const_data_ptr<float>();
  rows.values.assign(first, first + hidden_TD.numel());
  return rows;
}

}  // namespace deepnet
