// The choice of tokens (trainer/kernels/native/sampling.h) on a GPU.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/sampling.h"

namespace deepnet::cuda {

// native::ChooseToken for every choice, from rows of log-probabilities [., vocabulary]. The best
// tokens are the same; a token that is drawn may differ where a sum of shares, in double, equals
// its bound (of the draw, of a cut) within rounding. All pointers are device memory. One launch.
void ChooseTokens(GpuStream& gpu, const float* log_probs, int64_t vocabulary, int64_t stride,
                  const native::TokenChoices& choices);

}  // namespace deepnet::cuda
