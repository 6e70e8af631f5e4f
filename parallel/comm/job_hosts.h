// The hosts of a job: which of its ranks share one, and with it its cores.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"

namespace deepnet {

struct JobHosts {
  int rank = 0;                    // this one
  std::vector<std::string> names;  // HostName of every rank
  std::vector<std::string> cores;  // UsableCoreList of every rank

  // Returns the cores of the ranks of this host, this one's included.
  std::vector<std::string> CoresHere() const;
  // Returns this rank's share of the cores that it may use (ThreadsPerRank).
  int Threads() const;
  // Returns how many ranks of this host come before this one, and how many it has.
  int RanksBefore() const;
  int RanksHere() const;
};

// Collective.
absl::StatusOr<JobHosts> GatherHosts(Communicator& world);

// Returns `cluster`, where it gives neither nodes nor devices_per_node, with those of the job whose
// ranks are on `hosts`: one node where not all hosts have as many ranks.
ClusterSpec WithNodes(ClusterSpec cluster, const std::vector<std::string>& hosts);

// Returns nodes x devices_per_node, each at least 1.
int NumRanks(const ClusterSpec& cluster);

}  // namespace deepnet
