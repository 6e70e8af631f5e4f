#include "parallel/comm/job_hosts.h"

#include <algorithm>
#include <set>

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"

namespace deepnet {

std::vector<std::string> JobHosts::CoresHere() const {
  std::vector<std::string> here;
  for (size_t other = 0; other < names.size(); ++other) {
    if (names[other] == names[rank]) here.push_back(cores[other]);
  }
  return here;
}

int JobHosts::Threads() const { return ThreadsPerRank(CoresHere(), cores[rank]); }

int JobHosts::RanksBefore() const {
  return static_cast<int>(std::count(names.begin(), names.begin() + rank, names[rank]));
}

int JobHosts::RanksHere() const { return static_cast<int>(std::ranges::count(names, names[rank])); }

absl::StatusOr<JobHosts> GatherHosts(Communicator& world) {
  JobHosts hosts{.rank = world.rank(), .names = {}, .cores = {}};
  ASSIGN_OR_RETURN(hosts.names, AllGatherText(world, HostName()));
  ASSIGN_OR_RETURN(hosts.cores, AllGatherText(world, UsableCoreList()));
  return hosts;
}

ClusterSpec WithNodes(ClusterSpec cluster, const std::vector<std::string>& hosts) {
  if (cluster.nodes() != 0 || cluster.devices_per_node() != 0) return cluster;
  const auto ranks = static_cast<int>(hosts.size());
  const auto distinct = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
  cluster.set_nodes(ranks % distinct == 0 ? distinct : 1);
  cluster.set_devices_per_node(ranks / cluster.nodes());
  return cluster;
}

int NumRanks(const ClusterSpec& cluster) {
  return std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
}

}  // namespace deepnet
