#include "trainer/optim/step_totals.h"

#include <algorithm>

#include "parallel/base/status_macros.h"

namespace deepnet {

absl::StatusOr<LossSums> TotalLoss(std::span<const LossSums> of_microbatches,
                                   const Groups& groups) {
  std::vector<double> values;
  for (const LossSums& one : of_microbatches) values.insert(values.end(), {one.loss, one.nll});
  if (groups.world != nullptr) {
    RETURN_IF_ERROR(
        Named(groups.world->AllReduceSum(std::span(values), groups.limit), "sum of the losses"));
  }
  LossSums total;
  for (size_t i = 0; i < values.size(); i += 2) {
    total.loss += values[i];
    total.nll += values[i + 1];
  }
  return total;
}

std::vector<BlockRun> BlockRunsOf(const Inventory& whole, const ShardLayout& layout) {
  const std::vector<int64_t> borders = SumBlockBorders(whole);
  std::vector<BlockRun> runs;
  int64_t packed = 0;
  for (const Extent& extent : layout.extents) {
    if (!extent.first_in_chain) continue;
    const int64_t end = extent.whole + extent.count;
    size_t block = std::lower_bound(borders.begin(), borders.end(), extent.whole) - borders.begin();
    bool open = false;  // the last run may go on
    for (; borders[block] < end; ++block) {
      const int64_t count = borders[block + 1] - borders[block];
      const int64_t inside = borders[block] - extent.whole;
      if (!open) {
        runs.push_back({.gradient = extent.gradient + inside,
                        .weight = extent.weight + inside,
                        .packed = packed,
                        .block = block});
      }
      runs.back().count += count;
      packed += count;
      open = count == kSumBlock;
    }
  }
  return runs;
}

void SumBlockSquares(Ops& ops, const at::Tensor& x, std::span<const BlockRun> runs,
                     int64_t BlockRun::*offset, std::span<double> sums) {
  std::vector<SquareSums> all;
  for (const BlockRun& run : runs) {
    const size_t blocks = (run.count + kSumBlock - 1) / kSumBlock;
    all.push_back({x.narrow(0, run.*offset, run.count), sums.subspan(run.block, blocks)});
  }
  ops.SumSquares(all);
}

}  // namespace deepnet
