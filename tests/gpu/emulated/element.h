// Numbers of CUDA's types as the host computes with them. `Type` is ncclDataType_t or
// cudaDataType_t.
#pragma once

#include <library_types.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emulated_gpu {

enum class Number { kNone, kFloat16, kBfloat16, kFloat32, kFloat64, kInt32, kInt64 };

inline Number NumberOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return Number::kFloat16;
    case ncclBfloat16:
      return Number::kBfloat16;
    case ncclFloat32:
      return Number::kFloat32;
    case ncclFloat64:
      return Number::kFloat64;
    case ncclInt32:
      return Number::kInt32;
    case ncclInt64:
      return Number::kInt64;
    default:
      return Number::kNone;
  }
}

inline Number NumberOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16F:
      return Number::kFloat16;
    case CUDA_R_16BF:
      return Number::kBfloat16;
    case CUDA_R_32F:
      return Number::kFloat32;
    default:
      return Number::kNone;
  }
}

inline float FromBfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

template <typename T>
T At(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(void* data, size_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

template <typename Type>
bool IsElement(Type type) {
  return NumberOf(type) != Number::kNone;
}

template <typename Type>
double ReadElement(Type type, const void* data, size_t i) {
  switch (NumberOf(type)) {
    case Number::kFloat16:
      return __half2float(__half(At<__half_raw>(data, i)));
    case Number::kBfloat16:
      return FromBfloat16(At<uint16_t>(data, i));
    case Number::kFloat32:
      return At<float>(data, i);
    case Number::kFloat64:
      return At<double>(data, i);
    case Number::kInt32:
      return At<int32_t>(data, i);
    case Number::kInt64:
      return static_cast<double>(At<int64_t>(data, i));
    case Number::kNone:
      break;
  }
  return 0.0;
}

// Rounds to nearest, ties to even; what is too large becomes infinite.
template <typename Type>
void WriteElement(Type type, void* data, size_t i, double value) {
  switch (NumberOf(type)) {
    case Number::kFloat16:
      return Put(data, i, static_cast<__half_raw>(__float2half_rn(static_cast<float>(value))));
    case Number::kBfloat16:
      return Put(data, i,
                 static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(static_cast<float>(value))));
    case Number::kFloat32:
      return Put(data, i, static_cast<float>(value));
    case Number::kFloat64:
      return Put(data, i, value);
    case Number::kInt32:
      return Put(data, i, static_cast<int32_t>(value));
    case Number::kInt64:
      return Put(data, i, static_cast<int64_t>(value));
    case Number::kNone:
      break;
  }
}

template <typename Type>
double RoundElement(Type type, double value) {
  double rounded;  // room for any type
  WriteElement(type, &rounded, 0, value);
  return ReadElement(type, &rounded, 0);
}

}  // namespace emulated_gpu
