#include "launch/commands/describe_scaling.h"

#include "absl/strings/str_format.h"

#include "trainer/model/architecture.h"
#include "trainer/model/stack_scaling.h"

namespace deepnet {
namespace {

constexpr char kRow[] = "%-17s %14s %15s %15s\n";

std::string RangeText(const ValueRange& range) {
  if (range.least == range.greatest) return absl::StrFormat("%.4f", range.least);
  return absl::StrFormat("%.4f..%.4f", range.least, range.greatest);
}

}  // namespace

std::string ScalingText(const ModelSpec& model) {
  std::string text =
      absl::StrFormat(kRow, Residual_Name(model.residual()), "alpha", "beta", "q, k");
  for (const int stack : {0, 1}) {
    if (LayersOf(model, stack) == 0) continue;
    const StackScaling scaling = MakeStackScaling(model, stack);
    absl::StrAppendFormat(&text, kRow, stack == 0 ? "  encoder" : "  decoder",
                          RangeText(scaling.alpha), RangeText(scaling.beta),
                          RangeText(scaling.query_key));
  }
  return text +
         "alpha: on the stream; gains of Xavier's deviation: beta of v, out, fc1 and fc2, and of "
         "q, k\n";
}

std::string ScalingJson(const ModelSpec& model, int stack) {
  const StackScaling scaling = MakeStackScaling(model, stack);
  return absl::StrFormat(
      "{\"layers\": %d, \"least_alpha\": %.9g, \"greatest_alpha\": %.9g, \"least_beta\": %.9g, "
      "\"greatest_beta\": %.9g, \"least_query_key\": %.9g, \"greatest_query_key\": %.9g}",
      LayersOf(model, stack), scaling.alpha.least, scaling.alpha.greatest, scaling.beta.least,
      scaling.beta.greatest, scaling.query_key.least, scaling.query_key.greatest);
}

}  // namespace deepnet
