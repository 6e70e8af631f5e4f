// Four neighbouring columns of a matrix in kernels, as float32, where eight (elements.h) are too
// many; and the choice of a kernel by element. For kernel sources (.cu) only.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/elements.h"

namespace deepnet::cuda {

template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// The first n of four numbers, the others 0; n >= 1. `aligned`: n is 4 and p is aligned to four
// numbers.
template <typename T>
__device__ __forceinline__ float4 LoadFour(const T* p, int n, bool aligned) {
  if (aligned) {
    const Four<T> v = *reinterpret_cast<const Four<T>*>(p);
    return make_float4(ToFloat(v.x[0]), ToFloat(v.x[1]), ToFloat(v.x[2]), ToFloat(v.x[3]));
  }
  return make_float4(ToFloat(p[0]), n > 1 ? ToFloat(p[1]) : 0.0f, n > 2 ? ToFloat(p[2]) : 0.0f,
                     n > 3 ? ToFloat(p[3]) : 0.0f);
}

template <typename T>
__device__ __forceinline__ void StoreFour(T* p, float4 v, int n, bool aligned) {
  if (aligned) {
    *reinterpret_cast<Four<T>*>(p) = {
        {FromFloat<T>(v.x), FromFloat<T>(v.y), FromFloat<T>(v.z), FromFloat<T>(v.w)}};
    return;
  }
  p[0] = FromFloat<T>(v.x);
  if (n > 1) p[1] = FromFloat<T>(v.y);
  if (n > 2) p[2] = FromFloat<T>(v.z);
  if (n > 3) p[3] = FromFloat<T>(v.w);
}

// True if each fourth column of every row is aligned to four numbers.
inline bool HasAlignedFours(const native::ConstMatrix& m) {
  const uintptr_t bytes = m.element == native::Element::kFloat32 ? 16 : 8;
  return m.stride % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % bytes == 0;
}

// On the host: calls f.template operator()<T>() with the type of the element.
template <typename F>
void ForElement(native::Element element, const F& f) {
  switch (element) {
    case native::Element::kFloat32:
      return f.template operator()<float>();
    case native::Element::kBfloat16:
      return f.template operator()<__nv_bfloat16>();
    case native::Element::kFloat16:
      return f.template operator()<__half>();
  }
}

}  // namespace deepnet::cuda
