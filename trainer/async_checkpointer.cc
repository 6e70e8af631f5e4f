#include "trainer/async_checkpointer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/text.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/tools/tool_options.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model_loader.h"
#include "trainer/telemetry/intervals.h"

namespace deepnet {
namespace {

// Extents (parallel/plan/shard.h) are ranges of a rank's buffers and may span parameters; a
// checkpoint knows parameters and ranges of their elements. RunsOf translates. Every element of the
// model is in exactly one extent that is first in the chain, so those make a whole checkpoint.

// A run of elements of one parameter that an extent holds.
struct ParameterRun {
  const Parameter* parameter = nullptr;
  int64_t first_element = 0;  // in the parameter's own order
  int64_t weight = 0;         // first element in the rank's weights
  int64_t state = 0;          // first element in the rank's moments
  int64_t count = 0;
};

std::vector<ParameterRun> RunsOf(const std::vector<Extent>& extents, const Inventory& held,
                                 bool only_first_in_chain) {
  std::vector<ParameterRun> runs;
  for (const Extent& extent : extents) {
    if (only_first_in_chain && !extent.first_in_chain) continue;
    for (const Parameter& p : held.parameters) {
      const int64_t begin = std::max(extent.weight, p.offset);
      const int64_t end = std::min(extent.weight + extent.count, p.offset + p.NumElements());
      if (begin >= end) continue;
      runs.push_back({.parameter = &p,
                      .first_element = begin - p.offset,
                      .weight = begin,
                      .state = extent.state + (begin - extent.weight),
                      .count = end - begin});
    }
  }
  return runs;
}

// A rank's tensors of one kind: weights, moments or, where it is kept, the weights' average.
struct Kind {
  const char* prefix;
  int64_t ParameterRun::*first;  // where a run begins in `tensor`
  at::Tensor tensor;
};

// Weights come first.
std::vector<Kind> KindsOf(const Parameters& parameters) {
  std::vector<Kind> kinds = {{kWeightPrefix, &ParameterRun::weight, parameters.weights()},
                             {kMoment1Prefix, &ParameterRun::state, parameters.moment1()},
                             {kMoment2Prefix, &ParameterRun::state, parameters.moment2()}};
  if (parameters.average().defined()) {
    kinds.push_back({kEmaPrefix, &ParameterRun::state, parameters.average()});
  }
  return kinds;
}

bool HoldsAverage(const Manifest& manifest) {
  for (const ShardFile& file : manifest.files()) {
    for (const TensorExtent& extent : file.extents()) {
      if (absl::StartsWith(extent.name(), kEmaPrefix)) return true;
    }
  }
  return false;
}

// Adds its lifetime to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), began_(SecondsNow()) {}
  ~Stopwatch() { seconds_ += SecondsNow() - began_; }

  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const double began_;
};

constexpr int kAttempts = 2;  // of a save that everybody waits for

// The speed of a slow disk, assumed until a save has been measured.
constexpr double kGuessedBytesPerSecond = 100e6;

}  // namespace

RankSnapshot::RankSnapshot(const RankContext& context, bool copies) : context_(context) {
  if (!copies) return;
  if (on_device()) {
    side_ = MakeSideCopies(context.ops->session().stream());
  } else {
    const size_t elements = static_cast<size_t>(bytes()) / sizeof(float);
    memory_ = std::make_shared_for_overwrite<float[]>(elements);
  }
}

bool RankSnapshot::on_device() const { return !context_.model->parameters().weights().is_cpu(); }

// Not LibTorch's pinned memory: its allocator takes the next power of two, and keeps it.
absl::Status RankSnapshot::Pin(int threads) {
  if (side_ == nullptr) return absl::OkStatus();
  return CatchErrors(
      [&]() -> absl::Status {
        memory_ = side_->Pin(bytes(), threads);
        if (memory_ != nullptr) return absl::OkStatus();
        return WithExitCode(
            absl::ResourceExhaustedError(absl::StrCat(
                "host ", HostName(), " has no ", ByteText(bytes()),
                " of pinned memory for the copy of a save (parallel.blocking_saves: true does ",
                "without)")),
            ExitCode::kDoesNotFit);
      },
      context_.device_use());
}

void RankSnapshot::TouchMemory() {
  if (memory_ != nullptr && side_ == nullptr) {
    std::memset(memory_.get(), 0, static_cast<size_t>(bytes()));
  }
}

int64_t RankSnapshot::bytes() const {
  int64_t elements = 0;
  for (const Extent& extent : context_.layout.extents) {
    if (extent.first_in_chain) elements += extent.count;
  }
  const int64_t kinds = context_.model->parameters().average().defined() ? 4 : 3;
  return kinds * elements * static_cast<int64_t>(sizeof(float));
}

void RankSnapshot::Look() {
  const Parameters& parameters = context_.model->parameters();
  std::vector<Kind> kinds = KindsOf(parameters);
  held_.clear();
  for (Kind& kind : kinds) {
    if (on_device() && side_ == nullptr) kind.tensor = kind.tensor.to(at::kCPU);
    held_.push_back(kind.tensor);
  }
  tensors_.clear();
  for (const ParameterRun& run : RunsOf(context_.layout.extents, parameters.inventory(),
                                        /*only_first_in_chain=*/true)) {
    for (const Kind& kind : kinds) {
      tensors_.push_back({.name = kind.prefix + run.parameter->name,
                          .shape = run.parameter->shape,
                          .data = {kind.tensor.const_data_ptr<float>() + run.*kind.first,
                                   static_cast<size_t>(run.count)},
                          .first_element = run.first_element});
    }
  }
  if (side_ != nullptr) BeginCopy();
}

// Copies all weights, then each other kind: what lies side by side on the device is one part, so
// that there are few parts however many parameters there are.
void RankSnapshot::BeginCopy() {
  std::vector<SideCopy> parts;
  float* next = memory_.get();
  for (size_t kind = 0; kind < held_.size(); ++kind) {
    const float* end = nullptr;  // of the last part
    for (size_t i = kind; i < tensors_.size(); i += held_.size()) {
      std::span<const float>& data = tensors_[i].data;
      const auto count = static_cast<int64_t>(data.size());
      if (data.data() != end) parts.push_back({.from = data.data(), .to = next});
      parts.back().count += count;
      end = data.data() + count;
      data = {next, data.size()};
      next += count;
    }
  }
  side_->Begin(parts);
}

void RankSnapshot::HoldUpdate() {
  if (side_ != nullptr) side_->HoldStream();
}

absl::Status RankSnapshot::Copy() {
  if (memory_ == nullptr) return absl::OkStatus();
  if (side_ != nullptr) {
    return CatchErrors([&] {
      side_->Wait();
      return absl::OkStatus();
    });
  }
  float* next = memory_.get();
  for (NamedTensor& tensor : tensors_) {
    std::copy(tensor.data.begin(), tensor.data.end(), next);
    tensor.data = {next, tensor.data.size()};
    next += tensor.data.size();
  }
  held_.clear();
  return absl::OkStatus();
}

absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankContext& context) {
  Parameters& parameters = context.model->parameters();
  const std::vector<Kind> kinds = KindsOf(parameters);
  std::vector<Kind> read = kinds;  // on the host; the tensors themselves if they are there already
  const bool begins_average = parameters.average().defined() && !HoldsAverage(manifest);
  if (begins_average) read.pop_back();
  for (Kind& kind : read) kind.tensor = kind.tensor.to(at::kCPU);
  std::vector<MutableNamedTensor> tensors;  // together, so that a block is read once
  for (const Parameter& p : parameters.inventory().parameters) {
    tensors.push_back({.name = kWeightPrefix + p.name,
                       .shape = p.shape,
                       .data = {read[0].tensor.data_ptr<float>() + p.offset,
                                static_cast<size_t>(p.NumElements())}});
  }
  for (const ParameterRun& run :
       RunsOf(context.layout.extents, parameters.inventory(), /*only_first_in_chain=*/false)) {
    for (size_t i = 1; i < read.size(); ++i) {
      tensors.push_back({.name = read[i].prefix + run.parameter->name,
                         .shape = run.parameter->shape,
                         .data = {read[i].tensor.data_ptr<float>() + run.*read[i].first,
                                  static_cast<size_t>(run.count)},
                         .first_element = run.first_element});
    }
  }
  RETURN_IF_ERROR(ReadTensors(fs, checkpoint_folder, manifest, tensors));
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i].tensor.is_same(kinds[i].tensor)) kinds[i].tensor.copy_(read[i].tensor);
  }
  if (begins_average) context.optimizer->BeginAverage(parameters);
  return absl::OkStatus();
}

absl::StatusOr<std::string> HashRankWeights(const RankContext& context, const Inventory& whole) {
  const Inventory& held = context.model->parameters().inventory();
  const std::vector<uint64_t> own = ParameterHashes(context.model->parameters());
  std::string lines;
  for (size_t i = 0; i < own.size(); ++i) {
    absl::StrAppend(&lines, held.parameters[i].name, " ", own[i], "\n");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherText(*context.world, lines));
  absl::flat_hash_map<std::string, uint64_t> hashes;
  for (const std::string& text : all) {
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> entry = absl::StrSplit(line, ' ');
      uint64_t hash = 0;
      if (absl::SimpleAtoi(entry.second, &hash)) hashes.emplace(entry.first, hash);
    }
  }
  std::vector<uint64_t> in_order;
  for (const Parameter& p : whole.parameters) in_order.push_back(hashes.at(p.name));
  return WeightsHash(in_order);
}

AsyncCheckpointer::AsyncCheckpointer(FileSystem& fs, AsyncCheckpointerOptions options,
                                     const RankContext& context)
    : fs_(fs),
      options_(std::move(options)),
      context_(context),
      snapshot_(context, options_.copies) {}

absl::Status AsyncCheckpointer::Open() {
  absl::Status opened = snapshot_.Pin(options_.threads);
  task_.Start([this] {
    snapshot_.TouchMemory();
    return absl::OkStatus();
  });
  if (opened.ok() && leads()) {
    opened = RemoveUnfinished(fs_, options_.folder);
    if (!opened.ok()) opened = WithExitCode(opened, ExitCode::kCheckpoint);
  }
  return AgreeOnStatus(*context_.world, opened);
}

void AsyncCheckpointer::Begin(const Manifest& state) {
  DEEPNET_CHECK(!busy());
  began_ = SecondsNow();
  stall_seconds_ = 0.0;
  const Stopwatch stall(stall_seconds_);
  manifest_ = state;
  manifest_.clear_files();
  snapshot_.Look();
  phase_ = Phase::kWriting;
  copied_ = !options_.copies || snapshot_.on_device();
  task_.Start([this]() -> absl::Status {
    device_error_ = snapshot_.Copy();
    copied_ = true;
    copied_.notify_all();
    RETURN_IF_ERROR(device_error_);
    ASSIGN_OR_RETURN(
        file_, WriteShard(fs_, options_.folder, manifest_.step(), context_.world->rank(),
                          context_.world->size(), manifest_.block_bytes(), snapshot_.tensors()));
    return absl::OkStatus();
  });
  if (!options_.copies) task_.Wait().IgnoreError();  // Advance asks again
}

void AsyncCheckpointer::AwaitCopy() {
  snapshot_.HoldUpdate();
  if (copied_) return;
  const Stopwatch stall(stall_seconds_);
  copied_.wait(false);
}

// The ranks go through the phases together. Each phase is one task in the background, and only
// Advance exchanges how it went.
absl::Status AsyncCheckpointer::Advance() {
  DEEPNET_CHECK(busy());
  const Stopwatch stall(stall_seconds_);
  switch (phase_) {
    case Phase::kNone:
      break;
    case Phase::kWriting:
      return EndWriting();
    case Phase::kCommitting:
      return EndCommit();
    case Phase::kTidying:
      if (const absl::Status tidied = task_.Wait(); !tidied.ok()) {
        options_.warn(std::string(tidied.message()));
      }
      phase_ = Phase::kNone;
  }
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::EndWriting() {
  Communicator& world = *context_.world;
  const absl::Status written = task_.Wait();
  // A device that fails ends the job: there is nothing to go on with.
  RETURN_IF_ERROR(CatchErrors([&] { return device_error_; }, context_.device_use()));
  outcome_ = AgreeOnStatus(world, written);
  if (!outcome_.ok()) return EndSave();
  ASSIGN_OR_RETURN(const std::vector<std::string> files, AllGatherText(world, ToBytes(file_)));
  for (const std::string& bytes : files) {
    RETURN_IF_ERROR(ParseSent(bytes, *manifest_.add_files()));
  }
  phase_ = Phase::kCommitting;
  task_.Start([this] { return leads() ? Commit() : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::Commit() {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  RETURN_IF_ERROR(CommitCheckpoint(fs_, options_.folder, manifest_));
  for (const BestScore& best : manifest_.best()) {
    if (best.step() != manifest_.step()) continue;
    RETURN_IF_ERROR(
        SetPointer(fs_, options_.folder, absl::StrCat("best-", best.metric()), best.step()));
  }
  committed_ = SecondsNow();
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::EndCommit() {
  outcome_ = AgreeOnStatus(*context_.world, task_.Wait());
  return EndSave();
}

absl::Status AsyncCheckpointer::EndSave() {
  if (!outcome_.ok() && !IsAgreed(outcome_)) return outcome_;  // a rank is lost
  SaveRecord record;
  record.set_kind("save");
  record.set_step(manifest_.step());
  record.set_stall_seconds(stall_seconds_);
  if (outcome_.ok()) {
    const double end = leads() ? committed_ : SecondsNow();
    record.set_seconds(end - began_);
    record.set_bytes(TensorBytes(manifest_));
    longest_seconds_ = std::max(longest_seconds_, record.seconds());
  } else {
    record.set_seconds(SecondsNow() - began_);
    record.set_error(std::string(outcome_.message()));
  }
  options_.on_end(record);
  if (absl::IsAborted(outcome_)) return outcome_;  // the folder is another job's now
  phase_ = Phase::kTidying;
  task_.Start([this, ok = outcome_.ok()] { return leads() ? Tidy(ok) : absl::OkStatus(); });
  return absl::OkStatus();
}

absl::Status AsyncCheckpointer::Tidy(bool saved) {
  if (options_.lock != nullptr) RETURN_IF_ERROR(options_.lock->Check());
  if (!saved) return RemoveUnfinished(fs_, options_.folder);
  if (hurry_) return absl::OkStatus();
  return DeleteOldCheckpoints(fs_, options_.folder, options_.keep_latest, options_.keep_every_steps,
                              &hurry_, options_.go_back_steps);
}

absl::Status AsyncCheckpointer::Finish(bool tidy) {
  hurry_ = !tidy;
  while (busy()) {
    {
      const Stopwatch stall(stall_seconds_);
      task_.Wait().IgnoreError();  // Advance asks again
    }
    RETURN_IF_ERROR(Advance());
  }
  hurry_ = false;
  return absl::OkStatus();
}

namespace {

int64_t GoBackSteps(const SpikeSpec& spike) {
  return spike.action() == SpikeSpec::ROLL_BACK ? spike.steps_before() : -1;
}

}  // namespace

std::string SaveLine(const SaveRecord& record) {
  if (!record.error().empty()) {
    return absl::StrFormat("step %s could not be saved (%s so far): %s", WithCommas(record.step()),
                           WithCommas(record.failed_saves()), record.error());
  }
  return absl::StrFormat("saved step %s: %s in %.2f s, of which training stood still %.3f s",
                         WithCommas(record.step()), ByteText(record.bytes()), record.seconds(),
                         record.stall_seconds());
}

CheckpointPolicy::CheckpointPolicy(FileSystem& fs, const TrainSpec& train, Manifest& state,
                                   const RankContext& context, Logger& log,
                                   CheckpointPolicyOptions options)
    : train_(train),
      state_(state),
      log_(log),
      options_(std::move(options)),
      saved_step_(options_.resumed ? state.step() : -1),
      saved_at_(state.train_seconds()),
      recorded_skips_(state.skipped_steps()),
      saver_(fs,
             {.folder = options_.folder,
              .keep_latest = train.keep_checkpoints(),
              .keep_every_steps = train.keep_every_steps(),
              .go_back_steps = GoBackSteps(train.spike()),
              .copies = options_.copies,
              .threads = options_.threads,
              .lock = options_.lock,
              .on_end = [this](const SaveRecord& record) { AfterSave(record); },
              .warn = [this](const std::string& sentence) { log_.Warning(sentence); }},
             context) {}

bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better) {
  if (std::isnan(value)) return false;
  BestScore* best = nullptr;
  for (BestScore& known : *state.mutable_best()) {
    if (known.metric() == metric) best = &known;
  }
  if (best == nullptr) {
    best = state.add_best();
    best->set_metric(metric);
  } else if (better == Better::kGreater ? value <= best->value() : value >= best->value()) {
    return false;  // a stored NaN compares false: any number beats it
  }
  best->set_value(value);
  best->set_step(state.step());
  return true;
}

RunPosition CheckpointPolicy::Position(int64_t step_tokens) const {
  return {.step = state_.step(),
          .target_tokens = state_.target_tokens(),
          .step_tokens = step_tokens,
          .steps_per_epoch = options_.steps_per_epoch,
          .seconds = state_.train_seconds() - saved_at_};
}

double CheckpointPolicy::SecondsUntilDue(const Pace& pace) const {
  return deepnet::SecondsUntilDue(CheckpointInterval(train_), Position(/*step_tokens=*/0), pace);
}

// Records in the ledger whether the step that was just counted was skipped.
void CheckpointPolicy::RecordSkip() {
  if (state_.skipped_steps() == recorded_skips_) return;
  recorded_skips_ = state_.skipped_steps();
  const int runs = state_.skips_size();
  SkippedSteps* run = runs > 0 ? state_.mutable_skips(runs - 1) : nullptr;
  if (run == nullptr || run->first_step() + run->count() != state_.step()) {
    run = state_.add_skips();
    run->set_first_step(state_.step());
  }
  run->set_count(run->count() + 1);
}

absl::Status CheckpointPolicy::SaveIfDue(int64_t step_tokens) {
  RecordSkip();
  return IsDue(CheckpointInterval(train_), Position(step_tokens)) ? Save() : absl::OkStatus();
}

absl::Status CheckpointPolicy::Save() {
  RecordSkip();
  if (saved_step_ == state_.step()) return absl::OkStatus();
  RETURN_IF_ERROR(saver_.Finish());
  saved_step_ = state_.step();
  saved_at_ = state_.train_seconds();
  saver_.Begin(state_);
  return absl::OkStatus();
}

void CheckpointPolicy::AfterSave(SaveRecord record) {
  const bool failed = !record.error().empty();
  if (failed) state_.set_failed_saves(state_.failed_saves() + 1);
  if (failed && saved_step_ == record.step()) saved_step_ = -1;
  record.set_failed_saves(state_.failed_saves());
  if (options_.record) options_.record(record);
  if (failed) {
    log_.Warning(SaveLine(record));
  } else {
    log_.Info(SaveLine(record));
  }
}

absl::Status CheckpointPolicy::SaveAndWait(bool tidy) {
  RETURN_IF_ERROR(saver_.Finish(tidy));
  for (int attempt = 0; attempt < kAttempts && saved_step_ != state_.step(); ++attempt) {
    RETURN_IF_ERROR(Save());
    RETURN_IF_ERROR(saver_.Finish(tidy));
  }
  return saved_step_ == state_.step() ? absl::OkStatus() : saver_.outcome();
}

absl::Status CheckpointPolicy::SaveAfterGoingBack() {
  saved_step_ = -1;
  recorded_skips_ = state_.skipped_steps();
  RETURN_IF_ERROR(Save());
  return saver_.Finish();
}

double CheckpointPolicy::ExpectedSeconds() const {
  const double measured = saver_.longest_seconds();
  return measured > 0 ? measured : static_cast<double>(saver_.bytes()) / kGuessedBytesPerSecond;
}

}  // namespace deepnet
