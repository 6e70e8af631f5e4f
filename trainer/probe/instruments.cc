#include "trainer/probe/instruments.h"

#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/probe/instruments_reference.h"

namespace deepnet {
namespace {

constexpr double kShownShare = 0.01;  // of a run's time

}  // namespace

Instruments::Instruments(int64_t every, const Inventory& whole, RankPart& part)
    : every_(every), part_(part) {
  if (every <= 0) return;
  layers_.emplace(whole, part.layout, part.model->parameters().weights().options());
  sublayers_.emplace(part.model->spec());
}

absl::StatusOr<std::unique_ptr<Instruments>> Instruments::Make(
    const RunSpec& run, const Inventory& whole, const Plan& plan, RankPart& part,
    BatchSource& batches, const InstrumentsOptions& options, Logger& log) {
  const InstrumentsSpec& spec = run.instruments();
  std::unique_ptr<Instruments> instruments(new Instruments(spec.every_steps(), whole, part));
  if (spec.every_steps() > 0 && spec.model_update()) {
    RETURN_IF_ERROR(instruments->StartModelUpdate(run, whole, plan, batches, options, log));
  }
  return instruments;
}

// All replicas have the same weights: the first one computes.
absl::Status Instruments::StartModelUpdate(const RunSpec& run, const Inventory& whole,
                                           const Plan& plan, BatchSource& batches,
                                           const InstrumentsOptions& options, Logger& log) {
  absl::StatusOr<StepBatch> first = batches.ForStep(0);
  RETURN_IF_ERROR(AgreeOnStatus(*part_.world, first.status()));
  if (part_.replica == 0) {
    ASSIGN_OR_RETURN(probe_,
                     OutputProbe::Make(whole, plan, part_, std::move(first->microbatches[0]),
                                       options.message_limit));
  }
  absl::Status status;
  if (probe_ != nullptr) status = MakeReference(run, whole, options);
  const bool unknown = absl::IsNotFound(status);
  RETURN_IF_ERROR(AgreeOnStatus(*part_.world, unknown ? absl::OkStatus() : status));
  double ranks_without = unknown ? 1.0 : 0.0;
  RETURN_IF_ERROR(part_.world->AllReduceSum(std::span(&ranks_without, 1), part_.groups.all.limit));
  measures_model_update_ = ranks_without == 0.0;
  if (!measures_model_update_) {
    log.Warning(absl::StrCat("instruments.model_update: ", options.folder, "/",
                             kModelUpdateReference,
                             " does not tell where this run began; left out of the records"));
  }
  return absl::OkStatus();
}

absl::Status Instruments::MakeReference(const RunSpec& run, const Inventory& whole,
                                        const InstrumentsOptions& options) {
  const std::string path = JoinPath(options.folder, kModelUpdateReference);
  const std::string identity = ReferenceIdentity(whole.Hash(), run.seed(), probe_->microbatch());
  if (options.first_step == 0) {
    ASSIGN_OR_RETURN(reference_, probe_->Rows(0));
    return probe_->has_output() ? WriteReference(*options.files, path, identity, reference_)
                                : absl::OkStatus();
  }
  if (!probe_->has_output()) return absl::OkStatus();
  ASSIGN_OR_RETURN(reference_, ReadReference(*options.files, path, identity));
  return absl::OkStatus();
}

// The first replica's ranks have the step's first microbatch.
void Instruments::BeforeStep() {
  if (part_.replica == 0) part_.chunks->Watch(&*sublayers_);
}

void Instruments::BeforeUpdate() {
  const double started = SecondsNow();
  part_.chunks->Watch(nullptr);
  layers_->Remember(part_.model->parameters().weights());
  before_update_seconds_ = SecondsNow() - started;
}

absl::StatusOr<InstrumentRecord> Instruments::Record(int64_t step) {
  const double started = SecondsNow();
  InstrumentRecord record;
  record.set_kind("instruments");
  record.set_step(step);
  ASSIGN_OR_RETURN(const auto layers,
                   layers_->Measure(*part_.ops, part_.model->parameters(), part_.groups.all));
  record.mutable_layers()->Add(layers.begin(), layers.end());
  const double looked = sublayers_->seconds();
  ASSIGN_OR_RETURN(const auto sublayers, sublayers_->Gather(part_.groups.all));
  record.mutable_sublayers()->Add(sublayers.begin(), sublayers.end());
  if (measures_model_update_) {
    ASSIGN_OR_RETURN(const double update, ModelUpdate(step));
    record.set_model_update(update);
  }
  record.set_seconds(looked + before_update_seconds_ + SecondsNow() - started);
  seconds_ += record.seconds();
  return record;
}

absl::StatusOr<double> Instruments::ModelUpdate(int64_t step) {
  double change = 0.0;
  if (probe_ != nullptr) {
    ASSIGN_OR_RETURN(const OutputRows rows, probe_->Rows(step));
    if (probe_->has_output()) change = ChangeOf(rows, reference_).per_token;
  }
  RETURN_IF_ERROR(Named(part_.world->AllReduceSum(std::span(&change, 1), part_.groups.all.limit),
                        "the model's update"));
  return change;
}

std::string InstrumentsCost(double instruments_seconds, double seconds) {
  if (!(instruments_seconds > kShownShare * seconds)) return "";
  return absl::StrFormat("  instruments %.1f %%", 100 * instruments_seconds / seconds);
}

}  // namespace deepnet
