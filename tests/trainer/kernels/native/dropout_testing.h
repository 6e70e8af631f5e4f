// Parts of tests of dropout.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/native/dropout.h"

namespace deepnet::native {

// One decision, the slow way: the definition that kernels are tested against.
inline bool KeepElement(const DropoutSite& key, uint32_t pair, uint32_t position, int64_t feature) {
  const DropoutStream stream = MakeDropoutStream(key);
  DEEPNET_CHECK(position < (1u << 20)) << "position " << position;
  DEEPNET_CHECK(feature >= 0 && feature < kMaxDropoutFeatures) << "feature " << feature;
  const PhiloxBlock words =
      Philox({stream.key0, stream.key1}, {stream.counter0, pair, stream.counter2 | position,
                                          stream.counter3 | static_cast<uint32_t>(feature / 8)});
  const int lane = static_cast<int>(feature % 8);
  const uint32_t bits = words[lane / 2] >> (16 * (lane % 2)) & 0xFFFFu;
  return bits >= stream.threshold;
}

// mask [rows, MaskBytes(cols)] for features 0..cols-1. Bits past cols are unspecified.
inline void DropoutMask(Cpu& cpu, const DropoutSite& key, const PackedRows& ids, int64_t rows,
                        int64_t cols, uint8_t* mask) {
  std::vector<float> x(rows * cols);
  DropoutForward(cpu, key, ids, {x.data(), Element::kFloat32, rows, cols, cols}, mask);
}

}  // namespace deepnet::native
