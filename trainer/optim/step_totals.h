// Sums of a step that many ranks computed, with the same bits for every layout of the run.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "trainer/kernels/ops.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// Returns the sum of the losses of all microbatches of the step. `of_microbatches` has one element
// per microbatch of the whole step, in order; zero if another rank has it (only the stage with the
// output layer has any). Every rank folds them from the left, so the bits are those of one rank.
// Collective over groups.world.
absl::StatusOr<LossSums> TotalLoss(std::span<const LossSums> of_microbatches, const Groups& groups);

// A run of whole blocks (SumBlockBorders) that this rank alone sums: elements of its gradient and
// weights, and its place among the elements of all such runs.
struct BlockRun {
  int64_t gradient = 0, weight = 0, packed = 0, count = 0;
  size_t block = 0;  // the first block; all blocks but the last are full
};

// Returns the runs of a rank. All ranks together have every block of `whole` once.
std::vector<BlockRun> BlockRunsOf(const Inventory& whole, const ShardLayout& layout);

// Writes the sums of squares of the blocks of `runs` to sums[block]. `x` holds the elements of a
// run from run.*offset on.
void SumBlockSquares(Ops& ops, const at::Tensor& x, std::span<const BlockRun> runs,
                     int64_t BlockRun::*offset, std::span<double> sums);

}  // namespace deepnet
