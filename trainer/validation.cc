#include "trainer/validation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/heartbeat.h"
#include "trainer/data/data_order.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/decode/pipeline_scorer.h"
#include "trainer/eval/evaluator.h"
#include "trainer/eval/score_table.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

EvaluateOptions OptionsOf(const RunSpec& run, const Corpus& corpus) {
  EvaluateOptions options{
      .split = "dev",
      .sentences = run.train().validate_sentences(),
      .samples = run.train().sample_translations(),
      .translates = IsEncoderDecoder(run.model()) && CheckRowsAreIndependent(run.model()).ok(),
      .run = run,
      // The model that trains has the rest of a GPU's memory.
      .limits = {.batch_tokens = BatchTokens(run.decode(), /*on_gpu=*/false)}};
  const MicrobatchSpec& capacity = run.data().microbatch();
  options.max_positions = std::min(run.model().max_positions(), capacity.max_target_tokens());
  if (IsEncoderDecoder(run.model())) {
    options.max_positions = std::min(options.max_positions, capacity.max_source_tokens());
  }
  for (const Direction& direction : corpus.TextDirections("dev")) {
    if (IsSelected(direction, run.data())) options.directions.push_back(direction.Name());
  }
  return options;
}

// Returns the figures that there are.
std::string FiguresOf(const EvalRecord& record, bool translates) {
  std::string text = record.has_nll() ? absl::StrFormat("nll %.3f", record.nll()) : "no nll";
  if (!translates && record.has_nll()) {
    absl::StrAppendFormat(&text, ", perplexity %.2f", std::exp(record.nll()));
  }
  std::vector<std::string> parts;
  if (record.has_bleu_to_english()) {
    parts.push_back(absl::StrFormat("to English %.2f", record.bleu_to_english()));
  }
  if (record.has_bleu_from_english()) {
    parts.push_back(absl::StrFormat("from %s%.2f", parts.empty() ? "English " : "",
                                    record.bleu_from_english()));
  }
  if (record.has_bleu()) absl::StrAppendFormat(&text, ", BLEU %.2f", record.bleu());
  if (!parts.empty()) absl::StrAppend(&text, " (", absl::StrJoin(parts, ", "), ")");
  if (record.has_chrf()) absl::StrAppendFormat(&text, ", chrF %.2f", record.chrf());
  return text;
}

constexpr int kStopTag = 0;

absl::Status Stopped() { return absl::CancelledError("the validation was stopped"); }

// The longest waits. A rank that waits for a waiting rank has a longer limit, so that the rank
// nearest to the one that is stuck reports first.
struct Limits {
  absl::Duration rows;                  // for rows that a peer computes
  absl::Duration replicas = 4 * rows;   // of a driver, for the other drivers
  absl::Duration command = 5 * rows;    // for one of the driver
  absl::Duration everybody = 6 * rows;  // for all ranks to begin or to end
};

// The validation's own communicators. They do not disturb those of a step, and all have limits.
struct Groups {
  explicit Groups(int rank) : heartbeat(rank) {}

  Heartbeat heartbeat;  // first: the others tell it what they are at
  std::vector<std::unique_ptr<Communicator>> monitored;  // what `requests` and `drivers` lead to
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> pipeline;  // its link has limits
  std::unique_ptr<Communicator> requests;  // of the pipeline's ranks
  std::unique_ptr<Communicator> drivers;   // one a replica; null on other ranks
};

// Fills `made`. Collective over context.world.
absl::Status MakeGroups(RankContext& context, bool drives, const Limits& limits, Groups& made) {
  made.world =
      std::make_unique<MonitoredCommunicator>(*context.world, made.heartbeat, limits.everybody);
  made.heartbeat.Begin("validation: begin of all ranks");
  RETURN_IF_ERROR(made.world->Barrier());
  made.heartbeat.Begin("validation: groups of ranks");
  const HeartbeatMonitor monitor(
      made.heartbeat, limits.everybody,
      [&context](const absl::Status& status) { EndJob(*context.world, status); });
  RETURN_IF_ERROR(AgreeOnStatus(*made.world, monitor.status()));
  ASSIGN_OR_RETURN(made.pipeline, context.pipeline->Split(0, context.pp_rank));
  ASSIGN_OR_RETURN(made.monitored.emplace_back(), context.pipeline->Split(0, context.pp_rank));
  made.requests = std::make_unique<MonitoredCommunicator>(*made.monitored.back(), made.heartbeat,
                                                          limits.command);
  ASSIGN_OR_RETURN(made.monitored.emplace_back(),
                   context.world->Split(drives ? 0 : Communicator::kNoGroup, context.dp_rank));
  if (drives) {
    made.drivers = std::make_unique<MonitoredCommunicator>(*made.monitored.back(), made.heartbeat,
                                                           limits.replicas);
  }
  return absl::OkStatus();
}

// Requests to the ranks of one pipeline, gathered by its driver: a byte from each of the others,
// which are busy following and tell their driver between two directions.
class PipelineStop {
 public:
  // Collective over `pipeline`, which nobody else uses and outlives this.
  static absl::StatusOr<std::unique_ptr<PipelineStop>> Make(Communicator& pipeline, int driver,
                                                            deepnet::IsStopping is_stopping) {
    std::unique_ptr<PipelineStop> stop(new PipelineStop(pipeline, driver, std::move(is_stopping)));
    for (int rank = 0; stop->drives_ && rank < pipeline.size(); ++rank) {
      if (rank == driver) continue;
      ASSIGN_OR_RETURN(stop->transfers_.emplace_back(),
                       pipeline.Receive({&stop->bytes_[rank], 1, {}}, rank, kStopTag));
    }
    return stop;
  }

  // On the driver: whether any rank is stopping, as far as known. On others: of this rank.
  bool IsStopping() {
    // Asked every time: a pipeline of one stage scores whole sentences without a message, and the
    // question is then the only sign that this rank makes progress.
    stopping_ = is_stopping_() || stopping_;
    for (size_t i = 0; i < transfers_.size() && drives_ && !stopping_; ++i) {
      const size_t rank = i < static_cast<size_t>(driver_) ? i : i + 1;
      stopping_ = transfers_[i]->Done() && bytes_[rank] == 1;
    }
    return stopping_;
  }

  // Others than the driver, now and then: tells it, once.
  absl::Status Tell() {
    const bool told = drives_ || !transfers_.empty();
    return told || !IsStopping() ? absl::OkStatus() : Send(1);
  }

  // Collective, once, at the end.
  absl::Status Finish() {
    if (!drives_ && transfers_.empty()) RETURN_IF_ERROR(Send(0));
    for (const auto& transfer : transfers_) RETURN_IF_ERROR(transfer->Wait());
    return absl::OkStatus();
  }

 private:
  PipelineStop(Communicator& pipeline, int driver, deepnet::IsStopping is_stopping)
      : pipeline_(pipeline),
        driver_(driver),
        drives_(pipeline.rank() == driver),
        is_stopping_(std::move(is_stopping)),
        bytes_(static_cast<size_t>(pipeline.size())) {}

  absl::Status Send(char byte) {
    char& mine = bytes_[static_cast<size_t>(pipeline_.rank())];
    mine = byte;
    ASSIGN_OR_RETURN(transfers_.emplace_back(), pipeline_.Send({&mine, 1, {}}, driver_, kStopTag));
    return absl::OkStatus();
  }

  Communicator& pipeline_;
  const int driver_;
  const bool drives_;
  const deepnet::IsStopping is_stopping_;
  bool stopping_ = false;
  std::vector<char> bytes_;  // [rank]; 1: stopping
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

// Returns how the drivers of all replicas share an evaluation, over `groups.drivers`; that is null
// on other ranks.
EvaluateShare ShareOf(const RankContext& context, Groups& groups, PipelineStop& stop) {
  const auto gather =
      [&groups,
       &stop](const absl::StatusOr<std::string>& mine) -> absl::StatusOr<std::vector<std::string>> {
    groups.heartbeat.Begin(
        "validation: gather of the scores of all replicas (here rank r is replica r)");
    RETURN_IF_ERROR(AgreeOnStatus(*groups.drivers, stop.IsStopping() ? Stopped() : mine.status()));
    return AllGatherText(*groups.drivers, *mine);
  };
  return {.part = context.dp_rank, .num_parts = context.dp_size, .gather = gather};
}

// Evaluates as the driver of a pipeline. If the pipeline broke, returns that error, since the
// others follow from it.
absl::StatusOr<EvalRecord> Drive(const Corpus& corpus, EvaluateOptions options,
                                 PipelineScorer& scorer, PipelineStop& stop,
                                 const ShowProgress& show) {
  options.progress = [&](const std::string& direction, double fraction) {
    show(direction, fraction);
    scorer.Show(direction, fraction);
  };
  absl::StatusOr<EvalRecord> record =
      Evaluate(scorer, scorer, corpus, corpus.vocabulary(), options);
  RETURN_IF_ERROR(scorer.Stop());
  if (stop.IsStopping()) return Stopped();
  if (absl::IsOutOfRange(record.status())) {
    return DivergedError("diverged: in the validation of ", record.status().message());
  }
  return record;
}

absl::StatusOr<EvalRecord> EvaluateOnAllRanks(const Corpus& corpus, RankContext& context,
                                              EvaluateOptions options, Logger& log,
                                              const IsStopping& is_stopping) {
  const PipelineRoute& route = context.route;
  const bool drives = route.rank == route.driver;
  const Limits limits{.rows = context.groups.all.limit};
  Groups groups(context.world->rank());
  RETURN_IF_ERROR(MakeGroups(context, drives, limits, groups));
  PipelineLink link(route, *groups.pipeline, {.rows = limits.rows, .command = limits.command});
  ASSIGN_OR_RETURN(const auto stop,
                   PipelineStop::Make(*groups.requests, route.driver, is_stopping));
  absl::Status told;
  const ShowProgress show = [&](const std::string& direction, double fraction) {
    log.Show({.label = "validate", .fraction = fraction, .figures = direction});
    told.Update(stop->Tell());
  };
  absl::StatusOr<EvalRecord> record = EvalRecord();
  if (drives) {
    options.share = ShareOf(context, groups, *stop);
    PipelineScorer scorer(*context.model, link, [&stop] { return stop->IsStopping(); });
    record = Drive(corpus, options, scorer, *stop, show);
  } else {
    RETURN_IF_ERROR(ServePipeline(*context.model, link, show));
  }
  RETURN_IF_ERROR(link.status());  // the job has ended with it
  RETURN_IF_ERROR(told);
  groups.heartbeat.Begin("validation: requests to stop");
  RETURN_IF_ERROR(stop->Finish());
  groups.heartbeat.Begin("validation: end of all ranks");
  RETURN_IF_ERROR(AgreeOnStatus(*groups.world, record.status()));
  RETURN_IF_ERROR(BroadcastMessage(*groups.world, *record, route.driver));
  return record;
}

}  // namespace

absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Corpus& corpus, RankContext& context,
                                    Logger& log, const IsStopping& is_stopping) {
  EvalRecord record;
  const int64_t step = context.model->step();
  const EvaluateOptions options = OptionsOf(run, corpus);
  if (!options.directions.empty()) {
    ASSIGN_OR_RETURN(record, EvaluateOnAllRanks(
                                 corpus, context, options, log,
                                 is_stopping ? is_stopping : [] { return false; }));
    log.Info(absl::StrFormat("validation at step %s: %s, %d directions, %s", WithCommas(step),
                             FiguresOf(record, options.translates), record.directions_size(),
                             ClockText(record.seconds())));
    const std::string too_long = TooLongText(record);
    if (context.world->rank() == 0 && !too_long.empty()) log.Warning(too_long);
    for (const SampleTranslation& sample : record.samples()) {
      log.Info(absl::StrCat(
          sample.direction(), ", line ", sample.line(), "\n  source:      ", sample.source(),
          "\n  reference:   ", sample.reference(), "\n  translation: ", sample.translation()));
    }
  }
  record.set_kind("validation");
  record.set_step(step);
  return record;
}

}  // namespace deepnet
