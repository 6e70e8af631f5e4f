// Commands that look into a model without a run: the audit of its initial weights, Admin's profile,
// the model's update over depth.
#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/commands/describe.h"
#include "launch/commands/lab.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
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

std::string GainText(const AuditGroup& group) {
  if (!group.drawn) return "-";
  if (group.least_gain == group.greatest_gain) return absl::StrFormat("%.4f", group.least_gain);
  return absl::StrFormat("%.4f..%.4f", group.least_gain, group.greatest_gain);
}

std::string WorstText(const AuditGroup& group) {
  if (!group.drawn) return group.worst.fault.empty() ? "" : group.worst_name;
  return absl::StrFormat("%s %+.2f %% of %.1f %%", group.worst_name,
                         100 * (group.worst.std_ratio - 1), 100 * group.worst.tolerance);
}

std::string GroupRow(const ModelSpec& model, const AuditGroup& group) {
  return absl::StrFormat(
      kRow, KindNameIn(model, group.kind), std::string(RoleName(group.role)),
      WithCommas(group.tensors), WithCommas(group.all.elements), GainText(group),
      group.drawn ? absl::StrFormat("%+.2f %%", 100 * (group.all.std_ratio - 1)) : "one value",
      group.drawn ? absl::StrFormat("%.1f %%", 100 * group.all.tolerance) : "exact",
      WorstText(group));
}

// "-0.42 %"; of what is not drawn whether it is what it must be.
std::string DifferenceText(const TensorAudit& tensor) {
  if (tensor.theory_std == 0) return tensor.spread.fault.empty() ? "exact" : "wrong";
  return absl::StrFormat("%+.2f %%", 100 * (tensor.spread.std_ratio - 1));
}

std::string TensorsText(const AuditReport& report) {
  constexpr char kTensor[] = "%-54s %-17s %11s %10s %10s %10s\n";
  const auto deviation = [](double value) { return absl::StrFormat("%.6f", value); };
  std::string text =
      absl::StrFormat(kTensor, "tensor", "role", "looked at", "std", "by theory", "difference");
  for (const TensorAudit& tensor : report.tensors) {
    absl::StrAppendFormat(&text, kTensor, tensor.name, std::string(RoleName(tensor.role)),
                          WithCommas(tensor.spread.elements), deviation(tensor.drawn_std),
                          deviation(tensor.theory_std), DifferenceText(tensor));
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

std::string Nine(double value) { return JsonNumber(value, 9); }

std::string SpreadJson(const SpreadAudit& audit) {
  return absl::StrFormat(
      "{\"looked_at\": %d, \"std_ratio\": %s, \"tolerance\": %s, \"mean\": %s, \"fault\": %s}",
      audit.elements, Nine(audit.std_ratio), Nine(audit.tolerance), Nine(audit.mean),
      JsonQuoted(audit.fault));
}

std::string GroupJson(const ModelSpec& model, const AuditGroup& group) {
  return absl::StrFormat(
      "{\"layer\": \"%s\", \"role\": \"%s\", \"drawn\": %s, \"tensors\": %d, \"elements\": %d, "
      "\"least_gain\": %.9g, \"greatest_gain\": %.9g, \"all\": %s, \"worst_name\": %s, "
      "\"worst\": %s}",
      KindNameIn(model, group.kind), std::string(RoleName(group.role)),
      group.drawn ? "true" : "false", group.tensors, group.elements, group.least_gain,
      group.greatest_gain, SpreadJson(group.all), JsonQuoted(group.worst_name),
      SpreadJson(group.worst));
}

std::string TensorJson(const TensorAudit& tensor) {
  return absl::StrFormat(
      "{\"name\": %s, \"role\": \"%s\", \"std_drawn\": %s, \"std_theory\": %s, "
      "\"difference\": %s, \"spread\": %s}",
      JsonQuoted(tensor.name), std::string(RoleName(tensor.role)), Nine(tensor.drawn_std),
      Nine(tensor.theory_std), Nine(tensor.drawn_std - tensor.theory_std),
      SpreadJson(tensor.spread));
}

// `items` one to a line.
template <typename Items, typename ToJson>
std::string Lines(const Items& items, const ToJson& to_json) {
  return absl::StrJoin(items, ",\n    ", [&](std::string* out, const auto& item) {
    absl::StrAppend(out, to_json(item));
  });
}

std::string Json(const RunSpec& run, const AuditReport& report, bool with_tensors) {
  const ModelSpec& model = run.model();
  std::string json = absl::StrFormat(
      "{\n  \"residual\": \"%s\",\n  \"seed\": %d,\n  \"encoder\": %s,\n  \"decoder\": %s,\n"
      "  \"good\": %s,\n  \"groups\": [\n    %s\n  ],\n",
      Residual_Name(model.residual()), run.seed(), ScalingJson(model, 0), ScalingJson(model, 1),
      report.faults.empty() ? "true" : "false",
      Lines(report.groups, [&](const AuditGroup& group) { return GroupJson(model, group); }));
  if (with_tensors) {
    absl::StrAppend(&json, "  \"tensors\": [\n    ", Lines(report.tensors, TensorJson), "\n  ],\n");
  }
  return absl::StrCat(json, "  \"faults\": [", Lines(report.faults, JsonQuoted), "]\n}\n");
}

absl::Status RunLabAudit(const CommandLine& line) {
  const int64_t sample = line.flags.Integer("sample");
  if (sample < 1) {
    return BadFlag(absl::StrCat("--sample: ", sample, ": must be at least 1"));
  }
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
      .summary = "compare the spread of initial weights with theory",
      .description =
          "Draws every tensor as `train` would, one at a time, and compares its mean and "
          "standard deviation, rows that must be zero and values that are not drawn with what "
          "the model's description says; alpha and gains of DEEPNORM also with the paper's "
          "formulas. Works for models larger than this machine. Exit code 3 if anything is off: "
          "`train` refuses such a model too.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForPlan,
      .flags = {{.name = "sample",
                 .kind = FlagKind::kInteger,
                 .value = "ELEMENTS",
                 .default_value = "1000000",
                 .help = "Draw at most the first rows of a tensor that have so many elements."},
                {.name = "tensors",
                 .kind = FlagKind::kSwitch,
                 .help = "List every tensor: name, role, elements looked at, standard deviation "
                         "drawn and by theory, difference."},
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
      .summary = "measure what branches add to their streams, for residual ADMIN",
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

absl::Status BadValue(const std::string& flag, const std::string& value, const std::string& text) {
  return BadFlag(absl::StrCat("--", flag, ": ", value, ": ", text));
}

absl::StatusOr<std::vector<int>> DepthsOf(const CommandLine& line) {
  std::vector<int> depths;
  const std::vector<std::string> words = absl::StrSplit(line.flags.Text("depths"), ',');
  for (const std::string& word : words) {
    int depth = 0;
    if (!absl::SimpleAtoi(word, &depth) || depth < 1) {
      return BadValue("depths", word, "must be layers a side, as in 6,18,50");
    }
    depths.push_back(depth);
  }
  return depths;
}

absl::StatusOr<std::vector<Residual>> SchemesOf(const CommandLine& line) {
  std::vector<Residual> schemes;
  const std::vector<std::string> words = absl::StrSplit(line.flags.Text("schemes"), ',');
  for (const std::string& word : words) {
    Residual residual = RESIDUAL_UNSPECIFIED;
    if (!Residual_Parse(word, &residual) || residual == RESIDUAL_UNSPECIFIED) {
      return BadValue("schemes", word, "is no value of model.residual");
    }
    schemes.push_back(residual);
  }
  return schemes;
}

absl::StatusOr<int> CountOf(const CommandLine& line, const std::string& flag) {
  const int64_t value = line.flags.Integer(flag);
  if (value >= 1 && value <= 1000000) return static_cast<int>(value);
  return BadValue(flag, absl::StrCat(value), "must be from 1 to 1,000,000");
}

// The paper's hyper-parameters for IWSLT-14 (table 4) without dropout, in two microbatches of half
// the tokens.
absl::StatusOr<RunSpec> PaperRun(const CommandLine& line) {
  RunSpec run;
  ModelSpec& model = *run.mutable_model();
  ASSIGN_OR_RETURN(const int width, CountOf(line, "width"));
  ASSIGN_OR_RETURN(const int ffn_dim, CountOf(line, "ffn"));
  ASSIGN_OR_RETURN(const int heads, CountOf(line, "heads"));
  model.set_d_model(width);
  model.set_ffn_dim(ffn_dim);
  model.set_num_heads(heads);
  model.set_residual(DEEPNORM);
  model.set_encoder_layers(1);
  model.set_decoder_layers(1);
  DataSpec& data = *run.mutable_data();
  data.set_max_sentence_tokens(150);
  data.set_global_microbatches(2);
  data.mutable_microbatch()->set_max_source_tokens(2000);
  data.mutable_microbatch()->set_max_target_tokens(2000);
  data.mutable_microbatch()->set_max_sentences(500);
  OptimSpec& optim = *run.mutable_optim();
  optim.set_learning_rate(5e-4);
  optim.set_weight_decay(1e-4);
  optim.set_virtual_replicas(1);
  run.mutable_compute()->set_dtype(FLOAT32);  // bfloat16 copies of weights would hide small updates
  return run;
}

// Batches of a prepared corpus, or made-up ones.
struct Data {
  std::shared_ptr<Corpus> corpus;  // null: made up

  absl::StatusOr<std::unique_ptr<BatchSource>> Batches(const RunSpec& run) const {
    if (corpus == nullptr) {
      return MakeMadeUpBatches(run.data(), run.model().vocabulary_size(), run.seed());
    }
    ASSIGN_OR_RETURN(auto source, CorpusBatchSource::Make(run.data(), run.seed(), corpus.get()));
    return std::unique_ptr<BatchSource>(std::move(source));
  }
};

absl::StatusOr<Data> OpenData(const CommandLine& line, RunSpec& run) {
  Data data;
  if (!line.flags.Given("data")) {
    run.mutable_model()->set_vocabulary_size(kMadeUpVocabulary);
    return data;
  }
  auto corpus = Corpus::Open(ResolvePath(line, line.flags.Text("data")));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  data.corpus = std::make_shared<Corpus>(std::move(*corpus));
  run.mutable_model()->set_vocabulary_size(data.corpus->vocabulary().size());
  return data;
}

// Returns what the paper's figure 5 shows, read off the picture; Post-LN is noisy from 60 layers
// on.
std::optional<std::string> Published(Residual residual) {
  if (residual == DEEPNORM) return "6: .002  18: .003  30: .004  50: .005  70: .006  100: .0075";
  if (residual == POST_LN) return "6: .018  18: .036  24: .07  50: .13  60 to 100: .1 to .47";
  return std::nullopt;
}

double SpreadOver(const std::vector<OutputChange>& seeds) {
  const auto [least, greatest] =
      std::minmax_element(seeds.begin(), seeds.end(),
                          [](const auto& a, const auto& b) { return a.per_token < b.per_token; });
  return greatest->per_token / least->per_token;
}

std::string CurveText(const UpdateCurve& curve, const UpdateStudy& study) {
  std::string text = absl::StrFormat("%-14s", Residual_Name(curve.residual));
  for (const double mean : curve.PerToken()) {
    absl::StrAppendFormat(&text, "%*.5f", kDepthColumn, mean);
  }
  absl::StrAppendFormat(&text, "%*.2f\n", kDepthColumn, curve.Ratio());
  absl::StrAppendFormat(&text, "%-14s", "  an element");
  for (const double mean : curve.PerElement()) {
    absl::StrAppendFormat(&text, "%*.5f", kDepthColumn, mean);
  }
  if (study.seeds > 1) {
    absl::StrAppendFormat(&text, "\n%-14s", "  seeds apart");
    for (const auto& seeds : curve.changes) {
      absl::StrAppendFormat(&text, "%*s", kDepthColumn,
                            absl::StrFormat("x%.2f", SpreadOver(seeds)));
    }
  }
  absl::StrAppend(&text, "\n");
  if (const auto published = Published(curve.residual)) {
    absl::StrAppend(&text, "  figure 5    ", *published, "\n");
  }
  return text;
}

std::string Text(const UpdateStudy& study, const RunSpec& run, const Data& data) {
  const ModelSpec& model = run.model();
  std::string text = absl::StrFormat(
      "||F(x, theta_t) - F(x, theta_0)|| a target token, t = %d, %d-%d-%d, %s, mean of %d seed%s\n"
      "%s of %s, rate %g after %d steps of warm-up, dropout %g, %s target tokens a step\n\n%-14s",
      study.updates, model.d_model(), model.ffn_dim(), model.num_heads(),
      data.corpus == nullptr ? "made-up text" : data.corpus->folder(), study.seeds,
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

std::string CurveJson(const UpdateCurve& curve) {
  const auto numbers = [](const std::vector<OutputChange>& seeds, double OutputChange::*figure) {
    return absl::StrCat("[",
                        absl::StrJoin(seeds, ", ",
                                      [figure](std::string* out, const OutputChange& change) {
                                        absl::StrAppendFormat(out, "%.9g", change.*figure);
                                      }),
                        "]");
  };
  const auto depths = [&](double OutputChange::*figure) {
    return absl::StrJoin(curve.changes, ", ", [&](std::string* out, const auto& seeds) {
      absl::StrAppend(out, numbers(seeds, figure));
    });
  };
  return absl::StrFormat(
      "    {\"residual\": \"%s\", \"max_over_min\": %.9g,\n     \"per_token\": [%s],\n"
      "     \"per_element\": [%s]}",
      Residual_Name(curve.residual), curve.Ratio(), depths(&OutputChange::per_token),
      depths(&OutputChange::per_element));
}

std::string Json(const UpdateStudy& study) {
  return absl::StrFormat(
      "{\n  \"updates\": %d,\n  \"parameters\": \"%s\",\n  \"seeds\": %d,\n  \"depths\": [%s],\n  "
      "\"curves\": [\n%s\n  ]\n}\n",
      study.updates, study.moving == Moving::kAll ? "all" : "matrices", study.seeds,
      absl::StrJoin(study.depths, ", "),
      absl::StrJoin(study.curves, ",\n", [](std::string* out, const UpdateCurve& curve) {
        absl::StrAppend(out, CurveJson(curve));
      }));
}

absl::Status RunLabModelUpdate(const CommandLine& line) {
  UpdateStudyOptions options;
  ASSIGN_OR_RETURN(options.depths, DepthsOf(line));
  ASSIGN_OR_RETURN(options.schemes, SchemesOf(line));
  ASSIGN_OR_RETURN(options.updates, CountOf(line, "steps"));
  ASSIGN_OR_RETURN(options.seeds, CountOf(line, "seeds"));
  options.moving = line.flags.Text("parameters") == "all" ? Moving::kAll : Moving::kMatrices;
  ASSIGN_OR_RETURN(RunSpec run, PaperRun(line));
  ASSIGN_OR_RETURN(const Data data, OpenData(line, run));
  ASSIGN_OR_RETURN(run, LoadRunSpec(line, run));
  if (run.model().architecture() != ENCODER_DECODER) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(
            "model.architecture: ", Architecture_Name(run.model().architecture()),
            ": must be ENCODER_DECODER here: the study makes both stacks equally deep")),
        ExitCode::kBadConfig);
  }
  if (data.corpus != nullptr) {
    RETURN_IF_ERROR(
        WithExitCode(ResolveDataSpec(*data.corpus, run.mutable_data()), ExitCode::kBadConfig));
  }
  *run.mutable_compute() = ResolveCompute(run.compute());
  options.batches = [&data](const RunSpec& cell) { return data.Batches(cell); };
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
  line.out << (line.flags.Switch("json") ? Json(study) : Text(study, run, data));
  return absl::OkStatus();
}

Flag Count(const std::string& name, const std::string& value, const std::string& help) {
  return {
      .name = name, .kind = FlagKind::kInteger, .value = "N", .default_value = value, .help = help};
}

}  // namespace

Command MakeLabModelUpdateCommand() {
  return {
      .name = "model-update",
      .summary = "print how far a few updates move models of several depths",
      .description =
          "Trains every scheme at every depth for a few steps and prints the model's update, the "
          "change of the decoder's output on text it has not seen, as in figure 5 of the paper; "
          "and for each scheme its largest over its smallest value. Everything is as the paper "
          "trained on IWSLT-14 (rate 5e-4 after 4000 steps of warm-up, 4000 tokens a step), "
          "without dropout; --config and --set change it. docs/design/instruments.md says how the "
          "figures compare with the paper's.",
      .spec = SpecUse::kOptional,
      .validate = ValidateForPlan,
      .flags = {{.name = "data",
                 .value = "FOLDER",
                 .help = "A prepared corpus; without one, sentences of made-up pieces."},
                {.name = "depths",
                 .value = "N,N,...",
                 .default_value = "6,18,30,50,70,100",
                 .help = "Layers a side."},
                {.name = "schemes",
                 .value = "NAME,...",
                 .default_value = "DEEPNORM,POST_LN",
                 .help = "Values of model.residual."},
                Count("width", "64", "Features of the residual stream."),
                Count("ffn", "128", "Features inside a feed-forward block."),
                Count("heads", "2", "Attention heads."),
                {.name = "parameters",
                 .value = "WHICH",
                 .default_value = "matrices",
                 .help = "What the updates move: matrices, which the paper's bound is over, or all "
                         "parameters, gains and biases too.",
                 .allowed = {"matrices", "all"}},
                Count("steps", "3", "Updates after which the output is looked at."),
                Count("seeds", "3", "Models trained of each kind."),
                JsonFlag()},
      .run = RunLabModelUpdate};
}

}  // namespace deepnet
