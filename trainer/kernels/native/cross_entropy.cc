#include "trainer/kernels/native/cross_entropy.h"

#include <cmath>
#include <limits>

#include "parallel/base/check.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

// A row is thousands of numbers: blocks are small so that threads end together.
constexpr int64_t kRowsPerVocabularyBlock = 4;

}  // namespace

void CrossEntropyRows(Cpu& cpu, const CrossEntropyArgs& args) {
  DEEPNET_CHECK(args.vocabulary >= 2) << "vocabulary of " << args.vocabulary;
  DEEPNET_CHECK_LE(args.vocabulary, args.stride);
  CheckElements(args.d_logits);
  for (int64_t row = 0; row < args.rows; ++row) {
    DEEPNET_CHECK(args.targets[row] >= -1 && args.targets[row] < args.vocabulary)
        << "row " << row << " has target " << args.targets[row] << " of " << args.vocabulary;
  }
  RunBlocks(cpu, args.rows, kRowsPerVocabularyBlock, cpu.kernels.cross_entropy, args);
}

void LogSoftmaxRows(Cpu& cpu, ConstMatrix logits, Matrix y) {
  CheckFloats(logits, y);
  DEEPNET_CHECK(logits.cols >= 1) << "vocabulary of " << logits.cols;
  ForBlocks(cpu.pool, logits.rows, kRowsPerVocabularyBlock, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      cpu.kernels.log_softmax(static_cast<const float*>(logits.data) + row * logits.stride,
                              logits.cols, static_cast<float*>(y.data) + row * y.stride);
    }
  });
}

void AverageLogProbs(Cpu& cpu, int64_t num_elements, int n, const float* x, float* y) {
  DEEPNET_CHECK(n >= 2) << "n = " << n;
  const float before = static_cast<float>(n - 1), count = static_cast<float>(n);
  ForBlocks(cpu.pool, num_elements, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const float highest = x[i] > y[i] ? x[i] : y[i];
      if (highest == -std::numeric_limits<float>::infinity()) continue;
      const float sum = before * std::exp(y[i] - highest) + std::exp(x[i] - highest);
      y[i] = highest + std::log(sum / count);
    }
  });
}

}  // namespace deepnet::native
