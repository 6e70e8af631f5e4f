#include "trainer/optim/groups.h"

#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int stage, int replica) {
  OwnedGroups groups;
  ASSIGN_OR_RETURN(groups.replicas, world.Split(/*color=*/stage, /*key=*/replica));
  ASSIGN_OR_RETURN(groups.stages, world.Split(/*color=*/replica, /*key=*/stage));
  groups.all = {.world = &world, .replicas = groups.replicas.get(), .stages = groups.stages.get()};
  return groups;
}

Buffer BufferOf(const at::Tensor& tensor) {
  DEEPNET_CHECK(tensor.is_contiguous());
  Buffer buffer{.data = tensor.data_ptr(), .bytes = static_cast<int64_t>(tensor.nbytes())};
  if (tensor.is_cuda()) {
    buffer.device = {.kind = Device::Kind::kCuda, .index = tensor.get_device()};
  }
  return buffer;
}

}  // namespace deepnet
