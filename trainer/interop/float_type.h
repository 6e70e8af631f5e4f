// How other programs store floating-point numbers, to and from float32.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deepnet {

enum class FloatType { kFloat32, kBfloat16, kFloat16 };

// "F32", "BF16", "F16", as safetensors says it; and the inverse, nullopt for every other type.
std::string_view SafetensorsName(FloatType type);
std::optional<FloatType> FloatTypeOfSafetensors(std::string_view name);

int64_t BytesOf(FloatType type);

// Appends `values`, little-endian; rounded to nearest, ties to even, NaN stays NaN. Not kFloat16.
void AppendFloats(FloatType type, std::span<const float> values, std::string* bytes);

// Exact. `bytes` holds as many numbers as `values`.
void ReadFloats(FloatType type, std::string_view bytes, std::span<float> values);

}  // namespace deepnet
