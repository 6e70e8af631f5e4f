#include "trainer/model/roles.h"

namespace deepnet {

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
