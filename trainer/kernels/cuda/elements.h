// Numbers of matrices in kernels: eight neighbouring columns at a time, as float32, whatever the
// element. Eight columns are one byte of a packed mask, one block of random bits (dropout_bits.h)
// and 16 bytes of a two-byte element. For kernel sources (.cu) only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "trainer/kernels/cuda/device_code.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda {

inline constexpr int kChunkColumns = 8;

// Columns that one thread has in registers.
struct Chunk {
  float v[kChunkColumns];
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

// x rounded to the nearest T, ties to even. float16 has no number above 65504: infinity.
template <typename T>
__device__ inline T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Two neighbours of a two-byte element in one register.
__device__ inline float2 ToFloats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ inline float2 ToFloats(__half2 x) { return __half22float2(x); }
template <typename T>
struct PairOf;
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  __device__ static Type From(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <>
struct PairOf<__half> {
  using Type = __half2;
  __device__ static Type From(float a, float b) { return __floats2half2_rn(a, b); }
};

// Numbers p[0..n), n <= 8, the rest 0. `wide`: p is aligned to 16 bytes where n is 8.
template <typename T>
__device__ inline Chunk LoadChunk(const T* p, int n, bool wide) {
  Chunk chunk;
  if (!wide || n < kChunkColumns) {
#pragma unroll
    for (int i = 0; i < kChunkColumns; ++i) chunk.v[i] = i < n ? ToFloat(p[i]) : 0.0f;
    return chunk;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    const float4 low = reinterpret_cast<const float4*>(p)[0];
    const float4 high = reinterpret_cast<const float4*>(p)[1];
    chunk = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(p);
    const auto* pairs = reinterpret_cast<const typename PairOf<T>::Type*>(&words);
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
      const float2 two = ToFloats(pairs[i]);
      chunk.v[2 * i] = two.x;
      chunk.v[2 * i + 1] = two.y;
    }
  }
  return chunk;
}

template <typename T>
__device__ inline void StoreChunk(T* p, int n, bool wide, const Chunk& chunk) {
  if (!wide || n < kChunkColumns) {
#pragma unroll
    for (int i = 0; i < kChunkColumns; ++i) {
      if (i < n) p[i] = FromFloat<T>(chunk.v[i]);
    }
    return;
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    const float* v = chunk.v;
    reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
  } else {
    uint4 words;
    auto* pairs = reinterpret_cast<typename PairOf<T>::Type*>(&words);
#pragma unroll
    for (int i = 0; i < kChunkColumns / 2; ++i) {
      pairs[i] = PairOf<T>::From(chunk.v[2 * i], chunk.v[2 * i + 1]);
    }
    *reinterpret_cast<uint4*>(p) = words;
  }
}

// A matrix as kernels take it: device memory, with what they need to know of its alignment.
struct MatrixView {
  void* data = nullptr;
  int64_t stride = 0;
  native::Element element = native::Element::kFloat32;
  bool wide = false;  // each eighth column of every row is aligned to 16 bytes
};

inline bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline MatrixView ViewOf(const native::ConstMatrix& m) {
  return {const_cast<void*>(m.data), m.stride, m.element,
          IsAligned(m.data) && m.stride * native::BytesOf(m.element) % 16 == 0};
}

// Returns whether rows of `width` floats that begin at each of `first` are aligned; null counts as
// aligned.
template <typename... Pointers>
bool AllWide(int64_t width, Pointers... first) {
  return width % 4 == 0 && (IsAligned(first) && ...);
}

// Calls f.template operator()<T>() with the type of the element. All threads of a block have the
// same element, so that the branch costs next to nothing beside the access to memory.
template <typename F>
__device__ inline void WithElement(native::Element element, const F& f) {
  if (element == native::Element::kFloat32) {
    f.template operator()<float>();
  } else if (element == native::Element::kBfloat16) {
    f.template operator()<__nv_bfloat16>();
  } else {
    f.template operator()<__half>();
  }
}

// Columns c..c+n of a row.
__device__ inline Chunk LoadChunk(const MatrixView& m, int64_t row, int64_t c, int n) {
  Chunk chunk;
  WithElement(m.element, [&]<typename T>() {
    chunk = LoadChunk(static_cast<const T*>(m.data) + row * m.stride + c, n, m.wide);
  });
  return chunk;
}

__device__ inline void StoreChunk(const MatrixView& m, int64_t row, int64_t c, int n,
                                  const Chunk& chunk) {
  WithElement(m.element, [&]<typename T>() {
    StoreChunk(static_cast<T*>(m.data) + row * m.stride + c, n, m.wide, chunk);
  });
}

// Four neighbouring columns, where eight are too many.
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
  const auto address = reinterpret_cast<uintptr_t>(m.data);
  return m.stride % 4 == 0 && address % (4 * native::BytesOf(m.element)) == 0;
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
