#include "trainer/optim/loss_total.h"

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

}  // namespace deepnet
