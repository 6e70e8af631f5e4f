#include "trainer/probe/methods.h"

#include "absl/strings/str_cat.h"

namespace deepnet {
namespace {

constexpr MethodFamily kDeep = MethodFamily::kDeep, kPost = MethodFamily::kPost,
                       kPre = MethodFamily::kPre, kNone = MethodFamily::kNone;

// Warm for DeepNet, ink and violet for Post-LN and its kin, blue for Pre-LN, green without norm.
constexpr Method kMethods[] = {
    {"deepnet", "DeepNet", "DEEPNORM", kDeep, "#c2410c", "#fb923c"},
    {"post-ln", "Post-LN", "POST_LN", kPost, "#1f2937", "#e5e7eb"},
    {"post-ln-cold", "no warm-up", "POST_LN", kPost, "#b91c1c", "#f87171", "2 3"},
    {"post-ln-init", "Post-LN-init", "POST_LN_INIT", kPost, "#64748b", "#94a3b8", "5 3"},
    {"ds-init", "DS-Init", "DS_INIT", kPost, "#86198f", "#e879f9", "5 3"},
    {"admin", "Admin", "ADMIN", kPost, "#6d28d9", "#a78bfa"},
    {"b2t", "B2T", "B2T", kPost, "#9d174d", "#f472b6", "2 3"},
    {"residual", "ResiDual", "RESIDUAL_DUAL", kPost, "#be185d", "#f9a8d4"},
    {"branch-norm", "BranchNorm", "BRANCH_NORM", kPost, "#a16207", "#facc15", "5 3"},
    {"keel", "Keel", "KEEL", kPost, "#854d0e", "#eab308"},
    {"mix-ln", "Mix-LN", "MIX_LN", kPost, "#57534e", "#a8a29e", "2 3"},
    {"norm-only", "norm only", "NORM_ONLY", kPost, "#6d28d9", "#a78bfa", "5 3"},
    {"pre-ln", "Pre-LN", "PRE_LN", kPre, "#1d4ed8", "#60a5fa"},
    {"dlcl", "DLCL", "DLCL", kPre, "#0e7490", "#22d3ee", "5 3"},
    {"normformer", "NormFormer", "NORMFORMER", kPre, "#4f6fb0", "#93b4f5", "2 3"},
    {"sub-ln", "Sub-LN", "SUB_LN", kPre, "#0369a1", "#38bdf8", "7 2"},
    {"peri-ln", "Peri-LN", "PERI_LN", kPre, "#1e40af", "#818cf8", "2 3"},
    {"ln-scaling", "LN scaling", "LAYERNORM_SCALING", kPre, "#155e75", "#67e8f9"},
    {"rezero", "ReZero", "REZERO", kNone, "#15803d", "#4ade80"},
    {"r-fixup", "R-Fixup", "R_FIXUP", kNone, "#4d7c0f", "#a3e635", "5 3"},
    {"t-fixup", "T-Fixup", "T_FIXUP", kNone, "#0f766e", "#2dd4bf", "2 3"},
    {"residual-only", "residual only", "RESIDUAL_ONLY", kNone, "#3f6212", "#bef264", "7 2"},
    {"neither", "neither", "NEITHER", kNone, "#78716c", "#d6d3d1", "2 3"},
};

}  // namespace

std::span<const Method> Methods() { return kMethods; }

Method FindMethod(const std::string& key) {
  for (const Method& method : kMethods) {
    if (key == method.key) return method;
  }
  return {.key = key.c_str(), .label = key.c_str()};
}

std::vector<std::string> PaperMethods() {
  return {"deepnet", "post-ln", "ds-init", "admin", "rezero",
          "r-fixup", "t-fixup", "pre-ln",  "dlcl",  "normformer"};
}

std::vector<std::string> MethodSets(const Method& method) {
  std::vector<std::string> sets = {absl::StrCat("model.residual=", method.residual)};
  const std::string residual = method.residual;
  // Its authors train without warm-up: sections 3.2 and 4 of Huang et al. (2020).
  if (residual == "T_FIXUP") sets.emplace_back("optim.schedule=SHIFTED_INVERSE_SQRT");
  // The only one that the paper trains without half precision: footnote 3.
  if (residual == "REZERO") sets.emplace_back("compute.dtype=FLOAT32");
  if (std::string(method.key) == "post-ln-cold") {
    sets.insert(sets.end(), {"optim.schedule=CONSTANT", "optim.warmup_steps=0"});
  }
  return sets;
}

}  // namespace deepnet
