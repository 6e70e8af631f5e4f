// The orders in which the emulated GPU runs the threads of a block: no result may depend on them. A
// real GPU has its own, which differs from run to run: two runs are compared.
#pragma once

namespace deepnet::cuda::testing {

int NumThreadOrders();

// For kernels that are launched from now on; 0 <= order < NumThreadOrders().
void UseThreadOrder(int order);

}  // namespace deepnet::cuda::testing
