// A model and a microbatch small enough for float64 and finite differences.
#pragma once

#include <cstdint>

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet::testing {

// 2 + 3 layers, width 8, 2 heads, vocabulary 11; no dropout.
ModelSpec TinySpec();

// Capacity of TinyMicrobatch: 20 source and 16 target positions, 4 sentences.
MicrobatchSpec TinyCapacity();

// Three sentences of different lengths with padding behind them; ids from `seed`.
Microbatch TinyMicrobatch(const ModelSpec& spec, uint32_t seed);

}  // namespace deepnet::testing
