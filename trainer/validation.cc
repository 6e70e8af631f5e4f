#include "trainer/validation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "parallel/exec/watchdog.h"
#include "parallel/plan/planner_views.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/decode/pipeline_route.h"
#include "trainer/decode/pipeline_scorer.h"
#include "trainer/eval/evaluator.h"

namespace deepnet {
namespace {

EvaluateOptions OptionsOf(const RunSpec& run, const Corpus& corpus) {
  EvaluateOptions options{.split = "dev",
                          .sentences = run.train().validate_sentences(),
                          .tags = run.data().tags(),
                          .decode = run.decode()};
  const MicrobatchSpec& capacity = run.data().microbatch();
  options.max_positions =
      std::min({run.model().max_positions(), capacity.source_tokens(), capacity.target_tokens()});
  const auto& wanted = run.data().directions();
  for (const Direction& direction : corpus.TextDirections("dev")) {
    if (wanted.empty() ||
        std::find(wanted.begin(), wanted.end(), direction.Name()) != wanted.end()) {
      options.directions.push_back(direction.Name());
    }
  }
  return options;
}

absl::Status Stopped() { return absl::CancelledError("the validation was stopped"); }

// What the drivers of all replicas have to say to each other. `drivers` is null on other ranks.
EvaluateShare ShareOf(const RankPart& part, Communicator* drivers, PipelineStop& stop) {
  const auto gather =
      [drivers,
       &stop](const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
    RETURN_IF_ERROR(AgreeOnStatus(*drivers, stop.IsStopping() ? Stopped() : mine.status()));
    return AllGatherText(*drivers, *mine);
  };
  return {.part = part.replica, .num_parts = part.num_replicas, .gather = gather};
}

PipelineRoute RouteOf(const Inventory& whole, const Plan& plan, const RankPart& part) {
  return MakePipelineRoute(whole, ChunkEnds(plan), part.placement, part.stage);
}

LinkLimits LimitsOf(const RunSpec& run) {
  const absl::Duration rows = MakeTimeLimits(run.parallel(), /*first_step=*/true).message;
  return {.rows = rows, .order = 4 * rows};
}

// A driver's part: its error is the pipeline's if that broke, because others follow from it.
absl::StatusOr<EvalRecord> Drive(const Corpus& corpus, const EvaluateOptions& options,
                                 PipelineScorer& scorer, PipelineStop& stop,
                                 const ShowProgress& show) {
  StoppableScorer stoppable(scorer, scorer, [&stop] { return stop.IsStopping(); });
  absl::StatusOr<EvalRecord> record =
      Evaluate(stoppable, stoppable, corpus, corpus.vocabulary(), options,
               [&](const std::string& direction, double fraction) {
                 show(direction, fraction);
                 scorer.Show(direction, fraction);
               });
  RETURN_IF_ERROR(scorer.Stop());
  if (stop.IsStopping()) return Stopped();
  return record;
}

// The record of replica 0 on every rank.
absl::StatusOr<EvalRecord> Share(const EvalRecord& record, Communicator& world, int root) {
  ASSIGN_OR_RETURN(const std::string text, BroadcastText(world, record.SerializeAsString(), root));
  EvalRecord shared;
  if (!shared.ParseFromString(text)) {
    return absl::InternalError("an EvalRecord did not survive being sent");
  }
  return shared;
}

// Communicators of its own: nothing of a step is disturbed.
absl::StatusOr<EvalRecord> EvaluateOnAllRanks(const RunSpec& run, const PipelineRoute& route,
                                              const Corpus& corpus, RankPart& part,
                                              EvaluateOptions options, Logger& log,
                                              const IsStopping& is_stopping) {
  const bool drives = route.rank == route.driver;
  ASSIGN_OR_RETURN(const auto pipeline, part.pipeline->Split(0, part.stage));
  ASSIGN_OR_RETURN(const auto requests, part.pipeline->Split(0, part.stage));
  ASSIGN_OR_RETURN(const auto drivers,
                   part.world->Split(drives ? 0 : Communicator::kNoGroup, part.replica));
  PipelineLink link(route, *pipeline, LimitsOf(run));
  ASSIGN_OR_RETURN(const auto stop, PipelineStop::Make(*requests, route.driver, is_stopping));
  absl::Status told;
  const ShowProgress show = [&](const std::string& direction, double fraction) {
    log.Show({.label = "validate", .fraction = fraction, .figures = direction});
    told.Update(stop->Tell());
  };
  absl::StatusOr<EvalRecord> record = EvalRecord();
  if (drives) {
    options.share = ShareOf(part, drivers.get(), *stop);
    PipelineScorer scorer(*part.model, link);
    record = Drive(corpus, options, scorer, *stop, show);
  } else {
    RETURN_IF_ERROR(ServePipeline(*part.model, link, show));
  }
  RETURN_IF_ERROR(link.status());  // the job has ended with it
  RETURN_IF_ERROR(told);
  RETURN_IF_ERROR(stop->Finish());
  RETURN_IF_ERROR(AgreeOnStatus(*part.world, record.status()));
  return Share(*record, *part.world, route.driver);
}

}  // namespace

absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Inventory& whole, const Plan& plan,
                                    const Corpus& corpus, RankPart& part, int64_t step, Logger& log,
                                    const IsStopping& is_stopping) {
  EvalRecord record;
  const EvaluateOptions options = OptionsOf(run, corpus);
  if (!options.directions.empty()) {
    ASSIGN_OR_RETURN(record, EvaluateOnAllRanks(
                                 run, RouteOf(whole, plan, part), corpus, part, options, log,
                                 is_stopping ? is_stopping : [] { return false; }));
    log.Info(absl::StrFormat(
        "validation at step %s: nll %.3f, BLEU %.2f (to English %.2f, from %.2f), chrF %.2f, "
        "%d directions, %s",
        WithCommas(step), record.nll(), record.bleu(), record.bleu_to_english(),
        record.bleu_from_english(), record.chrf(), record.directions_size(),
        ClockText(record.seconds())));
  }
  record.set_kind("validation");
  record.set_step(step);
  return record;
}

}  // namespace deepnet
