#include "trainer/telemetry/prometheus_file.h"

#include <cmath>
#include <filesystem>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace deepnet {
namespace {

using google::protobuf::DynamicCastToGenerated;

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

std::string Label(std::string_view name, std::string_view value) {
  return absl::StrCat(
      std::string(name), "=\"",
      absl::StrReplaceAll(std::string(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
      "\"");
}

// Text of one run: families of figures, one after the other.
class Families {
 public:
  explicit Families(const std::string& run) : run_label_(Label("run", run)) {}

  // A family of one figure.
  void Add(const std::string& name, const std::string& type, const std::string& help,
           double value) {
    Begin(name, type, help);
    absl::StrAppend(&text_, name, "{", run_label_, "} ", Number(value), "\n");
  }
  void Counter(const std::string& name, const std::string& help, int64_t value) {
    Add(absl::StrCat("deepnet_", name, "_total"), "counter", help, static_cast<double>(value));
  }
  template <typename Value>
  void Gauge(const std::string& name, const std::string& help, Value value) {
    Add("deepnet_" + name, "gauge", help, static_cast<double>(value));
  }
  // A gauge that has a figure only if that is above 0.
  void Known(const std::string& name, const std::string& help, double value) {
    if (value > 0) Gauge(name, help, value);
  }
  // A gauge with a figure for each direction that has it.
  void Scores(const std::string& name, const std::string& help, const EvalRecord& record,
              bool (DirectionScore::*has)() const, double (DirectionScore::*score)() const) {
    bool begun = false;
    for (const DirectionScore& direction : record.directions()) {
      if (!(direction.*has)()) continue;
      if (!std::exchange(begun, true)) Begin("deepnet_" + name, "gauge", help);
      absl::StrAppend(&text_, "deepnet_", name, "{", run_label_, ",",
                      Label("direction", direction.direction()), "} ", Number((direction.*score)()),
                      "\n");
    }
  }
  std::string Take() { return std::move(text_); }

 private:
  void Begin(const std::string& name, const std::string& type, const std::string& help) {
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }

  const std::string run_label_;
  std::string text_;
};

void AddSteps(const StepRecord& step, Families& families) {
  families.Counter("steps", "Optimizer steps done.", step.step());
  families.Counter("skipped_steps", "Steps that changed nothing.", step.skipped_steps());
  families.Counter("source_tokens", "Source tokens trained on.", step.source_tokens());
  families.Counter("target_tokens", "Target tokens with a label trained on.", step.target_tokens());
  families.Counter("restarts", "Times that Slurm put the job back into the queue.",
                   step.restarts());
  families.Add("deepnet_train_seconds_total", "counter", "Wall-clock time of training.",
               step.seconds());
  families.Gauge("loss_nats", "Smoothed cross-entropy a target token.", step.loss());
  families.Gauge("nll_nats", "Negative log-likelihood a target token.", step.nll());
  families.Gauge("gradient_norm", "Norm of the last step's gradient before clipping.",
                 step.gradient_norm());
  families.Gauge("learning_rate", "Learning rate of the last step.", step.learning_rate());
  families.Gauge("tokens_per_second", "Source and target tokens a second.",
                 step.tokens_per_second());
  families.Gauge("resident_memory_peak_bytes", "Peak resident memory of rank 0.",
                 step.resident_bytes());
  families.Known("mfu_ratio", "Model FLOP/s over the stated peak of all GPUs.", step.mfu());
  families.Known("gemm_efficiency_ratio", "Model FLOP/s over the measured product ceiling.",
                 step.gemm_efficiency());
  families.Known("bubble_ratio", "Share of the pipeline's time without work.", step.bubble());
  families.Known("loss_scale", "Loss scale of the last step.", step.loss_scale());
}

}  // namespace

void PrometheusFile::Remember(const google::protobuf::Message& record) {
  if (const auto* const step = DynamicCastToGenerated<StepRecord>(&record)) step_ = *step;
  if (const auto* const scores = DynamicCastToGenerated<EvalRecord>(&record)) validation_ = *scores;
  if (const auto* const save = DynamicCastToGenerated<SaveRecord>(&record)) {
    if (save->error().empty()) save_ = *save;
    save_.set_failed_saves(save->failed_saves());
  }
}

std::string PrometheusFile::Text(const NextTimes& next) const {
  Families families(run_);
  AddSteps(step_, families);
  families.Known("remaining_seconds", "Expected time of training until the end.",
                 step_.seconds_to_end());
  families.Known("next_save_seconds", "Expected time until the next save.", next.save);
  families.Known("next_validation_seconds", "Expected time until the next validation.",
                 next.validation);
  families.Counter("failed_saves", "Saves that failed.", save_.failed_saves());
  if (save_.step() > 0) {
    families.Gauge("saved_steps", "Steps in the newest checkpoint.", save_.step());
    families.Gauge("save_seconds", "Time that it took.", save_.seconds());
    families.Gauge("save_stall_seconds", "Time that training stood still for it.",
                   save_.stall_seconds());
  }
  if (validation_.directions_size() > 0) {
    families.Gauge("validated_steps", "Steps done at the last validation.", validation_.step());
    families.Scores("validation_nll_nats", "Negative log-likelihood a token of the dev set.",
                    validation_, &DirectionScore::has_nll, &DirectionScore::nll);
    families.Scores("validation_bleu", "BLEU of the dev set, from 0 to 100.", validation_,
                    &DirectionScore::has_bleu, &DirectionScore::bleu);
  }
  return families.Take();
}

absl::Status PrometheusFile::Write(const NextTimes& next) {
  return ReplaceFile(*fs_, path_, Text(next));
}

std::unique_ptr<PrometheusFile> MakePrometheusFile(const RunSpec& run, const std::string& root) {
  const std::string& file = run.train().prometheus_file();
  if (file.empty()) return nullptr;
  return std::make_unique<PrometheusFile>((std::filesystem::path(root) / file).string(),
                                          run.name().empty() ? run.folder() : run.name());
}

}  // namespace deepnet
