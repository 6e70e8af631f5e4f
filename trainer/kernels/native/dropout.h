// Dropout whose every decision is a function of what is dropped, never of the order of work.
//
// Element (pair, position, feature) of a site of a layer is kept in a step or not by one 16-bit
// lane of Philox4x32-10 under MakeKey(seed, RandomPurpose::kDropout). Eight neighbouring features
// share a block. Persistent layout of the counter (frozen vectors: dropout_test.cc):
//
//   c0  step, bits 0..31
//   c1  ordinal of the sentence pair in the step
//   c2  position in the sentence (bits 0..19) | site (20..27) | step, bits 32..35 (28..31)
//   c3  feature / 8 (bits 0..17) | layer (18..30) | stack (31)
//
// Lane j = feature % 8 is the low (j even) or high (j odd) half of word j / 2. The element is kept
// if lane >= round(rate * 65536), and then multiplied by 1 / (1 - rate) in float32.
//
// A mask is packed: bit c % 8 of byte c / 8 of a row is 1 if column c is kept; a row has
// MaskBytes(cols) bytes. The forward pass makes it, the backward pass reads it.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet {

// The place in the model and the step where a mask is drawn. Checked: 0 <= step < 2^36, stack 0 or
// 1, layer < 2^13, site < 2^8.
struct DropoutSite {
  uint64_t seed = 0;
  int64_t step = 0;
  int stack = 0;      // 0 encoder, 1 decoder
  int layer = 0;      // within its stack
  int site = 0;       // see Site (trainer/kernels/ops.h)
  double rate = 0.0;  // 0 <= rate < 1; 0: nothing is drawn, no mask is read or written
};

}  // namespace deepnet

namespace deepnet::native {

inline constexpr int64_t kMaxDropoutFeatures = int64_t{1} << 21;

[[gnu::always_inline]] constexpr int64_t MaskBytes(int64_t cols) { return (cols + 7) / 8; }

// A DropoutSite as the kernels take it.
struct DropoutStream {
  uint32_t key0 = 0, key1 = 0;
  uint32_t counter0 = 0;
  uint32_t counter2 = 0;   // all but the position
  uint32_t counter3 = 0;   // all but the feature
  uint32_t threshold = 0;  // keep if lane >= threshold
  float scale = 1.0f;      // of what is kept

  constexpr bool active() const { return threshold > 0; }
};

DropoutStream MakeDropoutStream(const DropoutSite& key);

// 1 / (1 - rate) as every kernel multiplies with it.
float KeepScale(double rate);

// x = keep ? x / (1 - rate) : 0, in place; writes the mask. The activation's dropout. Of `ids`
// positions, which are below 2^20, and pairs are read.
void DropoutForward(Cpu& cpu, const DropoutSite& key, const PackedRows& ids, Matrix x,
                    uint8_t* mask);

// dx = keep ? dx / (1 - rate) : 0, in place, by the mask of the forward pass.
void DropoutBackward(Cpu& cpu, double rate, const uint8_t* mask, Matrix dx);

}  // namespace deepnet::native
