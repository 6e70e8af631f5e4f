#include "trainer/model/describe_parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"
#include "trainer/model/roles.h"

namespace deepnet {
namespace {

constexpr int kPadRow = 1;  // id of <pad>
constexpr char kSharedTable[] = "shared.weight";

std::string TableOf(int stack) { return StackName(stack) + "embed_tokens.weight"; }

}  // namespace

Sublayer MakeSublayer(const ModelSpec& model, int stack, int layer, SublayerKind kind) {
  return {stack, layer, kind, MakeSublayerScheme(model, stack, layer, kind),
          LayerPrefix(stack, layer)};
}

// To the flat order and to the layer that was added last.
void ParameterList::AddParameter(Parameter parameter) {
  parameter.offset = offset_;
  offset_ += parameter.NumElements();
  inventory_.layers.back().parameters.push_back(static_cast<int>(inventory_.parameters.size()));
  inventory_.parameters.push_back(std::move(parameter));
}

// The layer that was added last uses a parameter of an earlier layer.
void ParameterList::AddUse(std::string_view name) {
  const std::vector<Parameter>& all = inventory_.parameters;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == name; });
  DEEPNET_CHECK(found != all.end()) << name << " is used before it is made";
  inventory_.layers.back().parameters.push_back(static_cast<int>(found - all.begin()));
}

void ParameterList::AddTable(std::string name, Role role, int64_t rows, int zero_row, double gain) {
  AddParameter({.name = std::move(name),
                .shape = {rows, Width()},
                .role = role,
                .initial_std = gain / std::sqrt(static_cast<double>(Width())),
                .zero_row = zero_row});
}

void ParameterList::AddWeight(const std::string& block, Role role, int64_t out, int64_t in,
                              double gain) {
  AddParameter({.name = absl::StrCat(block, ".weight"),
                .shape = {out, in},
                .role = role,
                .initial_std = gain * std::sqrt(2.0 / static_cast<double>(in + out))});
}

void ParameterList::AddBias(const std::string& block, Role role, int64_t out) {
  if (!HasBiases(model_)) return;
  AddParameter({.name = absl::StrCat(block, ".bias"), .shape = {out}, .role = role});
}

void ParameterList::AddNorm(const std::string& block, int64_t features) {
  AddVector(absl::StrCat(block, ".weight"), Role::kNormGain, features, 1.0);
  if (!HasNormBiases(model_)) return;
  AddVector(absl::StrCat(block, ".bias"), Role::kNormBias, features, 0.0);
}

void ParameterList::AddVector(std::string name, Role role, int64_t size, double value) {
  AddParameter({.name = std::move(name),
                .shape = {size},
                .role = role,
                .initial_value = static_cast<float>(value)});
}

// Matrices of equal input stand together, so that one product makes them all.
void ParameterList::AddQueryKeyValue(const std::string& block, const Sublayer& s) {
  const bool apart = s.kind == SublayerKind::kCrossAttention;  // queries come from another stream
  const auto gain = [&](Role role) {
    return InitialGain(model_, s.stack, s.layer, s.kind, role, /*last=*/false);
  };
  AddWeight(absl::StrCat(block, ".q_proj"), Role::kQuery, Width(), Width(), gain(Role::kQuery));
  if (apart) AddBias(absl::StrCat(block, ".q_proj"), Role::kQuery, Width());
  AddWeight(absl::StrCat(block, ".k_proj"), Role::kKey, Width(), Width(), gain(Role::kKey));
  AddWeight(absl::StrCat(block, ".v_proj"), Role::kValue, Width(), Width(), gain(Role::kValue));
  if (!apart) AddBias(absl::StrCat(block, ".q_proj"), Role::kQuery, Width());
  AddBias(absl::StrCat(block, ".k_proj"), Role::kKey, Width());
  AddBias(absl::StrCat(block, ".v_proj"), Role::kValue, Width());
}

// The last matrix of a branch.
void ParameterList::AddLast(const std::string& block, Role role, int64_t in, const Sublayer& s) {
  AddWeight(block, role, Width(), in,
            InitialGain(model_, s.stack, s.layer, s.kind, role, /*last=*/true));
  AddBias(block, role, Width());
}

void ParameterList::AddAttention(const Sublayer& s) {
  const std::string block = s.prefix + BaseName(s.kind);
  AddQueryKeyValue(block, s);
  AddLast(block + ".out_proj", Role::kAttentionOutput, Width(), s);
  AddJoin(s);
}

void ParameterList::AddFeedForward(const Sublayer& s) {
  AddWeight(s.prefix + "fc1", Role::kFeedForward, FfnWidth(), Width(),
            InitialGain(model_, s.stack, s.layer, s.kind, Role::kFeedForward, /*last=*/false));
  AddBias(s.prefix + "fc1", Role::kFeedForward, FfnWidth());
  AddLast(s.prefix + "fc2", Role::kFeedForward, FfnWidth(), s);
  AddJoin(s);
}

// Norms, factors and shifts of one sub-layer (trainer/model/scheme.h).
void ParameterList::AddJoin(const Sublayer& s) {
  const SublayerScheme& scheme = s.scheme;
  const bool block = s.kind == SublayerKind::kFeedForward;
  if (scheme.input_norm) AddNorm(s.prefix + NormName(s.kind), Width());
  if (scheme.inner_norm) AddNorm(s.prefix + InnerNormName(s.kind), block ? FfnWidth() : Width());
  if (scheme.output_norm) AddNorm(s.prefix + OutputNormName(s.kind), Width());
  if (scheme.end_norm) AddNorm(s.prefix + EndNormName(s.kind, scheme), Width());
  if (scheme.head_scale) {
    AddVector(s.prefix + HeadScaleName(s.kind), Role::kResidualScale, model_.num_heads(), 1.0);
  }
  if (scheme.stream_scale != 0) {
    AddVector(s.prefix + StreamScaleName(s.kind), Role::kResidualScale, Width(),
              scheme.stream_scale);
  }
  if (scheme.branch_scale == BranchScale::kOfSublayer ||
      (scheme.branch_scale == BranchScale::kOfLayer && s.kind == SublayerKind::kSelfAttention)) {
    AddVector(s.prefix + BranchScaleName(s.kind, scheme), Role::kResidualScale, 1,
              scheme.initial_branch_scale);
  }
  if (scheme.shifts) AddShifts(s);
}

void ParameterList::AddShifts(const Sublayer& s) {
  AddVector(s.prefix + InputShiftName(s.kind), Role::kResidualShift, 1, 0.0);
  if (s.kind != SublayerKind::kFeedForward) return;
  AddVector(s.prefix + kMiddleShift, Role::kResidualShift, 1, 0.0);
  AddVector(s.prefix + kInnerShift, Role::kResidualShift, 1, 0.0);
}

void ParameterList::AddStackEnd(int stack) {
  const std::string name = StackName(stack);
  switch (EndOf(model_)) {
    case StackEnd::kNothing:
      return;
    case StackEnd::kNorm:
    case StackEnd::kSecondNorm:
      return AddNorm(name + kFinalNorm, Width());
    case StackEnd::kScaledShift:
      if (stack == 0) AddVector(name + kFinalScale, Role::kResidualScale, 1, 1.0);
      return AddVector(name + kFinalShift, Role::kResidualShift, 1, 0.0);
  }
}

void ParameterList::AddHistory(int stack, int index) {
  if (!KeepsHistory(model_)) return;
  const std::string name = LayerPrefix(stack, index);
  const int layers = LayersOf(model_, stack);
  AddVector(name + kHistoryWeight, Role::kResidualScale, index + 1, 1.0 / (index + 1));
  AddNorm(name + kHistoryNorm, Width());
  if (index + 1 < layers) return;
  AddVector(StackName(stack) + kHistoryWeight, Role::kResidualScale, layers + 1,
            1.0 / (layers + 1));
}

bool ParameterList::SharesTable() const {
  return model_.tied_embeddings() == TIE_ALL && HasMemory(model_);
}

void ParameterList::AddPositions(int stack) {
  const std::string name = StackName(stack);
  if (model_.positions() == LEARNED) {
    AddTable(name + "embed_positions.weight", Role::kPosition, model_.max_positions(), -1, 1.0);
  }
  if (HasEmbeddingNorm(model_)) AddNorm(name + kEmbeddingNorm, Width());
}

void ParameterList::AddSourceEmbedding() {
  AddTable(SharesTable() ? kSharedTable : TableOf(0), Role::kEmbedding, model_.vocabulary_size(),
           kPadRow, EmbeddingGain(model_, 0));
  AddPositions(0);
}

void ParameterList::AddTargetEmbedding() {
  const int stack = LabelledStack(model_);
  if (SharesTable()) {
    AddUse(kSharedTable);
  } else {
    AddTable(TableOf(stack), Role::kEmbedding, model_.vocabulary_size(), kPadRow,
             EmbeddingGain(model_, stack));
  }
  AddPositions(stack);
}

void ParameterList::AddOutput() {
  if (model_.tied_embeddings() != TIE_NONE) {
    return AddUse(SharesTable() ? kSharedTable : TableOf(LabelledStack(model_)));
  }
  AddTable("lm_head.weight", Role::kEmbedding, model_.vocabulary_size(), -1,
           OutputStartsAtZero(model_) ? 0.0 : 1.0);
}

}  // namespace deepnet
