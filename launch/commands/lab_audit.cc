#include "launch/commands/lab_audit.h"

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/describe.h"
#include "launch/validate.h"
#include "parallel/base/json.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "trainer/model/architecture.h"
#include "trainer/model/describe.h"
#include "trainer/probe/audit.h"

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

}  // namespace deepnet
