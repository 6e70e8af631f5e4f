// Matrix products of the emulated cuBLASLt.
#pragma once

#include <cstdint>
#include <vector>

namespace emulated_gpu {

// Returns c with c[j * rows + i] = sum over p of a[p * rows + i] * b[j * depth + p], added in order
// of p in float32, each product rounded: the bits of the plain loop on every host.
std::vector<float> Multiply(int64_t rows, int64_t columns, int64_t depth,
                            const std::vector<float>& a, const std::vector<float>& b);

}  // namespace emulated_gpu
