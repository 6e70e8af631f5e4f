// Commands that look into a model without a run: the audit of its initial weights, Admin's profile,
// the model's update over depth.
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/commands/commands.h"
#include "launch/commands/describe.h"
#include "launch/validate.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/text_proto.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"
#include "trainer/instruments/admin_profile.h"
#include "trainer/instruments/audit.h"
#include "trainer/instruments/model_update.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/model/transformer.h"

namespace deepnet {
namespace {

constexpr char kRow[] = "%-17s %-17s %8s %14s %15s %9s %7s  %s\n";

std::string PercentText(double value) { return absl::StrFormat("%+.2f %%", 100 * value); }

std::string WorstText(const AuditGroup& group) {
  if (!group.drawn) return group.worst.fault.empty() ? "" : group.worst_name;
  return absl::StrFormat("%s %s of %.1f %%", group.worst_name,
                         PercentText(group.worst.std_ratio - 1), 100 * group.worst.tolerance);
}

std::string GroupRow(const ModelSpec& model, const AuditGroup& group) {
  return absl::StrFormat(
      kRow, KindNameIn(model, group.kind), std::string(RoleName(group.role)),
      WithCommas(group.tensors), WithCommas(group.all.elements),
      group.drawn ? RangeText(group.least_gain, group.greatest_gain) : "-",
      group.drawn ? PercentText(group.all.std_ratio - 1) : "one value",
      group.drawn ? absl::StrFormat("%.1f %%", 100 * group.all.tolerance) : "exact",
      WorstText(group));
}

std::string TensorsText(const AuditReport& report) {
  constexpr char kTensor[] = "%-54s %-17s %11s %10s %10s %10s\n";
  std::string text =
      absl::StrFormat(kTensor, "tensor", "role", "looked at", "std", "by theory", "difference");
  for (const TensorAudit& tensor : report.tensors) {
    std::string difference = PercentText(tensor.spread.std_ratio - 1);
    if (tensor.theory_std == 0) difference = tensor.spread.fault.empty() ? "exact" : "wrong";
    absl::StrAppendFormat(&text, kTensor, tensor.name, std::string(RoleName(tensor.role)),
                          WithCommas(tensor.spread.elements),
                          absl::StrFormat("%.6f", tensor.drawn_std),
                          absl::StrFormat("%.6f", tensor.theory_std), difference);
  }
  return absl::StrCat(text, "\n");
}

std::string Text(const ModelSpec& model, const AuditReport& report, bool with_tensors) {
  std::string text = absl::StrCat(ScalingText(model), "\n");
  if (with_tensors) absl::StrAppend(&text, TensorsText(report));
  absl::StrAppendFormat(&text, kRow, "weights of", "role", "tensors", "looked at", "gain", "std",
                        "within", "farthest tensor");
  for (const AuditGroup& group : report.groups) absl::StrAppend(&text, GroupRow(model, group));
  absl::StrAppendFormat(
      &text,
      "\nstd: measured deviation beside that of the Inventory. A matrix, or all of a row together, "
      "may be\noff by %.0f %%, or by %.0f sampling errors of the elements looked at where that is "
      "more.\n"
      "gain: of sqrt(2 / (in + out)); of embeddings: of width^(-1/2).\n%s\n",
      100 * kStdTolerance, kSamplingErrors,
      report.faults.empty() ? "All as theory wants." : "NOT as theory wants:");
  for (const std::string& fault : report.faults) absl::StrAppend(&text, "  ", fault, "\n");
  return text;
}

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
      .Add("encoder", ScalingJson(model, 0))
      .Add("decoder", ScalingJson(model, 1))
      .Add("good", report.faults.empty())
      .Add("groups", JsonObjects(report.groups, group_json));
  if (with_tensors) json.Add("tensors", JsonObjects(report.tensors, TensorJson));
  return JsonOf(json.Add("faults", report.faults)) + "\n";
}

absl::Status RunLabAudit(const CommandLine& line) {
  const int64_t sample = line.flags.Integer("sample");
  if (sample < 1) return BadFlag(absl::StrCat("--sample: ", sample, ": must be at least 1"));
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  const AuditReport report = AuditInitialWeights(
      run.model(), Describe(run.model(), run.data().microbatch()), run.seed(), sample);
  const bool with_tensors = line.flags.Switch("tensors");
  line.out << (line.flags.Switch("json") ? Json(run, report, with_tensors)
                                         : Text(run.model(), report, with_tensors));
  return AuditStatus(report);
}

}  // namespace

Command MakeLabAuditCommand() {
  return {
      .name = "audit",
      .summary = "Compare the spread of initial weights with theory.",
      .description =
          "Draws every tensor as `train` would, one at a time, and compares its mean and "
          "standard deviation, rows that must be zero and values that are not drawn with what "
          "the model's description says; alpha and gains of DEEPNORM also with the paper's "
          "formulas. Works for models larger than this machine. Exit code 3 if anything is off: "
          "`train` refuses such a model too.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForPlan,
      .flags = {{"sample", FlagKind::kInteger, "ELEMENTS", "1000000",
                 "Draw at most the first rows of a tensor that have so many elements."},
                SwitchFlag("tensors",
                           "List every tensor: name, role, elements looked at, standard deviation "
                           "drawn and by theory, difference."),
                JsonFlag()},
      .run = RunLabAudit};
}

namespace {

// As a field of a recipe, and for --set.
std::string Text(const std::vector<double>& omega) {
  return absl::StrCat("model { scheme { admin_omega: [",
                      absl::StrJoin(omega, ", ",
                                    [](std::string* out, double value) {
                                      absl::StrAppendFormat(out, "%.6g", value);
                                    }),
                      "] } }\n");
}

absl::Status RunAdminProfile(const CommandLine& line) {
  ASSIGN_OR_RETURN(RunSpec run, LoadRunSpec(line));
  if (run.model().residual() != ADMIN) {
    return BadFlag(absl::StrCat("model.residual: ", Residual_Name(run.model().residual()),
                                ": must be ADMIN: no other scheme has a profile"));
  }
  run.mutable_model()->mutable_scheme()->clear_admin_omega();
  const auto corpus = Corpus::Open(ResolvePath(line, run.data().folder()));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  run.mutable_model()->set_vocabulary_size(corpus->vocabulary().size());
  RETURN_IF_ERROR(ResolveDataSpec(*corpus, run.mutable_data(), run.model().architecture()));
  ASSIGN_OR_RETURN(const auto batches, CorpusBatchSource::Make(run.data(), run.seed(), &*corpus,
                                                               run.model().architecture()));
  ASSIGN_OR_RETURN(const StepBatch batch, batches->ForStep(0));
  ASSIGN_OR_RETURN(const auto ops, MakeOps(ResolveCompute(run.compute())));
  Transformer model(run.model(), run.data().microbatch(), *ops, /*trainable=*/true);
  model.parameters().Initialize(run.seed());
  model.Refresh();
  line.out << Text(ProfileAdmin(model, batch.microbatches[0], run.seed()));
  return absl::OkStatus();
}

}  // namespace

Command MakeLabAdminProfileCommand() {
  return {
      .name = "admin-profile",
      .summary = "Measure what branches add to their streams, for residual ADMIN.",
      .description =
          "Runs the first microbatch of a run through the model as it starts, dropout on, and "
          "prints the vector's value that each sub-layer of residual ADMIN should start with: "
          "2N numbers of the encoder, then 3M of the decoder. Put the line into the recipe. One "
          "process; the whole model must fit.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForTrain,
      .run = RunAdminProfile};
}

namespace {

constexpr int64_t kMadeUpVocabulary = 4000;
constexpr int kDepthColumn = 9;

absl::StatusOr<std::vector<int>> DepthsOf(const CommandLine& line) {
  std::vector<int> depths;
  for (const auto& word : absl::StrSplit(line.flags.Text("depths"), ',')) {
    int depth = 0;
    if (!absl::SimpleAtoi(word, &depth) || depth < 1) {
      return BadFlag(absl::StrCat("--depths: ", word, ": must be layers a side, as in 6,18,50"));
    }
    depths.push_back(depth);
  }
  return depths;
}

absl::StatusOr<std::vector<Residual>> SchemesOf(const CommandLine& line) {
  std::vector<Residual> schemes;
  for (const auto& word : absl::StrSplit(line.flags.Text("schemes"), ',')) {
    Residual residual = RESIDUAL_UNSPECIFIED;
    if (!Residual_Parse(std::string(word), &residual) || residual == RESIDUAL_UNSPECIFIED) {
      return BadFlag(absl::StrCat("--schemes: ", word, ": is no value of model.residual"));
    }
    schemes.push_back(residual);
  }
  return schemes;
}

absl::StatusOr<int> CountOf(const CommandLine& line, const std::string& flag) {
  const int64_t value = line.flags.Integer(flag);
  if (value >= 1 && value <= 1000000) return static_cast<int>(value);
  return BadFlag(absl::StrCat("--", flag, ": ", value, ": must be from 1 to 1,000,000"));
}

// The paper's hyper-parameters for IWSLT-14 (table 4) without dropout, in two microbatches of half
// the tokens. bfloat16 copies of weights would hide small updates.
constexpr char kPaperRun[] = R"(
  model { residual: DEEPNORM encoder_layers: 1 decoder_layers: 1 }
  data {
    max_sentence_tokens: 150 global_microbatches: 2
    microbatch { max_source_tokens: 2000 max_target_tokens: 2000 max_sentences: 500 }
  }
  optim { learning_rate: 5e-4 weight_decay: 1e-4 virtual_replicas: 1 }
  compute { dtype: FLOAT32 })";

absl::StatusOr<RunSpec> PaperRun(const CommandLine& line) {
  RunSpec run;
  DEEPNET_CHECK(ParseTextProto(kPaperRun, &run));
  ASSIGN_OR_RETURN(const int d_model, CountOf(line, "d-model"));
  ASSIGN_OR_RETURN(const int ffn_dim, CountOf(line, "ffn-dim"));
  ASSIGN_OR_RETURN(const int num_heads, CountOf(line, "num-heads"));
  run.mutable_model()->set_d_model(d_model);
  run.mutable_model()->set_ffn_dim(ffn_dim);
  run.mutable_model()->set_num_heads(num_heads);
  run.mutable_model()->set_vocabulary_size(kMadeUpVocabulary);
  return run;
}

// Returns the corpus of --data; null: sentences are made up.
absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const CommandLine& line) {
  if (!line.flags.Given("data")) return nullptr;
  auto corpus = Corpus::Open(ResolvePath(line, line.flags.Text("data")));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  return std::make_unique<Corpus>(*std::move(corpus));
}

absl::StatusOr<std::unique_ptr<BatchSource>> BatchesOf(const RunSpec& run, const Corpus* corpus) {
  if (corpus == nullptr) {
    return MakeMadeUpBatches(run.data(), run.model().vocabulary_size(), run.seed());
  }
  return CorpusBatchSource::Make(run.data(), run.seed(), corpus);
}

// Returns what the paper's figure 5 shows, read off the picture; Post-LN is noisy from 60 layers
// on. Null: it does not show the scheme.
const char* Published(Residual residual) {
  if (residual == DEEPNORM) return "6: .002  18: .003  30: .004  50: .005  70: .006  100: .0075";
  if (residual == POST_LN) return "6: .018  18: .036  24: .07  50: .13  60 to 100: .1 to .47";
  return nullptr;
}

double SpreadOver(const std::vector<OutputChange>& seeds) {
  const auto [least, greatest] =
      std::minmax_element(seeds.begin(), seeds.end(),
                          [](const auto& a, const auto& b) { return a.per_token < b.per_token; });
  return greatest->per_token / least->per_token;
}

std::string CurveText(const UpdateCurve& curve, const UpdateStudy& study) {
  const auto row = [](const std::string& name, const std::vector<double>& values) {
    std::string text = absl::StrFormat("%-14s", name);
    for (const double value : values) absl::StrAppendFormat(&text, "%*.5f", kDepthColumn, value);
    return text;
  };
  std::string text = row(Residual_Name(curve.residual), curve.PerToken());
  absl::StrAppendFormat(&text, "%*.2f\n%s", kDepthColumn, curve.Ratio(),
                        row("  an element", curve.PerElement()));
  if (study.seeds > 1) {
    absl::StrAppendFormat(&text, "\n%-14s", "  seeds apart");
    for (const auto& seeds : curve.changes) {
      absl::StrAppendFormat(&text, "%*s", kDepthColumn,
                            absl::StrFormat("x%.2f", SpreadOver(seeds)));
    }
  }
  absl::StrAppend(&text, "\n");
  if (const char* published = Published(curve.residual)) {
    absl::StrAppend(&text, "  figure 5    ", published, "\n");
  }
  return text;
}

std::string Text(const UpdateStudy& study, const RunSpec& run, const Corpus* corpus) {
  const ModelSpec& model = run.model();
  std::string text = absl::StrFormat(
      "||F(x, theta_t) - F(x, theta_0)|| a target token, t = %d, %d-%d-%d, %s, mean of %d seed%s\n"
      "%s of %s, rate %g after %d steps of warm-up, dropout %g, %s target tokens a step\n\n%-14s",
      study.updates, model.d_model(), model.ffn_dim(), model.num_heads(),
      corpus == nullptr ? "made-up text" : corpus->folder(), study.seeds,
      study.seeds == 1 ? "" : "s", Optimizer_Name(run.optim().optimizer()),
      study.moving == Moving::kAll ? "all parameters" : "matrices", run.optim().learning_rate(),
      run.optim().warmup_steps(), model.dropout(),
      WithCommas(int64_t{run.data().global_microbatches()} *
                 run.data().microbatch().max_target_tokens()),
      "layers a side");
  for (const int depth : study.depths) absl::StrAppendFormat(&text, "%*d", kDepthColumn, depth);
  absl::StrAppendFormat(&text, "%*s\n", kDepthColumn, "max/min");
  for (const UpdateCurve& curve : study.curves) absl::StrAppend(&text, CurveText(curve, study));
  return text;
}

JsonObject CurveJson(const UpdateCurve& curve) {
  const auto depths = [&](double OutputChange::*figure) {
    std::vector<std::vector<double>> of_depths;
    for (const std::vector<OutputChange>& seeds : curve.changes) {
      std::vector<double>& of_seeds = of_depths.emplace_back();
      for (const OutputChange& change : seeds) of_seeds.push_back(change.*figure);
    }
    return of_depths;
  };
  return JsonObject()
      .Add("residual", Residual_Name(curve.residual))
      .Add("max_over_min", curve.Ratio(), 9)
      .Add("per_token", depths(&OutputChange::per_token), 9)
      .Add("per_element", depths(&OutputChange::per_element), 9);
}

std::string Json(const UpdateStudy& study) {
  const JsonObject json = JsonObject()
                              .Add("updates", study.updates)
                              .Add("parameters", study.moving == Moving::kAll ? "all" : "matrices")
                              .Add("seeds", study.seeds)
                              .Add("depths", study.depths)
                              .Add("curves", JsonObjects(study.curves, CurveJson));
  return JsonOf(json) + "\n";
}

absl::Status RunLabModelUpdate(const CommandLine& line) {
  UpdateStudyOptions options;
  ASSIGN_OR_RETURN(options.depths, DepthsOf(line));
  ASSIGN_OR_RETURN(options.schemes, SchemesOf(line));
  ASSIGN_OR_RETURN(options.updates, CountOf(line, "steps"));
  ASSIGN_OR_RETURN(options.seeds, CountOf(line, "seeds"));
  options.moving = line.flags.Text("parameters") == "all" ? Moving::kAll : Moving::kMatrices;
  ASSIGN_OR_RETURN(RunSpec run, PaperRun(line));
  ASSIGN_OR_RETURN(const std::unique_ptr<Corpus> corpus, OpenCorpus(line));
  if (corpus != nullptr) run.mutable_model()->set_vocabulary_size(corpus->vocabulary().size());
  ASSIGN_OR_RETURN(run, LoadRunSpec(line, run));
  if (run.model().architecture() != ENCODER_DECODER) {
    return BadFlag(
        absl::StrCat("model.architecture: ", Architecture_Name(run.model().architecture()),
                     ": must be ENCODER_DECODER here: the study makes both stacks equally deep"));
  }
  if (corpus != nullptr) {
    RETURN_IF_ERROR(
        WithExitCode(ResolveDataSpec(*corpus, run.mutable_data()), ExitCode::kBadConfig));
  }
  *run.mutable_compute() = ResolveCompute(run.compute());
  options.batches = [&](const RunSpec& cell) { return BatchesOf(cell, corpus.get()); };
  LoggerOptions log_options = StderrOptions();
  log_options.plain_seconds = 5;
  Logger log(log_options);
  options.show = [&log](const RunSpec& cell, double fraction) {
    log.Show({.label = "model-update",
              .fraction = fraction,
              .figures = absl::StrFormat(
                  "%s %d-%d, seed %d", Residual_Name(cell.model().residual()),
                  cell.model().encoder_layers(), cell.model().decoder_layers(), cell.seed())});
  };
  ASSIGN_OR_RETURN(const UpdateStudy study, StudyModelUpdate(run, options));
  log.EndProgress();
  line.out << (line.flags.Switch("json") ? Json(study) : Text(study, run, corpus.get()));
  return absl::OkStatus();
}

}  // namespace

Command MakeLabModelUpdateCommand() {
  return {
      .name = "model-update",
      .summary = "Print how far a few updates move models of several depths.",
      .description =
          "Trains every scheme at every depth for a few steps and prints the model's update, the "
          "change of the decoder's output on text it has not seen, as in figure 5 of the paper; "
          "and for each scheme its largest over its smallest value. Everything is as the paper "
          "trained on IWSLT-14 (rate 5e-4 after 4000 steps of warm-up, 4000 tokens a step), "
          "without dropout; --config and --set change it. docs/design/instruments.md says how the "
          "figures compare with the paper's.",
      .spec = SpecUse::kOptional,
      .validate = ValidateForPlan,
      .flags = {TextFlag("data", "FOLDER",
                         "A prepared corpus; without one, sentences of made-up pieces."),
                TextFlag("depths", "N,N,...", "Layers a side.", "6,18,30,50,70,100"),
                TextFlag("schemes", "NAME,...", "Values of model.residual.", "DEEPNORM,POST_LN"),
                IntegerFlag("d-model", "Features of the residual stream.", "64"),
                IntegerFlag("ffn-dim", "Features inside a feed-forward block.", "128"),
                IntegerFlag("num-heads", "Attention heads.", "2"),
                ChoiceFlag(
                    "parameters", "WHICH", {"matrices", "all"},
                    "What the updates move: matrices, which the paper's bound is over, or all "
                    "parameters, gains and biases too.",
                    "matrices"),
                IntegerFlag("steps", "Updates after which the output is looked at.", "3"),
                IntegerFlag("seeds", "Models trained of each kind.", "3"), JsonFlag()},
      .run = RunLabModelUpdate};
}

}  // namespace deepnet
