#include "parallel/plan/inventory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/philox.h"

namespace deepnet {

int64_t Parameter::NumElements() const {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

bool ReadsMemory(const Layer& layer) {
  return std::any_of(layer.inputs.begin(), layer.inputs.end(),
                     [](const BoundaryTensor& tensor) { return tensor.name != kHidden; });
}

int64_t Inventory::NumElements() const {
  int64_t elements = 0;
  for (const Parameter& parameter : parameters) elements += parameter.NumElements();
  return elements;
}

std::string Inventory::Hash() const {
  std::string text;
  for (const Parameter& parameter : parameters) {
    absl::StrAppend(&text, parameter.name, " ", absl::StrJoin(parameter.shape, "x"), "\n");
  }
  return absl::StrCat(absl::Hex(HashName(text), absl::kZeroPad16));
}

Inventory Select(const Inventory& inventory, std::span<const LayerSpan> spans) {
  Inventory part;
  std::vector<int> index(inventory.parameters.size(), -1);  // in `part`
  int64_t offset = 0;
  int reached = 0;
  for (const LayerSpan& span : spans) {
    DEEPNET_CHECK(reached <= span.first && span.first <= span.end &&
                  span.end <= static_cast<int>(inventory.layers.size()))
        << "layers [" << span.first << ", " << span.end << ") after " << reached;
    reached = span.end;
    for (int l = span.first; l < span.end; ++l) {
      Layer& layer = part.layers.emplace_back(inventory.layers[l]);
      for (int& parameter : layer.parameters) {
        int& here = index[parameter];
        if (here < 0) {
          here = static_cast<int>(part.parameters.size());
          Parameter& added = part.parameters.emplace_back(inventory.parameters[parameter]);
          added.offset = offset;
          offset += added.NumElements();
        }
        parameter = here;
      }
    }
  }
  return part;
}

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return "embedding";
    case Role::kPosition:
      return "position";
    case Role::kQuery:
      return "query";
    case Role::kKey:
      return "key";
    case Role::kValue:
      return "value";
    case Role::kAttentionOutput:
      return "attention output";
    case Role::kFeedForward:
      return "feed-forward";
    case Role::kNormGain:
      return "norm gain";
    case Role::kNormBias:
      return "norm bias";
    case Role::kResidualScale:
      return "residual scale";
    case Role::kResidualShift:
      return "residual shift";
  }
  return "unknown";
}

std::string_view LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kSourceEmbedding:
      return "source embedding";
    case LayerKind::kEncoder:
      return "encoder layer";
    case LayerKind::kTargetEmbedding:
      return "target embedding";
    case LayerKind::kDecoder:
      return "decoder layer";
    case LayerKind::kOutput:
      return "output layer";
  }
  return "unknown";
}

}  // namespace deepnet
