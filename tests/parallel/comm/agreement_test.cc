#include "parallel/comm/agreement.h"

#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"
#include "proto/doctor.pb.h"
#include "proto/plan.pb.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns what every rank of `num_ranks` gets; all must get the same.
absl::Status OneAnswer(int num_ranks, const std::function<absl::Status(Communicator&)>& body) {
  std::vector<absl::Status> answers(num_ranks);
  const absl::Status world = FirstError(RunRanks(num_ranks, [&](Communicator& comm) {
    answers[comm.rank()] = body(comm);
    return absl::OkStatus();
  }));
  EXPECT_TRUE(world.ok()) << world;
  for (const absl::Status& answer : answers) {
    EXPECT_EQ(answer.message(), answers[0].message());
    EXPECT_EQ(GetExitCode(answer), GetExitCode(answers[0]));
    EXPECT_EQ(answer.ok() || IsAgreed(answer), true);
  }
  return answers[0];
}

TEST(AgreeOnStatus, IsOkWhereAllAre) {
  EXPECT_TRUE(
      OneAnswer(4, [](Communicator& comm) { return AgreeOnStatus(comm, absl::OkStatus()); }).ok());
}

TEST(AgreeOnStatus, GivesTheFirstFailureToEverybodyWithItsExitCode) {
  const absl::Status status = OneAnswer(4, [](Communicator& comm) {
    const absl::Status mine = WithExitCode(absl::NotFoundError("no corpus"), ExitCode::kData);
    return AgreeOnStatus(comm, comm.rank() >= 2 ? mine : absl::OkStatus());
  });
  EXPECT_EQ(status.message(), "rank 2: no corpus");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetExitCode(status), ExitCode::kData);
}

TEST(AgreeOnStatus, NamesNoRankWhereAllFailAlike) {
  const absl::Status status = OneAnswer(
      3, [](Communicator& comm) { return AgreeOnStatus(comm, absl::NotFoundError("a\nb")); });
  EXPECT_EQ(status.message(), "a\nb");
}

std::string NotUtf8() { return "host \xff"; }

TEST(BroadcastMessage, GivesTheMessageOfTheRootToAll) {
  const auto statuses = RunRanks(3, [](Communicator& comm) -> absl::Status {
    DoctorRank message;
    message.set_host(comm.rank() == 1 ? NotUtf8() : "mine");
    if (comm.rank() == 2) message.set_cores(7);
    RETURN_IF_ERROR(BroadcastMessage(comm, message, 1));
    EXPECT_EQ(message.cores(), 0);
    EXPECT_TRUE(IsUtf8(message.host())) << message.host();
    EXPECT_THAT(message.host(), HasSubstr("host "));
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(AllGatherMessages, GivesThoseOfAllInTheOrderOfRanks) {
  const auto statuses = RunRanks(3, [](Communicator& comm) -> absl::Status {
    DoctorRank mine;
    mine.set_cores(comm.rank());
    ASSIGN_OR_RETURN(const std::vector<DoctorRank> all, AllGatherMessages(comm, mine));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(all.at(rank).cores(), rank);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// The others wait for a rank that has gone on.
TEST(EndJobUnlessAgreed, AnErrorThatOneRankKnowsOfEndsTheOthersToo) {
  std::vector<absl::Status> met(3);
  RunRanks(3, [&](Communicator& comm) {
    const absl::Status own = WithExitCode(absl::DataLossError("its own"), ExitCode::kData);
    EndJobUnlessAgreed(comm, comm.rank() == 1 ? own : absl::OkStatus());
    if (comm.rank() != 1) met[comm.rank()] = comm.Barrier(absl::Seconds(10));
    return absl::OkStatus();
  });
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(absl::IsAborted(met[rank])) << met[rank];
    EXPECT_EQ(GetExitCode(met[rank]), ExitCode::kData);
  }
}

TEST(EndJobUnlessAgreed, AnErrorThatAllKnowOfLeavesTheJobAlone) {
  const auto statuses = RunRanks(3, [](Communicator& comm) {
    EndJobUnlessAgreed(comm, AgreeOnStatus(comm, absl::NotFoundError("no corpus")));
    return comm.Barrier();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(BroadcastText, BringsTheRootsTextToEverybody) {
  EXPECT_TRUE(OneAnswer(3, [](Communicator& comm) {
                const auto text = BroadcastText(comm, std::to_string(comm.rank()), 1);
                return text.ok() && *text == "1" ? absl::OkStatus() : absl::InternalError("other");
              }).ok());
}

TEST(CheckSameEverywhere, NamesTheOddRankAndTheLine) {
  const absl::Status status = OneAnswer(4, [](Communicator& comm) {
    const std::string seed = comm.rank() == 2 ? "seed: 2" : "seed: 1";
    return CheckSameEverywhere(comm,
                               std::vector<Fact>{{"binary", "abc"}, {"RunSpec", "a: 1\n" + seed}});
  });
  EXPECT_EQ(status.message(),
            absl::StrCat("preflight: RunSpec is not the same on all ranks: rank 2 (host ",
                         HostName(), "): 'seed: 2', the others 'seed: 1'"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight);
}

// Most ranks are right, the lowest one not; texts are cut to 80 characters, and spaces around them.
TEST(CheckSameEverywhere, NamesAllThatDifferFromMost) {
  const std::string z(81, 'z'), x(80, 'x');
  const std::vector<std::string> values = {z,   " " + x + " ", "y",          x,
                                           "y", " " + x + " ", " " + x + " "};
  const absl::Status status = OneAnswer(7, [&](Communicator& comm) {
    return CheckSameEverywhere(comm, std::vector<Fact>{{"corpus", values[comm.rank()]}});
  });
  const std::string host = absl::StrCat(" (host ", HostName(), "): '");
  const std::string others = absl::StrCat("', the others '", x, "'");
  EXPECT_EQ(status.message(), absl::StrCat("preflight: corpus is not the same on all ranks: rank 3",
                                           host, x, others, "; ranks 2, 4", host, "y", others,
                                           "; rank 0", host, z.substr(1), "...", others));
}

TEST(CheckSameEverywhere, TakesTheLowerRanksWordWhereOpinionsAreEven) {
  const absl::Status status = OneAnswer(2, [](Communicator& comm) {
    return CheckSameEverywhere(comm, std::vector<Fact>{{"corpus", std::to_string(comm.rank())}});
  });
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (host "));
}

TEST(CheckSameFolder, IsOkForOneFolderAndLeavesNothingInIt) {
  const auto fs = MakePosixFileSystem();
  const std::string folder = absl::StrCat(::testing::TempDir(), "/agreement_shared", getpid());
  EXPECT_TRUE(OneAnswer(4, [&](Communicator& comm) {
                const auto own = MakePosixFileSystem();
                return CheckSameFolder(comm, *own, folder);
              }).ok());
  EXPECT_TRUE(fs->List(folder)->empty());
}

// Where another job has left its mark.
TEST(CheckSameFolder, NamesRanksThatSeeAnother) {
  const auto files = MakePosixFileSystem();
  const std::string foreign = absl::StrCat(::testing::TempDir(), "/agreement_other", getpid());
  ASSERT_TRUE(files->MakeFolder(foreign).ok());
  ASSERT_TRUE(ReplaceFile(*files, JoinPath(foreign, ".seen-by-all-ranks"), "another's").ok());
  const absl::Status status = OneAnswer(3, [](Communicator& comm) {
    const auto fs = MakePosixFileSystem();
    const std::string other = comm.rank() == 1 ? "/agreement_other" : "/agreement_common";
    return CheckSameFolder(comm, *fs, absl::StrCat(::testing::TempDir(), other, getpid()));
  });
  const std::string folder = absl::StrCat(::testing::TempDir(), "/agreement_common", getpid());
  EXPECT_EQ(status.message(),
            absl::StrCat("preflight: ", folder, ": rank 1 (host ", HostName(),
                         ") does not see what rank 0 wrote there; the run folder must be on a file "
                         "system that all hosts share"));
  EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight);
  EXPECT_TRUE(MakePosixFileSystem()->List(folder)->empty());
}

TEST(CheckSameFolder, SaysWhatKeepsItFromBeingMade) {
  for (const int ranks : {1, 3}) {
    const absl::Status status = OneAnswer(ranks, [](Communicator& comm) {
      const auto fs = MakePosixFileSystem();
      return CheckSameFolder(comm, *fs, "/dev/full/run");
    });
    EXPECT_EQ(status.message(), absl::StrCat(ranks == 1 ? "" : "rank 0: ",
                                             "cannot make the folder '/dev/full/run': Not a "
                                             "directory"));
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight);
  }
}

TEST(JobHosts, ShareTheCoresOfTheirOwnHostOnly) {
  const JobHosts hosts{
      .rank = 3, .names = {"b", "a", "a", "a"}, .cores = {"0,1", "0,1,2,3", "4", "0,1,2,3"}};
  EXPECT_THAT(hosts.CoresHere(), ElementsAre("0,1,2,3", "4", "0,1,2,3"));
  EXPECT_EQ(hosts.Threads(), 2);
  EXPECT_EQ(hosts.RanksBefore(), 2);
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
