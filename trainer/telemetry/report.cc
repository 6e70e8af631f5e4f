#include "trainer/telemetry/report.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "trainer/model/flops.h"

namespace deepnet {
namespace {

constexpr double kQuickStartSeconds = 2.0;

// Returns the seconds of training until a run ends that has done `step` steps in `seconds`; 0: it
// is at its end, or that is not known.
double SecondsToEnd(const TrainSpec& train, int64_t step, double seconds, const Pace& pace) {
  double left = std::numeric_limits<double>::infinity();
  if (train.steps() > 0 && pace.seconds_per_step > 0) {
    left = static_cast<double>(train.steps() - step) * pace.seconds_per_step;
  }
  if (train.max_train_minutes() > 0) {
    left = std::min(left, 60 * train.max_train_minutes() - seconds);
  }
  return std::isinf(left) ? 0.0 : std::max(0.0, left);
}

}  // namespace

void StepReport::Add(const StepBatch& batch, const StepResult& result, double seconds) {
  const auto tokens = static_cast<double>(batch.num_target_tokens);
  ++sums_.steps;
  sums_.seconds += seconds;
  all_seconds_ += seconds;
  sums_.target_tokens += tokens;
  sums_.flops += StepFlops(run_.model(), batch);
  const MicrobatchSpec& capacity = run_.data().microbatch();
  sums_.positions +=
      static_cast<double>(batch.microbatches.size()) *
      static_cast<double>(capacity.max_source_tokens() + capacity.max_target_tokens());
  for (const Microbatch& microbatch : batch.microbatches) {
    sums_.real_positions +=
        static_cast<double>(microbatch.source.NumTokens() + microbatch.target.NumTokens());
  }
  if (result.update.skipped) return;
  sums_.loss += result.loss * tokens;
  sums_.nll += result.nll * tokens;
  sums_.finite_target_tokens += tokens;
}

StepRecord StepReport::Take(const Manifest& state, const StepResult& last,
                            const TraceFigures& pipeline) {
  if (sums_.steps > 0) {
    pace_ = {.seconds_per_step = sums_.seconds / static_cast<double>(sums_.steps),
             .tokens_per_step = sums_.target_tokens / static_cast<double>(sums_.steps)};
  }
  StepRecord record;
  record.set_kind("train");
  record.set_step(state.step());
  const double finite = sums_.finite_target_tokens;
  record.set_loss(finite > 0 ? sums_.loss / finite : last.loss);
  record.set_nll(finite > 0 ? sums_.nll / finite : last.nll);
  record.set_source_tokens(state.source_tokens());
  record.set_target_tokens(state.target_tokens());
  record.set_tokens_per_second(sums_.real_positions / sums_.seconds);
  record.set_target_tokens_per_second(sums_.target_tokens / sums_.seconds);
  record.set_gradient_norm(last.update.gradient_norm);
  record.set_learning_rate(last.update.rate);
  if (ceiling_gflops_ > 0)
    record.set_gemm_efficiency(sums_.flops / sums_.seconds * 1e-9 / ceiling_gflops_);
  if (peak_flops_ > 0) record.set_mfu(sums_.flops / sums_.seconds / peak_flops_);
  record.set_resident_bytes(PeakResidentBytes());
  record.set_skipped_steps(state.skipped_steps());
  record.set_loss_scale(last.loss_scale);
  record.set_seconds(state.train_seconds());
  record.set_packing_efficiency(sums_.real_positions / sums_.positions);
  record.set_bubble(pipeline.bubble);
  record.set_exposed_communication(pipeline.exposed_communication);
  record.set_seconds_to_end(SecondsToEnd(run_.train(), state.step(), state.train_seconds(), pace_));
  sums_ = {};
  return record;
}

std::string MemoryLine(std::span<const RankMemory> ranks) {
  const auto worst =
      std::max_element(ranks.begin(), ranks.end(), [](const RankMemory& x, const RankMemory& y) {
        return std::abs(x.Difference()) < std::abs(y.Difference());
      });
  return absl::StrFormat("memory: planned %.1f MiB, measured %.1f MiB (%+.1f %%) on rank %d%s",
                         static_cast<double>(worst->planned) / kMib,
                         static_cast<double>(worst->measured) / kMib, 100 * worst->Difference(),
                         worst - ranks.begin(),
                         ranks.size() > 1 ? "; all others are nearer to the plan" : "");
}

std::string StartLine(std::span<const TimedPhase> phases) {
  double all = 0.0;
  std::vector<std::string> notable;
  for (const TimedPhase& phase : phases) {
    all += phase.seconds;
    if (phase.seconds >= 0.1) {
      notable.push_back(absl::StrFormat("%s %.1f", phase.name, phase.seconds));
    }
  }
  if (all < kQuickStartSeconds) return "";
  return absl::StrFormat("ready after %.1f s: %s", all, absl::StrJoin(notable, ", "));
}

absl::Status ReportMemory(const RankMemory& mine, Communicator& world, Logger& log) {
  ASSIGN_OR_RETURN(const std::vector<RankMemory> ranks, AllGatherValue(world, mine));
  if (world.rank() != 0) return absl::OkStatus();  // one warning is enough
  const bool apart = std::any_of(ranks.begin(), ranks.end(), [](const RankMemory& rank) {
    return std::abs(rank.Difference()) > kMemoryTolerance;
  });
  apart ? log.Warning(MemoryLine(ranks)) : log.Info(MemoryLine(ranks));
  return absl::OkStatus();
}

Progress ProgressOf(const StepRecord& record, const TrainSpec& train, const NextTimes& next) {
  Progress progress{.label = "train"};
  if (train.steps() > 0) {
    progress.fraction = static_cast<double>(record.step()) / static_cast<double>(train.steps());
  }
  if (train.max_train_minutes() > 0) {
    progress.fraction =
        std::max(progress.fraction, record.seconds() / (60 * train.max_train_minutes()));
  }
  progress.fraction = std::min(progress.fraction, 1.0);
  if (progress.fraction > 0) progress.seconds_left = record.seconds_to_end();
  progress.figures = absl::StrFormat("step %s  loss %.3f  nll %.3f  %s tokens/s",
                                     WithCommas(record.step()), record.loss(), record.nll(),
                                     WithCommas(std::llround(record.tokens_per_second())));
  for (const auto& [what, seconds] :
       {std::pair("save", next.save), {"validation", next.validation}}) {
    if (seconds >= 0) absl::StrAppend(&progress.figures, "  ", what, " in ", ClockText(seconds));
  }
  absl::StrAppendFormat(&progress.figures, "  norm %.2f  rate %.2e", record.gradient_norm(),
                        record.learning_rate());
  if (record.bubble() > 0) {
    absl::StrAppendFormat(&progress.figures, "  bubble %.0f %%", 100 * record.bubble());
  }
  if (record.mfu() > 0) {
    absl::StrAppendFormat(&progress.figures, "  MFU %.1f %%", 100 * record.mfu());
  }
  if (record.loss_scale() > 0) {
    absl::StrAppendFormat(&progress.figures, "  loss scale %g", record.loss_scale());
  }
  if (record.skipped_steps() > 0) {
    absl::StrAppend(&progress.figures, "  skipped ", record.skipped_steps());
  }
  return progress;
}

}  // namespace deepnet
