// The random bits of dropout in kernels: Philox4x32-10 with the counter of
// trainer/kernels/native/dropout.h, so that a decision is the same on every device. For kernel
// sources (.cu) only.
#pragma once

#include <cstdint>
#include <utility>

#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/dropout.h"

namespace deepnet::cuda {

// The random bits of a site in a step.
struct DropoutStream : native::DropoutStream {
  const uint32_t* step = nullptr;  // GpuStream::step
};

// Returns the stream of `key`, which is then empty: no argument of a kernel tells the step where it
// lies on the device.
inline DropoutStream DropoutStreamOf(const GpuStream& gpu, DropoutSite& key) {
  if (gpu.step() != nullptr) key.step = 0;
  return {native::MakeDropoutStream(std::exchange(key, {})), gpu.step()};
}

// 128 random bits of (key, counter).
__device__ inline uint4 Philox(uint32_t key0, uint32_t key1, uint4 c) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// Decisions on features 8 * block .. 8 * block + 7 of a row, as the byte of a mask: bit j is 1
// where feature 8 * block + j is kept.
__device__ inline uint32_t KeepByte(const DropoutStream& stream, uint32_t pair, uint32_t position,
                                    uint32_t block) {
  uint32_t counter0 = stream.counter0, counter2 = stream.counter2 | position;
  if (stream.step != nullptr) {
    counter0 = stream.step[0];
    counter2 |= stream.step[1];
  }
  const uint4 words = Philox(stream.key0, stream.key1,
                             make_uint4(counter0, pair, counter2, stream.counter3 | block));
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  uint32_t keep = 0;
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    const uint32_t bits = word[j / 2] >> (16 * (j % 2)) & 0xFFFFu;
    keep |= static_cast<uint32_t>(bits >= stream.threshold) << j;
  }
  return keep;
}

// x = keep ? x * scale : 0.
__device__ inline void ApplyKeepByte(uint32_t keep, float scale, Chunk& x) {
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) x.v[j] = keep >> j & 1 ? x.v[j] * scale : 0.0f;
}

// to = from under a mask that was drawn before. `to` may be `from`.
struct ApplyMask {
  MatrixView from, to;
  const uint8_t* mask;
  int64_t mask_stride;
  float scale;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    Chunk values = LoadChunk(from, row, c, n);
    ApplyKeepByte(mask[row * mask_stride + c / kChunkColumns], scale, values);
    StoreChunk(to, row, c, n, values);
  }
};

}  // namespace deepnet::cuda
