#include "launch/commands/lab_audit.h"

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/validate.h"
#include "parallel/base/exit_code.h"
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

std::string Text(const ModelSpec& model, const AuditReport& report) {
  const DepthScaling& scaling = report.scaling;
  std::string text = absl::StrFormat("%-10s %10s %10s   by the formulas\n",
                                     Residual_Name(model.residual()), "alpha", "beta");
  if (LayersOf(model, 0) > 0) {
    absl::StrAppendFormat(&text, "  encoder  %10.4f %10.4f\n", scaling.encoder_alpha,
                          scaling.encoder_beta);
  }
  if (LayersOf(model, 1) > 0) {
    absl::StrAppendFormat(&text, "  decoder  %10.4f %10.4f\n", scaling.decoder_alpha,
                          scaling.decoder_beta);
  }
  absl::StrAppend(&text, "\n");
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

std::string SpreadJson(const SpreadAudit& audit) {
  return absl::StrFormat(
      "{\"looked_at\": %d, \"std_ratio\": %.9g, \"tolerance\": %.9g, \"mean\": %.9g, \"fault\": "
      "%s}",
      audit.elements, audit.std_ratio, audit.tolerance, audit.mean, JsonQuoted(audit.fault));
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

std::string Json(const RunSpec& run, const AuditReport& report) {
  const DepthScaling& scaling = report.scaling;
  const auto lines = [](const auto& items, auto to_json) {
    return absl::StrJoin(items, ",\n    ", [&](std::string* out, const auto& item) {
      absl::StrAppend(out, to_json(item));
    });
  };
  return absl::StrFormat(
      "{\n  \"residual\": \"%s\",\n  \"seed\": %d,\n"
      "  \"encoder\": {\"layers\": %d, \"alpha\": %.9g, \"beta\": %.9g},\n"
      "  \"decoder\": {\"layers\": %d, \"alpha\": %.9g, \"beta\": %.9g},\n"
      "  \"good\": %s,\n  \"groups\": [\n    %s\n  ],\n  \"faults\": [%s]\n}\n",
      Residual_Name(run.model().residual()), run.seed(), run.model().encoder_layers(),
      scaling.encoder_alpha, scaling.encoder_beta, run.model().decoder_layers(),
      scaling.decoder_alpha, scaling.decoder_beta, report.faults.empty() ? "true" : "false",
      lines(report.groups, [&](const AuditGroup& group) { return GroupJson(run.model(), group); }),
      lines(report.faults, JsonQuoted));
}

absl::Status RunLabAudit(const CommandLine& line) {
  const int64_t sample = line.flags.Integer("sample");
  if (sample < 1) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat("--sample: ", sample, ": must be at least 1")),
        ExitCode::kBadConfig);
  }
  ASSIGN_OR_RETURN(const RunSpec run, LoadRunSpec(line));
  const AuditReport report = AuditInitialWeights(
      run.model(), Describe(run.model(), run.data().microbatch()), run.seed(), sample);
  line.out << (line.flags.Switch("json") ? Json(run, report) : Text(run.model(), report));
  return AuditStatus(report);
}

}  // namespace

Command MakeLabAuditCommand() {
  return {.name = "audit",
          .summary = "compare the spread of initial weights with theory",
          .description =
              "Draws every tensor as `train` would, one at a time, and compares its mean and "
              "standard deviation, rows that must be zero and values that are not drawn with what "
              "the model's description says; gains of DEEPNORM also with the formulas' beta. Works "
              "for models larger than this machine. Exit code 3 if anything is off: `train` "
              "refuses such a model too.",
          .spec = SpecUse::kRequired,
          .validate = ValidateForPlan,
          .flags = {{.name = "sample",
                     .kind = FlagKind::kInteger,
                     .value = "ELEMENTS",
                     .default_value = "1000000",
                     .help = "Draw at most the first rows of a tensor that have so many elements."},
                    JsonFlag()},
          .run = RunLabAudit};
}

}  // namespace deepnet
