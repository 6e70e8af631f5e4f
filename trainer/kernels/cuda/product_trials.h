// Times cuBLASLt's algorithms for a product, with and without what it can do on the way to memory,
// beside the kernels that do the same afterwards.
#pragma once

#include <vector>

#include "trainer/kernels/native/product_ways.h"

namespace deepnet::cuda {

// Tries the product on the calling thread's current GPU, with operands that are not in its caches:
//   first      the heuristic's first algorithm, as products of a run take it
//   best       the fastest of what the heuristic proposes
//   split      the fastest where sums may be cut, partial sums being float32 in the workspace
//   plain      the fastest without an epilogue
//   plain + K  the fastest plain or split one, then the kernel K that does what an epilogue can
//   E          the fastest with the epilogue E, split where that is allowed
// A way that the task does not ask for is left out; one that cuBLASLt has nothing for has no
// seconds. Throws GpuError.
std::vector<ProductWay> TryProduct(const ProductTask& task);

}  // namespace deepnet::cuda
