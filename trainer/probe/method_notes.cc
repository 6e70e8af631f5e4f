// Which published form of a method a run is: read from the run, so that a form that was chosen by
// --set is the one that is named.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "trainer/probe/axis.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/methods.h"

namespace deepnet {
namespace {

std::string OfAdmin(const SchemeSpec& scheme) {
  if (scheme.admin_omega_size() > 0) {
    return "omega starts from a measured profile, as it was published.";
  }
  return "omega starts from one number a stack, as in its later released code (admin-torch), not "
         "from a profile, as it was published (deepnet lab admin-profile measures one).";
}

std::string OfDsInit(const SchemeSpec& scheme) {
  const double exponent = scheme.ds_exponent() > 0 ? scheme.ds_exponent() : 0.5;
  if (exponent == 0.5) {
    return "layer l starts l^(-1/2) times smaller, as in its paper; its released code has l^(-1/4) "
           "(model.scheme.ds_exponent=0.25).";
  }
  return absl::StrCat("layer l starts l^-", ShortNumber(exponent),
                      " times smaller; its paper has l^(-1/2), its released code l^(-1/4).");
}

std::string OfTFixup(const OptimSpec& optim) {
  if (optim.schedule() == SHIFTED_INVERSE_SQRT) {
    return "trained without warm-up, as its authors do; the DeepNet paper names one schedule for "
           "all methods.";
  }
  return "trained with the schedule of the other methods; its authors train without warm-up.";
}

std::string OfReZero(const ComputeSpec& compute) {
  return absl::StrCat("published in float32, the other methods in float16",
                      compute.dtype() == FLOAT32 ? "; here all are float32." : ".");
}

std::string OfDeepNorm(const DeepNormSpec& deepnorm) {
  if (deepnorm.adam()) return "the constants for Adam, (2N)^(1/2) and (2N)^(-1/2).";
  if (deepnorm.beta_rule() == TORCHSCALE) {
    return "the encoder's beta is that of the released library (1.15), not that of the paper "
           "(0.87).";
  }
  return "constants as the paper prints them; its released library starts the encoder's branches "
         "1.32 times larger (model.deepnorm.beta_rule=TORCHSCALE).";
}

// Empty: there is one form.
std::string Note(const RunSpec& run) {
  const ModelSpec& model = run.model();
  switch (model.residual()) {
    case DEEPNORM:
      return OfDeepNorm(model.deepnorm());
    case POST_LN_INIT:
      return "the paper gives it for an encoder; here the decoder does the same with its own "
             "depth.";
    case ADMIN:
      return OfAdmin(model.scheme());
    case DS_INIT:
      return OfDsInit(model.scheme());
    case T_FIXUP:
      return OfTFixup(run.optim());
    case R_FIXUP:
      return "its depth counts the sub-layers of both stacks everywhere; the decoder of its "
             "released code has cross-attention built for 12, whatever the depth.";
    case REZERO:
      return OfReZero(run.compute());
    case DLCL:
      return "its Pre-LN form, as table 1 lists it; it was published with Post-LN as well.";
    case NORMFORMER:
      return "factors of heads stand before the output matrix, as in its paper; released code has "
             "them behind, and in decoders of language models only.";
    default:
      return "";
  }
}

}  // namespace

std::vector<std::string> MethodNotes(const LabResult& result) {
  std::vector<std::string> notes;
  for (const LabCell& cell : result.cells()) {
    const std::string note = Note(cell.run());
    if (note.empty()) continue;
    const std::string text = absl::StrCat(FindMethod(cell.series()).label, ": ", note);
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(text);
  }
  return notes;
}

}  // namespace deepnet
