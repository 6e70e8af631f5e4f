#include "trainer/instruments/instruments.h"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "parallel/base/clock.h"
#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"

namespace deepnet {
namespace {

// The file that keeps F(x, theta_0) of a run has one line of text that says whose it is, the rows
// as little-endian float32, and the CRC-32C of all before it in four bytes.
constexpr char kMagic[] = "deepnet-model-update-1";
constexpr int64_t kMaxBytes = int64_t{4} << 30;

template <typename T>
std::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// Returns the identity of a model, its seed and x; without blanks.
std::string ReferenceIdentity(const std::string& inventory_hash, uint64_t seed,
                              const Microbatch& x) {
  uint32_t crc = 0;
  for (const PackedSide* side : {&x.source, &x.target}) {
    crc = Crc32c(BytesOf(std::span<const int32_t>(side->tokens)), crc);
    crc = Crc32c(BytesOf(std::span<const int32_t>(side->offsets)), crc);
  }
  return absl::StrCat(inventory_hash, "-", seed, "-", absl::Hex(crc, absl::kZeroPad8));
}

// Replaces `path`, durably.
absl::Status WriteReference(FileSystem& fs, const std::string& path, const std::string& identity,
                            const OutputRows& rows) {
  std::string bytes = absl::StrCat(kMagic, " ", identity, " ", rows.tokens, " ", rows.width, "\n");
  bytes += BytesOf(std::span<const float>(rows.values));
  const uint32_t crc = Crc32c(bytes);
  bytes += BytesOf(std::span(&crc, 1));
  return WithExitCode(ReplaceFile(fs, path, bytes), ExitCode::kCheckpoint);
}

// kNotFound where there is none, or none of `identity`, or a damaged one.
absl::StatusOr<OutputRows> ReadReference(FileSystem& fs, const std::string& path,
                                         const std::string& identity) {
  const absl::Status unusable = NotFound(path, ": not of this run, or damaged");
  const absl::StatusOr<std::string> bytes = ReadWholeFile(fs, path, kMaxBytes);
  uint32_t crc = 0;
  if (!bytes.ok() || bytes->size() < sizeof(crc)) return unusable;
  const std::string_view checked = std::string_view(*bytes).substr(0, bytes->size() - sizeof(crc));
  std::memcpy(&crc, bytes->data() + checked.size(), sizeof(crc));
  const size_t line = checked.find('\n');
  if (Crc32c(checked) != crc || line == checked.npos) return unusable;
  const std::vector<std::string> words = absl::StrSplit(std::string(checked.substr(0, line)), ' ');
  OutputRows rows;
  if (words.size() != 4 || words[0] != kMagic || words[1] != identity ||
      !absl::SimpleAtoi(words[2], &rows.tokens) || !absl::SimpleAtoi(words[3], &rows.width)) {
    return unusable;
  }
  const std::string_view values = checked.substr(line + 1);
  const bool positive = rows.tokens > 0 && rows.width > 0 && rows.tokens < kMaxBytes / rows.width;
  if (!positive || values.size() != sizeof(float) * static_cast<size_t>(rows.tokens * rows.width)) {
    return unusable;
  }
  rows.values.resize(values.size() / sizeof(float));
  std::memcpy(rows.values.data(), values.data(), values.size());
  return rows;
}

constexpr double kShownShare = 0.01;  // of a run's time

}  // namespace

Instruments::Instruments(int64_t every, const Inventory& whole, RankContext& part)
    : every_(every), part_(part) {
  if (every <= 0) return;
  layers_.emplace(whole, part.layout, part.model->parameters().weights().options());
  sublayers_.emplace(part.model->spec());
}

absl::StatusOr<std::unique_ptr<Instruments>> Instruments::Make(const RunSpec& run,
                                                               const Inventory& whole,
                                                               RankContext& part,
                                                               BatchSource& batches,
                                                               const InstrumentsOptions& options) {
  const InstrumentsSpec& spec = run.instruments();
  std::unique_ptr<Instruments> instruments(new Instruments(spec.every_steps(), whole, part));
  if (spec.every_steps() > 0 && spec.model_update()) {
    RETURN_IF_ERROR(instruments->StartModelUpdate(run, whole, batches, options));
  }
  return instruments;
}

// All replicas have the same weights: the first one computes.
absl::Status Instruments::StartModelUpdate(const RunSpec& run, const Inventory& whole,
                                           BatchSource& batches,
                                           const InstrumentsOptions& options) {
  ASSIGN_OR_RETURN(StepBatch first, AgreeOn(*part_.world, batches.ForStep(0)));
  if (part_.dp_rank == 0) {
    ASSIGN_OR_RETURN(
        probe_, OutputProbe::Make(part_, std::move(first.microbatches[0]), options.message_limit));
  }
  absl::Status status;
  if (probe_ != nullptr) status = MakeReference(run, whole, options);
  const bool unknown = absl::IsNotFound(status);
  RETURN_IF_ERROR(AgreeOnStatus(*part_.world, unknown ? absl::OkStatus() : status));
  double ranks_without = unknown ? 1.0 : 0.0;
  RETURN_IF_ERROR(part_.world->AllReduceSum(std::span(&ranks_without, 1), part_.groups.all.limit));
  measures_model_update_ = ranks_without == 0.0;
  if (!measures_model_update_) {
    options.log->Warning(
        absl::StrCat("instruments.model_update: ", options.folder, "/", kModelUpdateReference,
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
  if (part_.dp_rank == 0) part_.stage->Watch(&*sublayers_);
}

void Instruments::BeforeUpdate() {
  const double started = SecondsNow();
  part_.stage->Watch(nullptr);
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
    if (probe_->has_output()) change = ChangeOf(rows, reference_);
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
