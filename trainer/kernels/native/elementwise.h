// Pointwise kernels: sums, activations, conversions. Results do not depend on the thread count.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

class ThreadPool;
struct KernelTable;

// y[i] += x[i], float32.
void Add(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n);

// y = GELU(x) = x * Phi(x), the exact form by the error function; same shapes; y may be x.
void GeluForward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, Matrix y);

// dx = dy * GELU'(x), with x as given to GeluForward; dx may be dy.
void GeluBackward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, ConstMatrix dy,
                  Matrix dx);

// y[i] = e^x[i] within 2 units in the last place; 0 below -87.33, at most 2.4e38; y may be x.
void Exp(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n);

// to = from, converted if the elements differ: float32 -> bfloat16 rounds to nearest even.
void Cast(ThreadPool& pool, const KernelTable& table, ConstMatrix from, Matrix to);

}  // namespace deepnet::native
