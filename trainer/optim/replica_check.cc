#include "trainer/optim/replica_check.h"

#include <map>
#include <string>
#include <vector>

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

// One rank's view: its rank in the world and, for each compared parameter, a checksum or kNotHere.
struct View {
  int64_t rank = 0;
  std::vector<int64_t> checksums;
};

int64_t Checksum(const at::Tensor& weights) {
  const at::Tensor here = weights.cpu();
  return Crc32c({static_cast<const char*>(here.data_ptr()), here.nbytes()});
}

absl::StatusOr<std::vector<View>> GatherViews(Communicator& group, const View& mine,
                                              absl::Duration limit) {
  std::vector<int64_t> sent = {mine.rank};
  sent.insert(sent.end(), mine.checksums.begin(), mine.checksums.end());
  std::vector<std::vector<int64_t>> received(group.size(), sent);
  std::vector<Buffer> all;
  for (std::vector<int64_t>& one : received) all.push_back(Buffer::Of(std::span(one)));
  ASSIGN_OR_RETURN(auto transfer, group.AllGather(all[group.rank()], all));
  RETURN_IF_ERROR(Named(transfer->Wait(limit), "checksums of weights"));
  std::vector<View> views;
  for (const std::vector<int64_t>& one : received) {
    views.push_back({one[0], {one.begin() + 1, one.end()}});
  }
  return views;
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

absl::Status CompareOver(Communicator* group, absl::Duration limit, const View& mine,
                         const std::vector<std::string>& names) {
  if (group == nullptr || group->size() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<View> views, GatherViews(*group, mine, limit));
  for (size_t i = 0; i < names.size(); ++i) {
    std::map<int64_t, std::vector<int64_t>> ranks_by_checksum;
    for (const View& view : views) {
      if (view.checksums[i] == kNotHere) continue;
      ranks_by_checksum[view.checksums[i]].push_back(view.rank);
    }
    if (ranks_by_checksum.size() <= 1) continue;
    return WithExitCode(
        absl::DataLossError(absl::StrCat("ranks disagree on ", names[i],
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
  View held{groups.world->rank(), {}}, tied = held;
  std::vector<std::string> held_names, tied_names;
  for (const Compared& one : compared_) {
    const int64_t checksum =
        one.here ? Checksum(weights.narrow(0, one.weight, one.count)) : kNotHere;
    if (one.here) {
      held.checksums.push_back(checksum);
      held_names.push_back(one.name);
    }
    if (one.tied) {
      tied.checksums.push_back(checksum);
      tied_names.push_back(one.name);
    }
  }
  RETURN_IF_ERROR(CompareOver(groups.replicas, groups.limit, held, held_names));
  return CompareOver(groups.stages, groups.limit, tied, tied_names);
}

}  // namespace deepnet
