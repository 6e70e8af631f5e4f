#include "parallel/comm/job_hosts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

TEST(JobHosts, ShareTheCoresOfTheirOwnHostOnly) {
  const JobHosts hosts{
      .rank = 2, .names = {"a", "b", "a", "a"}, .cores = {"0,1,2,3", "0,1", "0,1,2,3", "4"}};
  EXPECT_THAT(hosts.CoresHere(), ElementsAre("0,1,2,3", "0,1,2,3", "4"));
  EXPECT_EQ(hosts.Threads(), 2);
  EXPECT_EQ(hosts.RanksBefore(), 1);
  EXPECT_EQ(hosts.RanksHere(), 3);
}

TEST(JobHosts, AreGatheredInTheOrderOfRanks) {
  const auto statuses = RunRanks(3, [](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(world));
    EXPECT_EQ(hosts.rank, world.rank());
    EXPECT_EQ(hosts.names, std::vector<std::string>(3, HostName()));
    EXPECT_EQ(hosts.cores, std::vector<std::string>(3, UsableCoreList()));
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

std::vector<int> Nodes(const ClusterSpec& given, const std::vector<std::string>& hosts) {
  const ClusterSpec cluster = WithNodes(given, hosts);
  return {cluster.nodes(), cluster.devices_per_node(), NumRanks(cluster)};
}

TEST(WithNodes, TakesTheHostsOfTheJobWhereNothingIsSaid) {
  EXPECT_THAT(Nodes({}, {"a", "a", "b", "b"}), ElementsAre(2, 2, 4));
  EXPECT_THAT(Nodes({}, {"a", "a", "b"}), ElementsAre(1, 3, 3));
  ClusterSpec given;
  given.set_devices_per_node(8);
  EXPECT_THAT(Nodes(given, {"a", "b"}), ElementsAre(0, 8, 8));
  given.Clear();
  given.set_nodes(3);
  EXPECT_THAT(Nodes(given, {"a", "b"}), ElementsAre(3, 0, 3));
}

}  // namespace
}  // namespace deepnet
