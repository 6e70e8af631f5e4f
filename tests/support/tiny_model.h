// A model and a microbatch small enough for float64 and finite differences.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet::testing {

// 2 + 3 layers, width 8, 2 heads, vocabulary 11; no dropout.
ModelSpec TinySpec();

// Every residual scheme that a model can have.
std::vector<Residual> AllResiduals();

// Returns true if a pipeline can cut a model of that scheme.
bool CanBeCut(Residual residual);

// `spec` with that scheme, and settings by which two layers show all of it: MIX_LN has both kinds
// of layers, and BRANCH_NORM takes 5 steps.
ModelSpec WithResidual(ModelSpec spec, Residual residual);

// The factor on weights of tests: without norms and with unscaled branches a stream grows
// from layer to layer until float32 rounds away what is compared.
double WeightScale(const ModelSpec& spec);

// `spec` with one stack of that architecture: 3 layers.
ModelSpec WithArchitecture(ModelSpec spec, Architecture architecture);

// Capacity of TinyMicrobatch: 20 source and 16 target positions, 4 sentences.
MicrobatchSpec TinyCapacity();

// A microbatch for a model of one stack, which has no source positions.
MicrobatchSpec TinyCapacityOf(const ModelSpec& spec);

// Three sentences of different lengths with padding after them; ids from `seed`. For a model of one
// stack the source is empty; with ENCODER_ONLY some rows have no label.
Microbatch TinyMicrobatch(const ModelSpec& spec, uint32_t seed);

}  // namespace deepnet::testing
