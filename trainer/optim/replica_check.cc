#include "trainer/optim/replica_check.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include <ATen/ATen.h>

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int64_t kNotHere = -1;

// A tensor's name and checksum here, or kNotHere.
using Checked = std::pair<std::string, int64_t>;

int64_t Checksum(const at::Tensor& weights) {
  const at::Tensor here = weights.cpu();
  return Crc32c({static_cast<const char*>(here.data_ptr()), here.nbytes()});
}

// "ranks 0, 2 hold 1234abcd, rank 1 holds 00000000".
std::string WhoHoldsWhat(const std::map<int64_t, std::vector<int64_t>>& ranks_by_checksum) {
  std::vector<std::string> parts;
  for (const auto& [checksum, ranks] : ranks_by_checksum) {
    parts.push_back(absl::StrFormat("%s %s %08x", ranks.size() == 1 ? "rank" : "ranks",
                                    absl::StrJoin(ranks, ", "), checksum));
  }
  return absl::StrJoin(parts, "; ");
}

// Compares `mine` over the `group`. `rank`: of the world.
absl::Status CompareOver(Communicator* group, absl::Duration limit, int64_t rank,
                         const std::vector<Checked>& mine) {
  if (group == nullptr || group->size() == 1) return absl::OkStatus();
  std::vector<int64_t> sent = {rank};
  for (const auto& [name, checksum] : mine) sent.push_back(checksum);
  std::vector<std::vector<int64_t>> received(group->size(), sent);
  std::vector<Buffer> all;
  for (std::vector<int64_t>& one : received) all.push_back(Buffer::Of(std::span(one)));
  ASSIGN_OR_RETURN(const auto transfer, group->AllGather(all[group->rank()], all));
  RETURN_IF_ERROR(Named(transfer->Wait(limit), "checksums of weights"));
  for (size_t i = 0; i < mine.size(); ++i) {
    std::map<int64_t, std::vector<int64_t>> ranks_by_checksum;
    for (const std::vector<int64_t>& one : received) {
      if (one[i + 1] != kNotHere) ranks_by_checksum[one[i + 1]].push_back(one[0]);
    }
    if (ranks_by_checksum.size() <= 1) continue;
    return WithExitCode(
        absl::DataLossError(absl::StrCat("ranks disagree on ", mine[i].first,
                                         ", checksums: ", WhoHoldsWhat(ranks_by_checksum))),
        ExitCode::kReplicasDisagree);
  }
  return absl::OkStatus();
}

}  // namespace

ReplicaCheck::ReplicaCheck(const Inventory& whole, const ShardLayout& layout) {
  std::vector<Compared> all(whole.parameters.size());
  std::vector<int> uses(all.size());
  for (const Layer& layer : whole.layers) {
    for (const int p : layer.parameters) ++uses[p];
  }
  for (const GradientUse& use : layout.uses) {
    if (!use.first_here) continue;
    all[use.parameter] = {.here = true, .weight = use.weight, .count = use.count};
  }
  for (size_t p = 0; p < all.size(); ++p) {
    all[p].tied = uses[p] > 1;
    if (!all[p].here && !all[p].tied) continue;
    all[p].name = whole.parameters[p].name;
    compared_.push_back(all[p]);
  }
}

absl::Status ReplicaCheck::Run(const at::Tensor& weights, const Groups& groups) const {
  if (groups.world == nullptr || groups.world->size() == 1) return absl::OkStatus();
  std::vector<Checked> held, tied;
  for (const Compared& one : compared_) {
    const Checked checked(one.name,
                          one.here ? Checksum(weights.narrow(0, one.weight, one.count)) : kNotHere);
    if (one.here) held.push_back(checked);
    if (one.tied) tied.push_back(checked);
  }
  const int64_t rank = groups.world->rank();
  RETURN_IF_ERROR(CompareOver(groups.replicas, groups.limit, rank, held));
  return CompareOver(groups.stages, groups.limit, rank, tied);
}

}  // namespace deepnet
