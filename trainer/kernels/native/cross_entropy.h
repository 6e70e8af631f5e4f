// Softmax cross-entropy over rows of logits, and the log-probabilities that decoding needs.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// With p = softmax(logits row), t the row's target, V = vocabulary, e = smoothing / (V - 1):
//   nll  = -log p_t
//   loss = (1 - smoothing - e) * nll + e * sum_v -log p_v       (label smoothing as in fairseq)
//   d_logits = scale * d loss / d logits
struct CrossEntropyArgs {
  int64_t rows = 0;
  int64_t vocabulary = 0;            // >= 2
  const float* logits = nullptr;     // [rows, vocabulary]
  int64_t stride = 0;                // >= vocabulary
  const int32_t* targets = nullptr;  // [rows]; -1: a padded row with loss and gradient 0
  double smoothing = 0.0;
  float scale = 1.0f;
  float* nll = nullptr;   // [rows]
  float* loss = nullptr;  // [rows]
  Matrix d_logits = {};   // [rows, vocabulary]; data null: none; may be the logits themselves
};

void CrossEntropyRows(Cpu& cpu, const CrossEntropyArgs& args);

// y = logits - log(sum(exp(logits))) for each row; float32. y may be the logits. A row's result
// depends on that row alone.
void LogSoftmaxRows(Cpu& cpu, ConstMatrix logits, Matrix y);

// y = log(((n - 1) exp(y) + exp(x)) / n), element by element: log-probabilities averaged over n - 1
// models become those over n >= 2, as probabilities. Where x equals y, y keeps its bits.
void AverageLogProbs(Cpu& cpu, int64_t num_elements, int n, const float* x, float* y);

}  // namespace deepnet::native
