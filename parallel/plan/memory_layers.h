// What one layer keeps, holds and makes again: the parts that memory.cc adds up for a rank.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "parallel/plan/memory.h"

namespace deepnet {

inline constexpr int64_t kFloatBytes = 4;

// Sizes of one layer, read off its boundary tensors and matrices.
struct LayerSizes {
  int64_t rows = 0;         // of the stream
  int64_t memory_rows = 0;  // of the encoder memory
  int64_t width = 0;
  int64_t inner = 0;  // of the feed-forward block
};

LayerSizes SizesOf(const Inventory& inventory, const Layer& layer);

// An encoder or decoder layer.
bool IsBlock(const Layer& layer);
// An embedding whose matrix is not multiplied.
bool LooksUp(const Layer& layer);

// What layers keep of one microbatch, by the kind that they share buffers with.
struct KeptByKind {
  int64_t encoder = 0, decoder = 0, others = 0;

  int64_t Total() const { return encoder + decoder + others; }
};

KeptByKind KeptOf(const Inventory& inventory, LayerSpan span, const RecomputeChoice& recompute,
                  const MemoryRules& rules);

// Buffers for what one layer of `kind`, whose sizes are `sizes`, or one segment at LAYER computes
// again on `rank`; 0 where it has no such layer.
int64_t RecomputedBytes(const Inventory& inventory, const RankUse& rank, LayerKind kind,
                        const LayerSizes& sizes, const MemoryRules& rules);

}  // namespace deepnet
