#include "trainer/optim/step_totals.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "parallel/base/status_macros.h"

namespace deepnet {
absl::StatusOr<LossSums> TotalLoss(std::span<const LossSums> of_microbatches,
                                   const Groups& groups) {
  std::vector<double> values;
  for (const LossSums& one : of_microbatches) {
    values.push_back(one.loss);
    values.push_back(one.nll);
  }
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

GradientNorm::GradientNorm(const Inventory& whole, const ShardLayout& layout) {
  const std::vector<int64_t> borders = SumBlockBorders(whole);
  num_blocks_ = borders.size() - 1;
  for (const Extent& extent : layout.extents) {
    if (!extent.first_in_chain) continue;
    const int64_t end = extent.whole + extent.count;
    size_t block = std::lower_bound(borders.begin(), borders.end(), extent.whole) - borders.begin();
    bool open = false;  // the last run may go on
    for (; borders[block] < end; ++block) {
      const int64_t count = borders[block + 1] - borders[block];
      if (!open) {
        runs_.push_back(
            {.gradient = extent.gradient + borders[block] - extent.whole, .block = block});
      }
      runs_.back().count += count;
      open = count == kSumBlock;
    }
  }
}

// Adding the zeros of the ranks that do not hold a block is exact.
absl::StatusOr<double> GradientNorm::Compute(Ops& ops, const at::Tensor& gradient,
                                             const Groups& groups) const {
  std::vector<double> sums(num_blocks_, 0.0);
  for (const Run& run : runs_) {
    const size_t blocks = (run.count + kSumBlock - 1) / kSumBlock;
    ops.SumSquares(gradient.narrow(0, run.gradient, run.count),
                   std::span(sums).subspan(run.block, blocks));
  }
  if (groups.world != nullptr) {
    RETURN_IF_ERROR(Named(groups.world->AllReduceSum(std::span(sums), groups.limit),
                          "sum of the gradient's squares"));
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

}  // namespace deepnet
