// y = scale * (x - shift): trained factors on columns and a trained number, which residual schemes
// put on streams, branches and heads (docs/design/residuals.md).
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

class Scratch;
class ThreadPool;
struct KernelTable;

struct ModulateForwardArgs {
  ConstMatrix x = {};
  const float* scale = nullptr;  // [groups], one for each cols / groups neighbours; null: 1
  int64_t groups = 1;            // divides the columns
  const float* shift = nullptr;  // [1]; null: 0
  Matrix y = {};                 // of either element; may be x
};

void ModulateForward(ThreadPool& pool, const KernelTable& table, const ModulateForwardArgs& args,
                     Scratch& scratch);

struct ModulateBackwardArgs {
  ConstMatrix dy = {};
  ConstMatrix x = {};  // as it went in; data null where there is no scale
  const float* scale = nullptr;
  int64_t groups = 1;
  const float* shift = nullptr;
  Matrix dx = {};            // scale * dy; may be dy
  float* d_scale = nullptr;  // [groups], added to; null where there is no scale
  float* d_shift = nullptr;  // [1], added to; null where there is none
};

// The gradients of scale and shift are summed over blocks of kRowsPerBlock rows, over the blocks in
// order, then over the columns of a group in order: the same bits for any number of threads.
void ModulateBackward(ThreadPool& pool, const KernelTable& table, const ModulateBackwardArgs& args,
                      Scratch& scratch);

}  // namespace deepnet::native
