#include "trainer/interop/float_type.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

uint16_t ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float FromFloat16(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  float magnitude = 0.0f;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else {
    magnitude = std::ldexp(static_cast<float>(0x400 + fraction), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

std::string_view SafetensorsName(FloatType type) {
  switch (type) {
    case FloatType::kFloat32:
      return "F32";
    case FloatType::kBfloat16:
      return "BF16";
    case FloatType::kFloat16:
      return "F16";
  }
  return "";
}

std::optional<FloatType> FloatTypeOfSafetensors(std::string_view name) {
  for (const FloatType type : {FloatType::kFloat32, FloatType::kBfloat16, FloatType::kFloat16}) {
    if (SafetensorsName(type) == name) return type;
  }
  return std::nullopt;
}

int64_t BytesOf(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

void AppendFloats(FloatType type, std::span<const float> values, std::string* bytes) {
  if (type == FloatType::kFloat32) {
    bytes->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    return;
  }
  DEEPNET_CHECK(type == FloatType::kBfloat16) << "float16 is only read";
  for (const float value : values) {
    const uint16_t half = ToBfloat16(value);
    bytes->append(reinterpret_cast<const char*>(&half), sizeof(half));
  }
}

void ReadFloats(FloatType type, std::string_view bytes, std::span<float> values) {
  DEEPNET_CHECK(static_cast<int64_t>(bytes.size()) ==
                static_cast<int64_t>(values.size()) * BytesOf(type));
  if (type == FloatType::kFloat32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
    values[i] = type == FloatType::kBfloat16 ? FromBfloat16(half) : FromFloat16(half);
  }
}

}  // namespace deepnet
