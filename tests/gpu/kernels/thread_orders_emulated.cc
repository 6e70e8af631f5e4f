#include "tests/gpu/emulated/cuda_on_host.h"
#include "tests/gpu/kernels/thread_orders.h"

namespace deepnet::cuda::testing {

#if defined(EMULATED_GPU_TSAN)
int NumThreadOrders() { return 1; }  // the sanitizer sees what no barrier orders in any of them
#else
int NumThreadOrders() { return 3; }
#endif

void UseThreadOrder(int order) {
  using emulated_gpu::ThreadOrder;
  constexpr ThreadOrder kOrders[] = {ThreadOrder::kForward, ThreadOrder::kBackward,
                                     ThreadOrder::kShuffled};
  emulated_gpu::SetThreadOrder(kOrders[order], /*seed=*/17);
}

}  // namespace deepnet::cuda::testing
