// The names behind the Inventory's opaque values: what parameters and layers of a Transformer are
// for. Initial scale follows from a role, never from a parameter's name.
#pragma once

#include <string_view>

#include "parallel/plan/inventory.h"

namespace deepnet {

enum class Role : int {
  kEmbedding,        // rows of tokens: source, target, output, or tied
  kPosition,         // rows of learned positions
  kQuery,            // q_proj and its bias
  kKey,              // k_proj and its bias
  kValue,            // v_proj and its bias: scaled by beta
  kAttentionOutput,  // out_proj and its bias: scaled by beta
  kFeedForward,      // fc1, fc2 and their biases: scaled by beta
  kNormGain,         // starts at 1
  kNormBias,         // starts at 0
  kResidualScale,    // a trained factor of a residual scheme: on a stream, a branch or a head
  kResidualShift,    // a trained number that a residual scheme subtracts
};

// The chain: source embedding, encoder layers, target embedding, decoder layers, output. A model of
// one stack has the latter three alone. kTargetEmbedding and kDecoder stand for the stack whose
// rows the output layer reads.
enum class LayerKind : int { kSourceEmbedding, kEncoder, kTargetEmbedding, kDecoder, kOutput };

// "kValue" -> "value"; "kEncoder" -> "encoder layer": for tables.
std::string_view RoleName(Role role);
std::string_view LayerKindName(LayerKind kind);

}  // namespace deepnet
