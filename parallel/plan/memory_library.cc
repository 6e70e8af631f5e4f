#include "parallel/plan/memory_library.h"

#include <algorithm>

namespace deepnet {
namespace {

constexpr int64_t kDoubleBytes = 8;            // dropout's decisions
constexpr int64_t kBlockElements = 1LL << 22;  // that Adam updates together

// Bytes of an operand beside its copy in float32; float32 operands are their own copy.
int64_t NarrowBytes(const MemoryRules& rules) {
  return rules.operand_bytes == kFloatBytes ? 0 : rules.operand_bytes;
}

// Conversion of an operand to float32.
int64_t WidenedBytes(const MemoryRules& rules) {
  return rules.operand_bytes == kFloatBytes ? 0 : kFloatBytes;
}

}  // namespace

// The gradient's expression: log-probabilities, targets, and four steps from the one to the other.
// Then the table's gradient, with log-probabilities, targets and the gradient of logits alive.
int64_t LibraryLogitBytes(int64_t rows, int64_t vocabulary, int64_t width,
                          const MemoryRules& rules) {
  const int64_t logits = rows * vocabulary, narrow = NarrowBytes(rules);
  return std::max(logits * (6 * kFloatBytes + narrow),
                  logits * (3 * kFloatBytes + narrow) + vocabulary * width * kFloatBytes);
}

int64_t LibraryLayerBytes(const LayerSizes& s, const MemoryRules& rules) {
  // ResidualNormBackward: the gradient's copy and six steps to that of the sum.
  const int64_t norm = s.rows * s.width * 7 * kFloatBytes;
  // LinearBackwardInput through RELU: product, its signs as bits and as numbers, what remains.
  const int64_t relu = s.rows * s.inner * (3 * kFloatBytes + 1);
  // LinearBackwardWeight: both operands in float32, and the product.
  const int64_t weight =
      s.rows * (s.inner + s.width) * WidenedBytes(rules) + s.inner * s.width * kFloatBytes;
  return std::max({norm, relu, weight});
}

int64_t LibraryInnerDropoutBytes(const Inventory& inventory, const RankUse& rank,
                                 const MemoryRules& rules) {
  int64_t most = 0;
  for (const ChunkUse& chunk : rank.chunks) {
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      if (inventory.layers[l].inner_bytes == 0) continue;
      const LayerSizes s = SizesOf(inventory, inventory.layers[l]);
      const int64_t each = kDoubleBytes + 2 * kFloatBytes + WidenedBytes(rules);
      most = std::max(most, s.rows * s.inner * each);
    }
  }
  return most;
}

// Scaled gradient and its square; then root and quotient.
int64_t LibraryUpdateBytes(int64_t elements) {
  return 2 * kFloatBytes * std::min(kBlockElements, elements);
}

int64_t LibraryRefreshBytes(const Inventory& inventory, const RankUse& rank,
                            const MemoryRules& rules) {
  int64_t most = 0;
  for (const ChunkUse& chunk : rank.chunks) {
    for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
      if (LooksUp(inventory.layers[l])) continue;
      for (const int i : inventory.layers[l].parameters) {
        const Parameter& parameter = inventory.parameters[i];
        if (parameter.shape.size() == 2) most = std::max(most, parameter.NumElements());
      }
    }
  }
  return most * NarrowBytes(rules);
}

}  // namespace deepnet
