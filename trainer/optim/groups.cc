#include "trainer/optim/groups.h"

#include <algorithm>
#include <set>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

// Returns ReplicasPerNode for the replicas of one stage.
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

absl::StatusOr<OwnedGroups> SplitGroups(Communicator& world, int pp_rank, int dp_rank,
                                        int replicas_per_node) {
  OwnedGroups groups;
  ASSIGN_OR_RETURN(groups.replicas, world.Split(/*color=*/pp_rank, /*key=*/dp_rank));
  ASSIGN_OR_RETURN(groups.stages, world.Split(/*color=*/dp_rank, /*key=*/pp_rank));
  if (replicas_per_node > 0) {
    const int node = dp_rank / replicas_per_node, local = dp_rank % replicas_per_node;
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
  absl::Status named = WithPrefix(what, status);
  return absl::IsDeadlineExceeded(named) ? WithExitCode(named, ExitCode::kHang) : named;
}

Buffer BufferOf(const Ops& ops, const at::Tensor& tensor) {
  DEEPNET_CHECK(tensor.is_contiguous());
  Buffer buffer{.data = tensor.data_ptr(), .bytes = static_cast<int64_t>(tensor.nbytes())};
  if (!tensor.is_cpu()) {
    buffer.device = {.kind = Device::Kind::kCuda,
                     .index = tensor.get_device(),
                     .stream = ops.session().stream()};
  }
  return buffer;
}

std::vector<Communicator*> ExchangeLevels(const Groups& groups) {
  if (groups.replicas == nullptr || groups.replicas->size() == 1) return {};
  if (groups.node_replicas == nullptr) return {groups.replicas};
  DEEPNET_CHECK_EQ(groups.node_replicas->size() * groups.across_nodes->size(),
                   groups.replicas->size());
  return {groups.node_replicas, groups.across_nodes};
}

// Shares are in the order of (rank at the first level, rank at the second, ...).
std::vector<int64_t> LevelBorders(const GradientPiece& piece,
                                  const std::vector<Communicator*>& levels, size_t level) {
  int stride = static_cast<int>(piece.cuts.size()) - 1;
  int first = 0;
  for (size_t k = 0; k <= level; ++k) {
    stride /= levels[k]->size();
    if (k < level) first += levels[k]->rank() * stride;
  }
  std::vector<int64_t> borders;
  for (int r = 0; r <= levels[level]->size(); ++r) {
    borders.push_back(piece.cuts[first + r * stride]);
  }
  return borders;
}

}  // namespace deepnet
