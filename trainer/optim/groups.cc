#include "trainer/optim/groups.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// ReplicasPerNode of the replicas of one stage.
int RunLength(const std::vector<std::string>& nodes) {
  const auto other = [&](const std::string& node) { return node != nodes[0]; };
  const auto end = std::find_if(nodes.begin(), nodes.end(), other);
  const auto length = static_cast<size_t>(end - nodes.begin());
  if (length < 2 || end == nodes.end() || nodes.size() % length != 0) return 0;
  std::set<std::string> seen;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool first = i % length == 0;
    if (first ? !seen.insert(nodes[i]).second : nodes[i] != nodes[i - 1]) return 0;
  }
  return static_cast<int>(length);
}

}  // namespace

int ReplicasPerNode(std::span<const std::string> nodes, int stages) {
  std::set<int> lengths;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<std::string> of_stage;
    for (size_t rank = stage; rank < nodes.size(); rank += stages) of_stage.push_back(nodes[rank]);
    lengths.insert(RunLength(of_stage));
  }
  return lengths.size() == 1 ? *lengths.begin() : 0;
}

absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int stage, int replica,
                                        int replicas_per_node) {
  OwnedGroups groups;
  ASSIGN_OR_RETURN(groups.replicas, world.Split(/*color=*/stage, /*key=*/replica));
  ASSIGN_OR_RETURN(groups.stages, world.Split(/*color=*/replica, /*key=*/stage));
  if (replicas_per_node > 0) {
    const int node = replica / replicas_per_node, local = replica % replicas_per_node;
    ASSIGN_OR_RETURN(groups.node_replicas, groups.replicas->Split(/*color=*/node, /*key=*/local));
    ASSIGN_OR_RETURN(groups.across_nodes, groups.replicas->Split(/*color=*/local, /*key=*/node));
  }
  groups.all = {.world = &world,
                .replicas = groups.replicas.get(),
                .node_replicas = groups.node_replicas.get(),
                .across_nodes = groups.across_nodes.get(),
                .stages = groups.stages.get()};
  return groups;
}

absl::Status Named(absl::Status status, std::string_view what) {
  if (status.ok()) return status;
  absl::Status named(status.code(),
                     absl::StrCat(std::string(what), ": ", std::string(status.message())));
  status.ForEachPayload(
      [&](auto url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return absl::IsDeadlineExceeded(status) ? WithExitCode(named, ExitCode::kHang) : named;
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
