// One of the initial values of a parameter.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "parallel/base/philox.h"

namespace deepnet {

inline float InitialNormal(uint64_t seed, std::string_view name, int64_t index) {
  float value;
  FillInitialNormal(seed, name, index, std::span(&value, 1));
  return value;
}

}  // namespace deepnet
