// What LibTorch's operations (trainer/kernels/aten_ops.cc) allocate inside and give back at once:
// at most one of these figures is there at any moment. This project's kernels have nothing like it.
//
// Counted by reading each operation: an expression's temporaries live until its end. Attention
// works sentence by sentence and is left out; dropout's decisions are made on the host in float64,
// which a GPU does not see, so that its figures are upper bounds.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "parallel/plan/memory_layers.h"

namespace deepnet {

// Of a loss of `rows` rows over a table [vocabulary, width].
int64_t LibraryLogitBytes(int64_t rows, int64_t vocabulary, int64_t width,
                          const MemoryRules& rules);

// Of the sub-layers' operations with dropout of branches; 0 for a stack without rows.
int64_t LibraryLayerBytes(const LayerSizes& sizes, const MemoryRules& rules);

// Of dropout of inner rows, if the rank's layers have it.
int64_t LibraryInnerDropoutBytes(const Inventory& inventory, const RankUse& rank,
                                 const MemoryRules& rules);

// Of an update of `elements` weights.
int64_t LibraryUpdateBytes(int64_t elements);

// Of making the rank's working copies anew: one is there twice.
int64_t LibraryRefreshBytes(const Inventory& inventory, const RankUse& rank,
                            const MemoryRules& rules);

}  // namespace deepnet
