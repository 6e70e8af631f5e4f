#include "trainer/validation.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/limited_communicator.h"
#include "parallel/exec/watchdog.h"
#include "parallel/plan/plan_accessors.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/decode/pipeline_scorer.h"
#include "trainer/eval/evaluator.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

bool Translates(const ModelSpec& model) {
  return HasMemory(model) && CheckRowsAreIndependent(model).ok();
}

EvaluateOptions OptionsOf(const RunSpec& run, const Corpus& corpus) {
  EvaluateOptions options{.split = "dev",
                          .sentences = run.train().validate_sentences(),
                          .translates = Translates(run.model()),
                          .tags = run.data().tags(),
                          .architecture = run.model().architecture(),
                          .masked_share = run.data().masked_share(),
                          .decode = run.decode()};
  const MicrobatchSpec& capacity = run.data().microbatch();
  options.max_positions = std::min(run.model().max_positions(), capacity.target_tokens());
  if (HasMemory(run.model())) {
    options.max_positions = std::min(options.max_positions, capacity.source_tokens());
  }
  const auto& wanted = run.data().directions();
  for (const Direction& direction : corpus.TextDirections("dev")) {
    if (wanted.empty() ||
        std::find(wanted.begin(), wanted.end(), direction.Name()) != wanted.end()) {
      options.directions.push_back(direction.Name());
    }
  }
  return options;
}

// What one wants to see beside the nll.
std::string FiguresOf(const EvalRecord& record, bool translates) {
  if (!translates) return absl::StrFormat("perplexity %.2f", std::exp(record.nll()));
  return absl::StrFormat("BLEU %.2f (to English %.2f, from %.2f), chrF %.2f", record.bleu(),
                         record.bleu_to_english(), record.bleu_from_english(), record.chrf());
}

absl::Status Stopped() { return absl::CancelledError("the validation was stopped"); }

// What the drivers of all replicas have to say to each other: `drivers`, null on other ranks.
EvaluateShare ShareOf(const RankPart& part, LimitedCommunicator* drivers, PipelineStop& stop) {
  const auto gather =
      [drivers,
       &stop](const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
    drivers->Begin("validation: gather of the scores of all replicas (here rank r is replica r)");
    RETURN_IF_ERROR(AgreeOnStatus(*drivers, stop.IsStopping() ? Stopped() : mine.status()));
    return AllGatherText(*drivers, *mine);
  };
  return {.part = part.replica, .num_parts = part.num_replicas, .gather = gather};
}

PipelineRoute RouteOf(const Inventory& whole, const Plan& plan, const RankPart& part) {
  return MakePipelineRoute(whole, ChunkEnds(plan), part.placement, part.stage);
}

// The longest waits. Who waits for somebody that waits itself has longer, so that the one who is
// nearest to what is stuck speaks first.
struct Limits {
  explicit Limits(const RunSpec& run)
      : rows(MakeTimeLimits(run.parallel(), /*first_step=*/true).message) {}

  absl::Duration rows;                  // for rows that a peer computes
  absl::Duration replicas = 4 * rows;   // of a driver, for the others
  absl::Duration order = 5 * rows;      // for the driver
  absl::Duration everybody = 6 * rows;  // for all ranks to begin or to end

  LinkLimits OfLink() const { return {.rows = rows, .order = order}; }
};

// Communicators of its own: nothing of a step is disturbed, and nobody waits on them for ever.
struct Groups {
  std::unique_ptr<LimitedCommunicator> world;
  std::unique_ptr<Communicator> pipeline;         // its link has limits
  std::unique_ptr<LimitedCommunicator> requests;  // of the pipeline's ranks
  std::unique_ptr<LimitedCommunicator> drivers;   // one a replica; null on other ranks
};

// Ends every rank: called by a watchdog, whose thread it is, while this rank's own is stuck.
void EndJob(Communicator& world, const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  world.Abort(static_cast<int>(GetExitCode(status)));
}

absl::StatusOr<Groups> MakeGroups(RankPart& part, bool drives, const Limits& limits) {
  const int rank = part.world->rank();
  const auto limit = [&](absl::Duration longest) {
    return WaitLimit{.longest = longest, .rank = rank};
  };
  Groups made;
  made.world = std::make_unique<LimitedCommunicator>(*part.world, limit(limits.everybody));
  made.world->Begin("validation: begin of all ranks");
  RETURN_IF_ERROR(made.world->Barrier());
  Watchdog watchdog([&](const absl::Status& status) { EndJob(*part.world, status); });
  watchdog.Begin(absl::StrFormat("rank %d, validation: groups of ranks", rank), limits.everybody);
  ASSIGN_OR_RETURN(made.pipeline, part.pipeline->Split(0, part.stage));
  ASSIGN_OR_RETURN(auto requests, part.pipeline->Split(0, part.stage));
  made.requests = std::make_unique<LimitedCommunicator>(std::move(requests), limit(limits.order));
  made.requests->Begin("validation: requests to stop");
  ASSIGN_OR_RETURN(auto drivers,
                   part.world->Split(drives ? 0 : Communicator::kNoGroup, part.replica));
  if (drives) {
    made.drivers =
        std::make_unique<LimitedCommunicator>(std::move(drivers), limit(limits.replicas));
  }
  return made;
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

absl::StatusOr<EvalRecord> EvaluateOnAllRanks(const RunSpec& run, const PipelineRoute& route,
                                              const Corpus& corpus, RankPart& part,
                                              EvaluateOptions options, Logger& log,
                                              const IsStopping& is_stopping) {
  const bool drives = route.rank == route.driver;
  const Limits limits(run);
  ASSIGN_OR_RETURN(Groups groups, MakeGroups(part, drives, limits));
  PipelineLink link(route, *groups.pipeline, limits.OfLink());
  ASSIGN_OR_RETURN(const auto stop,
                   PipelineStop::Make(*groups.requests, route.driver, is_stopping));
  absl::Status told;
  const ShowProgress show = [&](const std::string& direction, double fraction) {
    log.Show({.label = "validate", .fraction = fraction, .figures = direction});
    told.Update(stop->Tell());
  };
  absl::StatusOr<EvalRecord> record = EvalRecord();
  if (drives) {
    options.share = ShareOf(part, groups.drivers.get(), *stop);
    // Whole sentences are scored without a message where a pipeline has one stage: to be asked is
    // the sign that this rank gets on.
    PipelineScorer scorer(*part.model, link, [&is_stopping] { is_stopping(); });
    record = Drive(corpus, options, scorer, *stop, show);
  } else {
    RETURN_IF_ERROR(ServePipeline(*part.model, link, show));
  }
  RETURN_IF_ERROR(link.status());  // the job has ended with it
  RETURN_IF_ERROR(told);
  RETURN_IF_ERROR(stop->Finish());
  groups.world->Begin("validation: end of all ranks");
  RETURN_IF_ERROR(AgreeOnStatus(*groups.world, record.status()));
  return Share(*record, *groups.world, route.driver);
}

}  // namespace

absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Inventory& whole, const Plan& plan,
                                    const Corpus& corpus, RankPart& part, int64_t step, Logger& log,
                                    const IsStopping& is_stopping) {
  EvalRecord record;
  part.model->set_step(step);
  const EvaluateOptions options = OptionsOf(run, corpus);
  if (!options.directions.empty()) {
    ASSIGN_OR_RETURN(record, EvaluateOnAllRanks(
                                 run, RouteOf(whole, plan, part), corpus, part, options, log,
                                 is_stopping ? is_stopping : [] { return false; }));
    log.Info(absl::StrFormat("validation at step %s: nll %.3f, %s, %d directions, %s",
                             WithCommas(step), record.nll(), FiguresOf(record, options.translates),
                             record.directions_size(), ClockText(record.seconds())));
  }
  record.set_kind("validation");
  record.set_step(step);
  return record;
}

}  // namespace deepnet
