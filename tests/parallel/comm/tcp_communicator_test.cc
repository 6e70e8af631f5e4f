// Ranks are threads here, each with connections of its own; tests/mpi has them as processes.
#include "parallel/comm/tcp_communicator.h"

#include <condition_variable>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/fault_communicator.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(60);

class MemoryStore final : public RendezvousStore {
 public:
  std::string Place() const override { return "here"; }
  absl::Status Set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return absl::UnavailableError("no store");
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration limit) override {
    std::unique_lock lock(mutex_);
    if (gone_) return absl::UnavailableError("no store");
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(limit),
                           [&] { return values_.count(key) > 0; })) {
      return absl::DeadlineExceededError(key);
    }
    return values_[key];
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return absl::UnavailableError("no store");
    return counts_[key] += amount;
  }
  absl::Status Delete(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    counts_.erase(key);
    values_.erase(key);
    return absl::OkStatus();
  }

  void Vanish() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  size_t num_keys() {
    const std::lock_guard lock(mutex_);
    return counts_.size() + values_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counts_;
  bool gone_ = false;
};

// Another store whose reader takes rank 0's place for that of rank 1.
class MisleadingStore final : public RendezvousStore {
 public:
  explicit MisleadingStore(std::shared_ptr<RendezvousStore> store) : store_(std::move(store)) {}

  std::string Place() const override { return store_->Place(); }
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration limit) override {
    ASSIGN_OR_RETURN(const std::string value, store_->Get(key, limit));
    std::vector<std::string> places = absl::StrSplit(value, '\n');
    if (places.size() > 1) places[1] = places[0];
    return absl::StrJoin(places, "\n");
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    return store_->Add(key, amount);
  }
  absl::Status Delete(const std::string& key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<RendezvousStore> store_;
};

struct Process {
  int rank, size;
  bool misled = false;  // it looks for rank 1 where rank 0 is
};

// Returns what TcpJob::Start does in each of `processes`; `body` runs in those that are started.
std::vector<absl::Status> StartAll(const std::shared_ptr<MemoryStore>& store,
                                   const std::vector<Process>& processes,
                                   const std::function<absl::Status(Communicator&)>& body,
                                   absl::Duration limit = kSoon,
                                   const std::string& interface = "") {
  std::vector<absl::Status> statuses(processes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < processes.size(); ++i) {
    threads.emplace_back([&, i] {
      std::shared_ptr<RendezvousStore> seen = store;
      if (processes[i].misled) seen = std::make_shared<MisleadingStore>(store);
      const auto job = TcpJob::Start({.rank = processes[i].rank,
                                      .size = processes[i].size,
                                      .store = seen,
                                      .limit = limit,
                                      .interface = interface});
      statuses[i] = job.ok() ? body((*job)->world()) : job.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<absl::Status> RunTcpRanks(int num_ranks,
                                      const std::function<absl::Status(Communicator&)>& body) {
  std::vector<Process> processes;
  for (int rank = 0; rank < num_ranks; ++rank) processes.push_back({rank, num_ranks});
  return StartAll(std::make_shared<MemoryStore>(), processes, body);
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

void ExpectAllSay(const std::vector<absl::Status>& statuses,
                  const testing::Matcher<std::string>& text) {
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
    EXPECT_THAT(std::string(status.message()), text);
  }
}

absl::Status Nothing(Communicator&) { return absl::OkStatus(); }

class TcpContract : public testing::TestWithParam<std::tuple<int, ContractCase>> {};

TEST_P(TcpContract, Holds) {
  const auto [num_ranks, contract_case] = GetParam();
  ExpectAllOk(RunTcpRanks(num_ranks, [run = contract_case.run](Communicator& comm) {
    run(comm);
    return comm.Barrier(kSoon);
  }));
}

TEST_P(TcpContract, HoldsOnALateRank) {
  const auto [num_ranks, contract_case] = GetParam();
  ExpectAllOk(RunTcpRanks(num_ranks, [run = contract_case.run](Communicator& world) {
    std::vector<Fault> faults;
    if (world.rank() == 1) faults = {{Fault::Kind::kDelay, 0, absl::Milliseconds(3)}};
    FaultCommunicator comm(world, faults);
    run(comm);
    return world.Barrier(kSoon);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TcpContract,
                         testing::Combine(testing::Values(2, 4),
                                          testing::ValuesIn(ContractCases().begin(),
                                                            ContractCases().end())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name +
                                  std::to_string(std::get<0>(info.param)) + "Ranks";
                         });

// A byte after a long message does not wait for its end: the long one is asked for last.
TEST(TcpCommunicator, AShortMessageOvertakesALongOne) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    std::vector<char> longer(20 << 20), shorter(1);
    const int peer = 1 - comm.rank();
    if (comm.rank() == 0) {
      ASSIGN_OR_RETURN(const auto first, comm.Send(Buffer::Of(std::span(longer)), peer, 1));
      ASSIGN_OR_RETURN(const auto second, comm.Send(Buffer::Of(std::span(shorter)), peer, 2));
      RETURN_IF_ERROR(second->Wait(kSoon));
      EXPECT_FALSE(first->Done());  // nobody has asked
      RETURN_IF_ERROR(comm.Barrier(kSoon));
      return first->Wait(kSoon);
    }
    ASSIGN_OR_RETURN(const auto second, comm.Receive(Buffer::Of(std::span(shorter)), peer, 2));
    RETURN_IF_ERROR(second->Wait(kSoon));
    RETURN_IF_ERROR(comm.Barrier(kSoon));
    ASSIGN_OR_RETURN(const auto first, comm.Receive(Buffer::Of(std::span(longer)), peer, 1));
    return first->Wait(kSoon);
  }));
}

TEST(TcpCommunicator, BothEndsOfALongMessageHearThatTheirBytesDiffer) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    std::vector<char> bytes((1 << 20) + comm.rank());
    const Buffer buffer = Buffer::Of(std::span(bytes));
    ASSIGN_OR_RETURN(const auto transfer,
                     comm.rank() == 0 ? comm.Send(buffer, 1, 0) : comm.Receive(buffer, 0, 0));
    const absl::Status status = transfer->Wait(kSoon);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(comm.rank() == 0 ? "the peer expects 1048577 B" : "the peer states 1048576 B"));
    return comm.Barrier(kSoon);
  }));
}

TEST(TcpCommunicator, APeerThatHasLeftIsLost) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    if (comm.rank() == 1) return absl::OkStatus();
    std::vector<char> bytes(1 << 20);
    const Buffer buffer = Buffer::Of(std::span(bytes));
    const auto got = comm.Receive(buffer, 1, 0);  // may know it already
    const absl::Status lost = got.ok() ? (*got)->Wait(kSoon) : got.status();
    EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(GetExitCode(lost), ExitCode::kPeerLost);
    EXPECT_THAT(std::string(lost.message()),
                AllOf(HasSubstr("Receive from rank 1 with tag 0"), HasSubstr("rank 1 (host "),
                      HasSubstr("it has left the job")));
    EXPECT_EQ(comm.Send(buffer, 1, 0).status().code(), absl::StatusCode::kUnavailable);
    return absl::OkStatus();
  }));
}

TEST(TcpCommunicator, MovesHostMemoryOnly) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) {
    Buffer buffer;
    buffer.device = {.kind = Device::Kind::kCuda, .index = 3};
    const absl::Status status = comm.Send(buffer, 1 - comm.rank(), 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  }));
}

TEST(TcpJob, LeavesTheStoreAsItWasForTheNextJob) {
  const auto store = std::make_shared<MemoryStore>();
  for (int job = 0; job < 2; ++job) {
    ExpectAllOk(StartAll(store, {{0, 3}, {1, 3}, {2, 3}}, Nothing));
    EXPECT_EQ(store->num_keys(), 0);
  }
}

TEST(TcpJob, ARankThatDoesNotComeIsNamedByAll) {
  const auto statuses = StartAll(std::make_shared<MemoryStore>(), {{0, 4}, {1, 4}, {3, 4}}, Nothing,
                                 absl::Milliseconds(700));
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("rank 2 of 4 did not come to here within 700ms"));
  ExpectAllSay(statuses, AllOf(HasSubstr(" did not come to here"), HasSubstr("within 700ms")));
}

// Rank 0 has connections to both by then, and must neither go on nor take the store away.
TEST(TcpJob, TwoRanksThatCannotConnectAreNamedByAllOthersToo) {
  ExpectAllSay(StartAll(std::make_shared<MemoryStore>(), {{0, 3}, {1, 3}, {2, 3, true}}, Nothing,
                        absl::Milliseconds(700)),
               AllOf(HasSubstr("rank 2 ("), HasSubstr("connect to rank 1 (")));
}

TEST(TcpJob, WithoutRankZeroTheOthersSayThatItDidNotCome) {
  ExpectAllSay(
      StartAll(std::make_shared<MemoryStore>(), {{1, 3}, {2, 3}}, Nothing, absl::Milliseconds(200)),
      HasSubstr("rank 0 did not come to here within 200ms"));
}

TEST(TcpJob, TwoProcessesOfOneRankAreNamedByAll) {
  ExpectAllSay(StartAll(std::make_shared<MemoryStore>(), {{0, 3}, {1, 3}, {1, 3}}, Nothing),
               AllOf(HasSubstr("two processes are rank 1: "), HasSubstr(" process ")));
}

TEST(TcpJob, AnotherNumberOfRanksIsNamedByAll) {
  ExpectAllSay(
      StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 3}}, Nothing),
      AllOf(HasSubstr("rank 1 ("), HasSubstr("was started as one of 3 ranks, rank 0 as one of 2")));
}

TEST(TcpJob, ALostStoreIsNamed) {
  const auto store = std::make_shared<MemoryStore>();
  store->Vanish();
  ExpectAllSay(StartAll(store, {{0, 2}}, Nothing), HasSubstr("the rendezvous at here is gone"));
}

TEST(TcpJob, AnInterfaceThatIsNotThereIsNamed) {
  ExpectAllSay(StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2}}, Nothing, kSoon, "nope0"),
               HasSubstr("no network interface nope0"));
}

}  // namespace
}  // namespace deepnet
