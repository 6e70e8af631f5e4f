// `deepnet lab`: what launch/lab/lab.py, which makes tables and pages, needs of a model itself: the
// audit of its initial weights, Admin's profile, how far a few updates move it.
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/command.h"
#include "launch/validate.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"
#include "trainer/instruments/audit.h"
#include "trainer/instruments/meters.h"
#include "trainer/instruments/model_update.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

JsonObject SpreadJson(const SpreadAudit& audit) {
  return JsonObject()
      .Add("looked_at", audit.elements)
      .Add("std_ratio", audit.std_ratio, 9)
      .Add("tolerance", audit.tolerance, 9)
      .Add("mean", audit.mean, 9)
      .Add("fault", audit.fault);
}

JsonObject TensorJson(const TensorAudit& tensor) {
  return JsonObject()
      .Add("name", tensor.name)
      .Add("role", RoleName(tensor.role))
      .Add("std_drawn", tensor.drawn_std, 9)
      .Add("std_theory", tensor.theory_std, 9)
      .Add("difference", tensor.drawn_std - tensor.theory_std, 9)
      .Add("spread", SpreadJson(tensor.spread));
}

std::string Json(const RunSpec& run, const AuditReport& report, bool with_tensors) {
  const ModelSpec& model = run.model();
  const auto group_json = [&](const AuditGroup& group) {
    return JsonObject()
        .Add("layer", KindNameIn(model, group.kind))
        .Add("role", RoleName(group.role))
        .Add("drawn", group.drawn)
        .Add("tensors", group.tensors)
        .Add("elements", group.elements)
        .Add("least_gain", group.least_gain, 9)
        .Add("greatest_gain", group.greatest_gain, 9)
        .Add("all", SpreadJson(group.all))
        .Add("worst_name", group.worst_name)
        .Add("worst", SpreadJson(group.worst));
  };
  JsonObject json;
  json.Add("residual", Residual_Name(model.residual()))
      .Add("seed", run.seed())
      .Add("std_tolerance", kStdTolerance)
      .Add("sampling_errors", kSamplingErrors)
      .Add("good", report.faults.empty())
      .Add("groups", JsonObjects(report.groups, group_json));
  if (with_tensors) json.Add("tensors", JsonObjects(report.tensors, TensorJson));
  return JsonOf(json.Add("faults", report.faults)) + "\n";
}

absl::Status RunLabAudit(const CommandLine& line) {
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  const AuditReport report =
      AuditInitialWeights(run.model(), Describe(run.model(), run.data().microbatch()), run.seed(),
                          line.flags.Integer("sample"));
  line.out << Json(run, report, line.flags.Switch("tensors"));
  return AuditStatus(report);
}

Command AuditCommand() {
  return {
      .name = "audit",
      .summary = "Compare the spread of initial weights with theory.",
      .description =
          "Draws every tensor as `train` would, one at a time, and compares its mean and standard "
          "deviation, rows that must be zero and values that are not drawn with what the model's "
          "description says; alpha and gains of DEEPNORM also with the paper's formulas. Works for "
          "models larger than this machine. Prints JSON, of which `lab.py audit` makes a table. "
          "Exit code 3 if anything is off: `train` refuses such a model too.",
      .spec = SpecUse::kRequired,
      .prints_data = true,
      .validate = ValidateForPlan,
      .flags = {IntegerFlag("sample",
                            "Draw at most the first rows of a tensor that have so many elements.",
                            "1000000", {.least = 1}, "ELEMENTS"),
                SwitchFlag("tensors",
                           "List every tensor: name, role, elements looked at, standard deviation "
                           "drawn and by theory, difference.")},
      .run = RunLabAudit};
}

absl::StatusOr<Corpus> OpenCorpus(const CommandLine& line, const std::string& folder) {
  return WithExitCode(Corpus::Open(ResolvePath(line, folder)), ExitCode::kData);
}

absl::Status RunAdminProfile(const CommandLine& line) {
  ASSIGN_OR_RETURN(RunSpec run, LoadRunSpec(line));
  if (run.model().residual() != ADMIN) {
    return ConfigError("model.residual: ", Residual_Name(run.model().residual()),
                       ": must be ADMIN: no other scheme has a profile");
  }
  ASSIGN_OR_RETURN(const Corpus corpus, OpenCorpus(line, run.data().folder()));
  run.mutable_model()->set_vocabulary_size(corpus.vocabulary().size());
  RETURN_IF_ERROR(ResolveDataSpec(corpus, run.mutable_data(), run.model().architecture()));
  ASSIGN_OR_RETURN(const auto batches, CorpusBatchSource::Make(run.data(), run.seed(), &corpus,
                                                               run.model().architecture()));
  ASSIGN_OR_RETURN(const StepBatch batch, batches->ForStep(0));
  ASSIGN_OR_RETURN(const auto ops, MakeOps(ResolveCompute(run.compute())));
  Transformer model(run.model(), run.data().microbatch(), *ops, /*trainable=*/true);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  const auto append_omega = [](std::string* out, double omega) {
    absl::StrAppendFormat(out, "%.6g", omega);
  };
  line.out << "model { scheme { admin_omega: ["
           << absl::StrJoin(ProfileAdmin(model, batch.microbatches[0], run.seed()), ", ",
                            append_omega)
           << "] } }\n";
  return absl::OkStatus();
}

Command AdminProfileCommand() {
  return {.name = "admin-profile",
          .summary = "Measure what branches add to their streams, for residual ADMIN.",
          .description =
              "Runs the first microbatch of a run through the model as it starts, dropout on, and "
              "prints the vector's value that each sub-layer of residual ADMIN should start with: "
              "2N numbers of the encoder, then 3M of the decoder. Put the line into the recipe. "
              "One process; the whole model must fit.",
          .spec = SpecUse::kRequired,
          .validate = ValidateForTrain,
          .run = RunAdminProfile};
}

// The paper's hyper-parameters for IWSLT-14 (table 4) without dropout, in two microbatches of half
// the tokens. bfloat16 copies of weights would hide small updates.
constexpr char kPaperRun[] = R"(
  seed: 1
  model {
    residual: DEEPNORM encoder_layers: 6 decoder_layers: 6 d_model: 64 ffn_dim: 128 num_heads: 2
    vocabulary_size: 4000
  }
  data {
    max_sentence_tokens: 150 global_microbatches: 2
    microbatch { max_source_tokens: 2000 max_target_tokens: 2000 max_sentences: 500 }
  }
  optim { learning_rate: 5e-4 weight_decay: 1e-4 virtual_replicas: 1 }
  compute { dtype: FLOAT32 })";

absl::Status RunLabModelUpdate(const CommandLine& line) {
  RunSpec run;
  DEEPNET_CHECK(ParseTextProto(kPaperRun, &run));
  std::unique_ptr<Corpus> corpus;  // null: sentences are made up
  if (line.flags.Given("data")) {
    ASSIGN_OR_RETURN(Corpus opened, OpenCorpus(line, line.flags.Text("data")));
    corpus = std::make_unique<Corpus>(std::move(opened));
    run.mutable_model()->set_vocabulary_size(corpus->vocabulary().size());
  }
  ASSIGN_OR_RETURN(run, LoadRunSpec(line, run));
  if (!IsEncoderDecoder(run.model())) {
    return ConfigError("model.architecture: ", Architecture_Name(run.model().architecture()),
                       ": must be ENCODER_DECODER here: the study makes both stacks equally deep");
  }
  *run.mutable_compute() = ResolveCompute(run.compute());
  std::unique_ptr<BatchSource> of_corpus;
  if (corpus != nullptr) {
    RETURN_IF_ERROR(
        WithExitCode(ResolveDataSpec(*corpus, run.mutable_data()), ExitCode::kBadConfig));
    ASSIGN_OR_RETURN(of_corpus, CorpusBatchSource::Make(run.data(), run.seed(), corpus.get()));
  }
  const auto batch_of = [&](int64_t step) -> absl::StatusOr<StepBatch> {
    if (of_corpus == nullptr) return MakeMadeUpBatch(run, step);
    return of_corpus->ForStep(step);
  };
  const int64_t updates = line.flags.Integer("steps");
  const std::string& parameters = line.flags.Text("parameters");
  const Moving moving = parameters == "all" ? Moving::kAll : Moving::kMatrices;
  ASSIGN_OR_RETURN(const double per_token, ModelUpdate(run, updates, moving, batch_of));
  const JsonObject json = JsonObject()
                              .Add("residual", Residual_Name(run.model().residual()))
                              .Add("encoder_layers", run.model().encoder_layers())
                              .Add("decoder_layers", run.model().decoder_layers())
                              .Add("seed", run.seed())
                              .Add("updates", updates)
                              .Add("parameters", parameters)
                              .Add("per_token", per_token, 9)
                              .Add("per_element", per_token / std::sqrt(run.model().d_model()), 9);
  line.out << JsonOf(json) << "\n";
  return absl::OkStatus();
}

Command ModelUpdateCommand() {
  return {.name = "model-update",
          .summary = "Print how far a few updates move a model.",
          .description =
              "Trains a model for a few steps and prints, as JSON, the change of the decoder's "
              "output on text it has not seen, which figure 5 of the paper shows over depth: "
              "`lab.py model-update` draws it up. Everything is as the paper trained 64-128-2 "
              "models on IWSLT-14 (rate 5e-4 after 4000 steps of warm-up, 4000 tokens a step), "
              "without dropout; --config and --set change it. docs/design/instruments.md says how "
              "the figures compare with the paper's.",
          .spec = SpecUse::kOptional,
          .prints_data = true,
          .validate = ValidateForPlan,
          .flags = {TextFlag("data", "FOLDER",
                             "A prepared corpus; without one, sentences of made-up pieces."),
                    ChoiceFlag("parameters", "WHICH", {"matrices", "all"},
                               "What the updates move: matrices, which the paper's bound is over, "
                               "or all parameters, gains and biases too.",
                               "matrices"),
                    IntegerFlag("steps", "Updates after which the output is looked at.", "3",
                                {1, 1000000})},
          .run = RunLabModelUpdate};
}

}  // namespace

Command MakeLabCommand() {
  return {.name = "lab",
          .summary = "Look into models and corpora: what the experiments of launch/lab need.",
          .description =
              "The figures and tables of the paper as experiments are run by launch/lab/lab.py, "
              "which calls this program. Here is what needs the model or the corpus itself. "
              "docs/lab.md says what each experiment shows.",
          .subcommands = {AuditCommand(), ModelUpdateCommand(), AdminProfileCommand(),
                          MakeLabCorpusCommand()}};
}

}  // namespace deepnet
