// Token and position embedding, and the deterministic sum of its gradient.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// x = Dropout(scale * table[id] + positions[position]) for each row.
struct EmbedForwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t vocabulary = 0;
  const int32_t* ids = nullptr;      // [rows]; -1: a padded row, which becomes 0
  RowIds row_ids = {};               // position is always read, pair if dropout.rate > 0
  ConstMatrix table = {};            // [vocabulary, width]
  float scale = 1.0f;                // usually sqrt(width)
  const float* positions = nullptr;  // [max_positions, width], sinusoidal or learned; null: none
  int64_t max_positions = 0;         // every row's position is below it
  DropoutSite dropout = {};
  float* x = nullptr;       // [rows, width]; may be null
  Matrix x_operand = {};    // the same as an operand; data may be null
  uint8_t* mask = nullptr;  // [rows, MaskBytes(width)]; written if dropout.rate > 0
};

void EmbedForward(Cpu& cpu, const EmbedForwardArgs& args);

// grad[index[r]] += scale * keep(dx[r]) for each row r. The rows of one index are added in the
// order of r, by one thread: the same bits for any number of threads.
struct EmbedBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const int32_t* index =
      nullptr;                // [rows]: token ids, or positions where those are learned; -1: skip
  int64_t num_indices = 0;    // every index is below it
  const float* dx = nullptr;  // [rows, width]
  double rate = 0.0;          // dropout of the forward pass
  const uint8_t* mask = nullptr;  // read if rate > 0
  float scale = 1.0f;             // as in the forward pass for tokens; 1 for positions
  float* grad = nullptr;          // [num_indices, width]
};

void EmbedBackward(Cpu& cpu, const EmbedBackwardArgs& args);

}  // namespace deepnet::native
