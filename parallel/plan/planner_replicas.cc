#include "parallel/plan/planner_replicas.h"

#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace deepnet {
namespace {

// What the planner does not choose by itself, because results would have other bits than with other
// sizes. Who asks for the size gets it.
absl::Status CheckChosenReplicas(const Request& request, const Layout& layout) {
  const std::string asked = absl::StrCat("; with parallel.data_parallel_size: ", layout.replicas,
                                         " it runs, with other rounding");
  if (request.microbatches_per_step % layout.replicas != 0) {
    return BadField(absl::StrCat("data.microbatches_per_step: ", request.microbatches_per_step,
                                 " cannot be dealt evenly to data_parallel_size ", layout.replicas,
                                 asked));
  }
  if (request.virtual_replicas % layout.replicas != 0) {
    return BadField(absl::StrCat("optim.virtual_replicas: ", request.virtual_replicas,
                                 " is not a multiple of data_parallel_size ", layout.replicas,
                                 asked));
  }
  if (request.virtual_replicas == 0 &&
      !std::has_single_bit(static_cast<unsigned>(layout.replicas))) {
    return BadField(absl::StrCat("parallel.data_parallel_size: ", layout.replicas,
                                 " would be optim.virtual_replicas, which is a power of two",
                                 asked));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReplicas(const Request& request, const Layout& layout) {
  const int microbatches = request.microbatches_per_step;
  if (microbatches < layout.replicas) {
    return BadField(absl::StrCat("parallel.data_parallel_size: ", layout.replicas,
                                 " replicas, but a step has only ", microbatches,
                                 " microbatches (data.microbatches_per_step)"));
  }
  if (request.custom.has_value() && microbatches % layout.replicas != 0) {
    return BadField(absl::StrCat("parallel.schedule: is for one number of microbatches, but ",
                                 microbatches, " cannot be dealt evenly to data_parallel_size ",
                                 layout.replicas));
  }
  if (request.replicas != 0) return absl::OkStatus();
  return CheckChosenReplicas(request, layout);
}

}  // namespace deepnet
