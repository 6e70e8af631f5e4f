// Initial weights drawn on a GPU: the numbers of parallel/base/philox.h, with the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "parallel/base/philox.h"
#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

// values[i] = InitialNormal(seed, name, i) * std, where `key` is that of (seed, kInitialWeight) and
// `hash` the name's.
void InitialNormal(GpuStream& gpu, PhiloxKey key, uint64_t hash, std::span<float> values,
                   float std);

}  // namespace deepnet::cuda
