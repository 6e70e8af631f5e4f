// Ranks are threads here, each with connections of its own; tests/mpi has them as processes.
#include <ifaddrs.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <ranges>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/rendezvous.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/thread_limit.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kSoon = absl::Seconds(60);

// Words of what a rank says of itself: host, port, ..., the protocol, addresses, the proof.
constexpr int kPort = 2, kAddresses = 5;
constexpr char kSecret[] = "a secret of the tests";

int PortIn(const std::string& place) {
  int port = 0;
  const std::vector<std::string> words = absl::StrSplit(place, '\t');
  EXPECT_TRUE(absl::SimpleAtoi(words.at(kPort), &port)) << place;
  return port;
}

class MemoryStore final : public RendezvousStore {
 public:
  std::string Place() const override { return "here"; }
  absl::Status Set(const std::string& key, const std::string& value) override {
    if (key.starts_with("rank/") && on_place) {
      on_place(key.back() - '0', value.substr(value.find('\t') + 1));
    }
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

  // Called with a rank and what it says of itself, before others can read it.
  std::function<void(int, const std::string&)> on_place;

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

// Changes the list of all ranks' places that a rank reads before it connects.
using Edit = std::function<void(std::vector<std::string>&)>;

class EditedStore final : public RendezvousStore {
 public:
  EditedStore(std::shared_ptr<RendezvousStore> store, Edit edit)
      : store_(std::move(store)), edit_(std::move(edit)) {}

  std::string Place() const override { return store_->Place(); }
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration limit) override {
    ASSIGN_OR_RETURN(const std::string value, store_->Get(key, limit));
    if (key != "members") return value;
    std::vector<std::string> places = absl::StrSplit(value, '\n');
    edit_(places);
    return absl::StrJoin(places, "\n");
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    return store_->Add(key, amount);
  }
  absl::Status Delete(const std::string& key) override { return store_->Delete(key); }

 private:
  const std::shared_ptr<RendezvousStore> store_;
  const Edit edit_;
};

// Looks for rank 1 where rank 0 is.
void Mislead(std::vector<std::string>& places) {
  places[1] = ProvedPlace(1, places[0].substr(0, places[0].rfind('\t')), kSecret);
}

struct Process {
  int rank, size;
  Edit edit = nullptr;
  std::string secret = kSecret;
  std::string interface = {};  // instead of that of all
};

// Returns what MakeTcpCommunicator does in each of `processes`; `body` runs in those that are
// started.
std::vector<absl::Status> StartAll(const std::shared_ptr<MemoryStore>& store,
                                   const std::vector<Process>& processes,
                                   const std::function<absl::Status(Communicator&)>& body,
                                   absl::Duration limit = kSoon, const TcpOptions& more = {}) {
  std::vector<absl::Status> statuses(processes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < processes.size(); ++i) {
    threads.emplace_back([&, i] {
      std::shared_ptr<RendezvousStore> seen = store;
      if (processes[i].edit) seen = std::make_shared<EditedStore>(store, processes[i].edit);
      TcpOptions options = more;
      options.rank = processes[i].rank;
      options.size = processes[i].size;
      options.store = seen;
      options.limit = limit;
      options.secret = processes[i].secret;
      if (!processes[i].interface.empty()) options.interface = processes[i].interface;
      const auto job = MakeTcpCommunicator(options);
      statuses[i] = job.ok() ? body(**job) : job.status();
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
                  const ::testing::Matcher<std::string>& text) {
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
    EXPECT_THAT(std::string(status.message()), text);
  }
}

absl::Status Nothing(Communicator&) { return absl::OkStatus(); }

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Descriptor ConnectTo(int port) {
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(made.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return made;
}

void SendText(const Descriptor& socket, const std::string& text) {
  EXPECT_EQ(send(socket.fd(), text.data(), text.size(), MSG_NOSIGNAL), text.size());
}

// Returns what comes first, empty at the end of the connection.
std::string ReceiveText(const Descriptor& socket) {
  std::array<char, 4096> text;
  const ssize_t got = recv(socket.fd(), text.data(), text.size(), 0);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(got, 0))};
}

// The peer has closed it, or does within `limit`.
bool EndsWithin(const Descriptor& socket, absl::Duration limit) {
  pollfd entry = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) > 0 &&
         ReceiveText(socket).empty();
}

// Limits how many files the process may have open, while it lives.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit wanted = {.rlim_cur = std::min(limit, before_.rlim_max),
                           .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &wanted), 0);
  }
  ~OpenFileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFileLimit(const OpenFileLimit&) = delete;
  OpenFileLimit& operator=(const OpenFileLimit&) = delete;

 private:
  rlimit before_;
};

// The limit under which `count` more files can be opened.
rlim_t RoomFor(int count) {
  std::vector<Descriptor> opened;
  for (int i = 0; i <= count; ++i) opened.emplace_back(dup(STDIN_FILENO));
  return opened.back().fd();
}

// Connects to each of the job's ports as soon as it is known, before any rank can.
using Visit = std::function<void(int port, std::vector<Descriptor>& visitors)>;

void Idle(int port, std::vector<Descriptor>& visitors) {
  for (int i = 0; i < 400; ++i) visitors.push_back(ConnectTo(port));
}

void Scan(int port, std::vector<Descriptor>&) {
  for (int i = 0; i < 400; ++i) {
    const Descriptor socket = ConnectTo(port);
    const linger reset = {.l_onoff = i % 2, .l_linger = 0};
    setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
}

void Probe(int port, std::vector<Descriptor>& visitors) {
  for (int i = 0; i < 100; ++i) {
    visitors.push_back(ConnectTo(port));
    SendText(visitors.back(), "GET /healthz HTTP/1.1\r\n\r\n");
  }
}

void SayHalfAHello(int port, std::vector<Descriptor>& visitors) {
  for (int i = 0; i < 100; ++i) {
    visitors.push_back(ConnectTo(port));
    SendText(visitors.back(), std::string("deepnet3") + std::string(i % 24, '\0'));
    if (i % 2 == 1) shutdown(visitors.back().fd(), SHUT_WR);
  }
}

void SayNonsense(int port, std::vector<Descriptor>& visitors) {
  for (int i = 0; i < 100; ++i) {
    visitors.push_back(ConnectTo(port));
    SendText(visitors.back(), i % 2 == 1 ? std::string(1 << 16, static_cast<char>(i))
                                         : "deepnet3" + std::string(1 << 16, '\xff'));
  }
}

// Stands at a port before the called rank and hands on what its callers say.
class Relay {
 public:
  Relay() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_.fd(), any, length), 0);
    EXPECT_EQ(listen(listener_.fd(), 8), 0);
    EXPECT_EQ(getsockname(listener_.fd(), any, &length), 0);
    const timeval limit = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(listener_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    port_ = ntohs(address.sin_port);
  }

  // For a caller of rank 0.
  Edit Redirect() {
    return [this](std::vector<std::string>& places) {
      std::vector<std::string> words = absl::StrSplit(places[0], '\t');
      called_port_ = PortIn(places[0]);
      words.at(kPort) = absl::StrCat(port_);
      words.resize(kAddresses);
      words.push_back("127.0.0.1");
      places[0] = ProvedPlace(0, absl::StrJoin(words, "\t"), kSecret);
    };
  }

  Descriptor Accept() {
    return Descriptor(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  Descriptor Call() { return ConnectTo(called_port_); }

  // Until one side has closed, or `goes_on` is false before a text is handed on.
  static void Forward(
      const Descriptor& a, const Descriptor& b,
      const std::function<bool(const std::string&)>& goes_on = [](const std::string&) {
        return true;
      }) {
    while (a.fd() >= 0 && b.fd() >= 0) {
      std::array<pollfd, 2> entries = {pollfd{.fd = a.fd(), .events = POLLIN, .revents = 0},
                                       pollfd{.fd = b.fd(), .events = POLLIN, .revents = 0}};
      poll(entries.data(), entries.size(), -1);
      for (const int from : {0, 1}) {
        if (entries[from].revents == 0) continue;
        const std::string text = ReceiveText(from == 0 ? a : b);
        if (text.empty() || !goes_on(text)) return;
        SendText(from == 0 ? b : a, text);
      }
    }
  }

 private:
  const Descriptor listener_;
  int port_ = 0;
  std::atomic<int> called_port_ = 0;
};

class TcpContract : public ::testing::TestWithParam<std::tuple<int, ContractCase>> {};

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
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::ValuesIn(ContractCases().begin(),
                                                                ContractCases().end())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name +
                                  std::to_string(std::get<0>(info.param)) + "Ranks";
                         });

// A byte after a long message does not wait for its end: the long one is asked for last.
TEST(TcpCommunicator, AShortMessageOvertakesALongOne) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    std::vector<char> longer(20 << 20, static_cast<char>(1 - comm.rank())), shorter(1);
    const int peer = 1 - comm.rank();
    if (comm.rank() == 0) {
      ASSIGN_OR_RETURN(const auto first, comm.Send(Buffer::Of(std::span(longer)), peer, 1));
      ASSIGN_OR_RETURN(const auto second, comm.Send(Buffer::Of(std::span(shorter)), peer, 2));
      RETURN_IF_ERROR(second->Wait(kSoon));
      EXPECT_FALSE(first->Done());  // nobody has asked
      RETURN_IF_ERROR(comm.Barrier(kSoon));
      RETURN_IF_ERROR(first->Wait(kSoon));
      std::ranges::fill(longer, 0);  // it is gone, and the memory the caller's
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto second, comm.Receive(Buffer::Of(std::span(shorter)), peer, 2));
    RETURN_IF_ERROR(second->Wait(kSoon));
    RETURN_IF_ERROR(comm.Barrier(kSoon));
    ASSIGN_OR_RETURN(const auto first, comm.Receive(Buffer::Of(std::span(longer)), peer, 1));
    RETURN_IF_ERROR(first->Wait(kSoon));
    EXPECT_EQ(std::ranges::count(longer, 1), std::ssize(longer));
    return absl::OkStatus();
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

// Rank 0 knows already that rank 1 is lost when it asks for what had arrived before.
TEST(TcpCommunicator, WhatAPeerSentBeforeItLeftCanBeReceived) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    char byte = static_cast<char>(5 + comm.rank());
    const Buffer buffer = Buffer::Of(std::span(&byte, 1));
    if (comm.rank() == 1) {
      ASSIGN_OR_RETURN(const auto sent, comm.Send(buffer, 0, 7));
      return sent->Wait(kSoon);
    }
    const auto nothing = comm.Receive(buffer, 1, 8);
    EXPECT_FALSE(nothing.ok() && (*nothing)->Wait(kSoon).ok());
    ASSIGN_OR_RETURN(const auto got, comm.Receive(buffer, 1, 7));
    RETURN_IF_ERROR(got->Wait(kSoon));
    EXPECT_EQ(byte, 6);
    return absl::OkStatus();
  }));
}

// A byte through each, asked for in the other order.
TEST(TcpCommunicator, TwoGroupsOfTheSameRanksAreApart) {
  ExpectAllOk(RunTcpRanks(2, [](Communicator& comm) -> absl::Status {
    std::vector<std::unique_ptr<Communicator>> groups(2);
    for (auto& group : groups) {
      ASSIGN_OR_RETURN(group, comm.Split(0, comm.rank()));
    }
    char bytes[] = {5, 6};
    for (const int i : {0, 1}) {
      const int group = comm.rank() == 0 ? i : 1 - i;
      const Buffer buffer = Buffer::Of(std::span(&bytes[group], 1));
      ASSIGN_OR_RETURN(const auto moved, comm.rank() == 0 ? groups[group]->Send(buffer, 1, 3)
                                                          : groups[group]->Receive(buffer, 0, 3));
      RETURN_IF_ERROR(moved->Wait(kSoon));
    }
    EXPECT_EQ(bytes[0], 5);
    EXPECT_EQ(bytes[1], 6);
    return comm.Barrier(kSoon);
  }));
}

// Ranks 0 and 1 have made a group more than rank 2 when all make one.
TEST(TcpCommunicator, AGroupHasOneNumberThoughItsRanksHaveMadeOthers) {
  ExpectAllOk(RunTcpRanks(3, [](Communicator& comm) -> absl::Status {
    ASSIGN_OR_RETURN(const auto pair, comm.Split(comm.rank() < 2 ? 0 : Communicator::kNoGroup, 0));
    if (pair != nullptr) RETURN_IF_ERROR(pair->Split(0, 0).status());
    ASSIGN_OR_RETURN(const auto all, comm.Split(0, comm.rank()));
    return all->Barrier(absl::Seconds(20));
  }));
}

// Ends the process of a death test, whose failures nobody sees otherwise.
void Must(bool good, int code) {
  if (!good) _exit(code);
}

// Rank 0 drops a receive and a send; what comes for them later touches no memory of theirs. The
// receive that it keeps shows that rank 1's messages have been looked at.
void GiveUpBoth() {
  std::promise<void> given_up, looked_at;
  RunTcpRanks(2, [&](Communicator& comm) -> absl::Status {
    char byte = static_cast<char>(5 * comm.rank()), last = byte;
    std::vector<char> longer(1 << 20);
    const Buffer short_one = Buffer::Of(std::span(&byte, 1)),
                 long_one = Buffer::Of(std::span(longer));
    const Buffer last_one = Buffer::Of(std::span(&last, 1));
    if (comm.rank() == 1) {
      given_up.get_future().wait();
      ASSIGN_OR_RETURN(const auto got, comm.Receive(long_one, 0, 8));
      ASSIGN_OR_RETURN(const auto sent, comm.Send(short_one, 0, 7));
      ASSIGN_OR_RETURN(const auto sent_last, comm.Send(last_one, 0, 9));
      looked_at.get_future().wait();
      Must(absl::IsDeadlineExceeded(got->Wait(absl::Milliseconds(50))), 101);
      return comm.Barrier(kSoon);
    }
    ASSIGN_OR_RETURN(const auto kept, comm.Receive(last_one, 1, 9));
    {
      const auto dropped_receive = comm.Receive(short_one, 1, 7);
      const auto dropped_send = comm.Send(long_one, 1, 8);
      Must(dropped_receive.ok() && dropped_send.ok(), 102);
    }
    given_up.set_value();
    Must(kept->Wait(kSoon).ok() && last == 5 && byte == 0, 104);
    looked_at.set_value();
    absl::SleepFor(absl::Milliseconds(100));
    std::fprintf(stderr, "%s; %s\n", comm.Send(long_one, 1, 1).status().ToString().c_str(),
                 comm.Barrier(kSoon).ToString().c_str());
    return absl::OkStatus();
  });
}

TEST(TcpCommunicatorDeathTest, ARankThatGivesATransferUpSaysSoAndEndsTheJob) {
  const std::string said = "ABORTED: this rank gave up Send to rank 1 with tag 8, 1048576 B";
  EXPECT_EXIT(GiveUpBoth(), ::testing::ExitedWithCode(1), said + "; " + said);
}

// Rank 1 gives up what the system does not take, the first of it half sent: the peer has been told
// of it. Its memory is another's then.
void GiveUpTheQueue() {
  constexpr int kMessages = 512;  // of 32 MiB
  Relay relay;
  std::atomic<bool> full = false;
  std::promise<void> given_up, received;
  std::thread relaying([&] {
    const Descriptor caller = relay.Accept(), called = relay.Call();
    Relay::Forward(caller, called, [&](const std::string&) {
      if (full.exchange(false)) given_up.get_future().wait();
      return true;
    });
  });
  const auto content = [](int i) { return static_cast<char>(1 + i % 100); };
  std::vector<std::vector<char>> messages(kMessages, std::vector<char>(64 << 10));
  StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
           [&](Communicator& comm) -> absl::Status {
             if (comm.rank() == 1) {
               for (int i = 0; i < kMessages; ++i) std::ranges::fill(messages[i], content(i));
               std::vector<std::unique_ptr<Transfer>> sent(kMessages);
               full = true;
               for (int i = 0; i < kMessages; ++i) {
                 ASSIGN_OR_RETURN(sent[i], comm.Send(Buffer::Of(std::span(messages[i])), 0, 2));
               }
               Must(!sent.back()->Done(), 101);
               sent.clear();
               for (std::vector<char>& message : messages) std::ranges::fill(message, 0);
               given_up.set_value();
               received.get_future().wait();
               return absl::OkStatus();
             }
             std::vector<char> got(64 << 10);
             for (int i = 0; i < kMessages; ++i) {
               ASSIGN_OR_RETURN(const auto receive, comm.Receive(Buffer::Of(std::span(got)), 1, 2));
               Must(receive->Wait(absl::Seconds(20)).ok(), 102);
               Must(std::ranges::count(got, content(i)) == std::ssize(got), 103);
             }
             std::fprintf(stderr, "all came\n");
             received.set_value();
             return comm.Barrier(kSoon);
           });
}

TEST(TcpCommunicatorDeathTest, WhatAPeerWasToldOfComesWholeThoughItIsGivenUp) {
  EXPECT_EXIT(GiveUpTheQueue(), ::testing::ExitedWithCode(1), "all came");
}

// Rank 0 gives up a long message in the middle of a piece: the rest touches its memory no more.
void GiveUpAPiece() {
  Relay relay;
  std::promise<void> given_up;
  std::thread relaying([&, moved = size_t{0}, waited = false]() mutable {
    const Descriptor caller = relay.Accept(), called = relay.Call();
    Relay::Forward(caller, called, [&](const std::string& text) {
      moved += text.size();
      if (moved > (3 << 19) && !std::exchange(waited, true)) given_up.get_future().wait();
      return true;
    });
  });
  StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
           [&](Communicator& comm) -> absl::Status {
             std::vector<char> longer(4 << 20, static_cast<char>(comm.rank()));
             char byte = 0;
             const Buffer long_one = Buffer::Of(std::span(longer));
             const Buffer short_one = Buffer::Of(std::span(&byte, 1));
             if (comm.rank() == 1) {
               ASSIGN_OR_RETURN(const auto sent, comm.Send(long_one, 0, 7));
               RETURN_IF_ERROR(sent->Wait(kSoon));
               ASSIGN_OR_RETURN(const auto last, comm.Send(short_one, 0, 9));
               RETURN_IF_ERROR(last->Wait(kSoon));
               return comm.Barrier(kSoon);
             }
             ASSIGN_OR_RETURN(const auto kept, comm.Receive(short_one, 1, 9));
             {
               const auto dropped = comm.Receive(long_one, 1, 7);
               const std::atomic_ref early(longer[(3 << 19) - (16 << 10)]);
               while (early == 0) absl::SleepFor(absl::Milliseconds(1));
               Must(dropped.ok(), 101);
             }
             std::ranges::fill(longer, 0);
             given_up.set_value();
             Must(kept->Wait(absl::Seconds(20)).ok(), 102);
             Must(std::ranges::count(longer, 0) == std::ssize(longer), 103);
             std::fprintf(stderr, "untouched\n");
             return absl::OkStatus();
           });
}

TEST(TcpCommunicatorDeathTest, ALongMessageThatIsGivenUpTouchesItsMemoryNoMore) {
  EXPECT_EXIT(GiveUpAPiece(), ::testing::ExitedWithCode(1), "untouched");
}

// Rank 0 was told of a long message, and asks for it when it knows that rank 1 is gone.
TEST(TcpCommunicator, WhatAPeerOnlyToldOfIsLostWithIt) {
  Relay relay;
  std::atomic<bool> told = false;
  std::thread relaying([&] {
    const Descriptor caller = relay.Accept(), called = relay.Call();
    Relay::Forward(caller, called, [&](const std::string&) { return !told; });
  });
  const auto statuses =
      StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
               [&](Communicator& comm) -> absl::Status {
                 std::vector<char> longer(1 << 20);
                 char byte = 0;
                 const Buffer long_one = Buffer::Of(std::span(longer));
                 const Buffer short_one = Buffer::Of(std::span(&byte, 1));
                 if (comm.rank() == 1) {
                   ASSIGN_OR_RETURN(const auto sent, comm.Send(long_one, 0, 7));
                   ASSIGN_OR_RETURN(const auto last, comm.Send(short_one, 0, 9));
                   return sent->Wait(kSoon);
                 }
                 ASSIGN_OR_RETURN(const auto heard, comm.Receive(short_one, 1, 9));
                 RETURN_IF_ERROR(heard->Wait(kSoon));
                 told = true;
                 ASSIGN_OR_RETURN(const auto nothing, comm.Receive(short_one, 1, 8));
                 ASSIGN_OR_RETURN(const auto sent, comm.Send(short_one, 1, 8));
                 EXPECT_FALSE(nothing->Wait(kSoon).ok());
                 const auto got = comm.Receive(long_one, 1, 7);
                 return got.ok() ? (*got)->Wait(absl::Seconds(5)) : got.status();
               });
  relaying.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPeerLost) << status;
  }
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

TEST(TcpJob, DoesNotStartWithoutAThread) {
  const auto store = std::make_shared<MemoryStore>();
  const testing::ThreadLimit none(0);
  const auto job = MakeTcpCommunicator({.rank = 0, .size = 1, .store = store});
  EXPECT_EQ(GetExitCode(job.status()), ExitCode::kDoesNotFit) << job.status();
}

// Each that waits for a second says once for whom; one that came late may have waited for less.
TEST(TcpJob, ARankThatDoesNotComeIsNamedByAll) {
  std::mutex mutex;
  std::vector<std::string> said;
  TcpOptions options;
  options.say = [&](const std::string& whom) {
    const std::lock_guard lock(mutex);
    said.push_back(whom);
  };
  const auto statuses = StartAll(std::make_shared<MemoryStore>(), {{0, 4}, {1, 4}, {3, 4}}, Nothing,
                                 absl::Milliseconds(1600), options);
  ExpectAllSay(statuses, HasSubstr("rank 2 of 4 did not come to here within 1.6s"));
  const std::string others = "the others, as rank 0 does at here";
  EXPECT_THAT(said, ::testing::IsSubsetOf({std::string("rank 2 of 4 at here"), others, others}));
  EXPECT_THAT(said, ::testing::Contains("rank 2 of 4 at here"));
}

// The store goes with rank 0.
TEST(TcpJob, RankZeroStaysUntilAllHaveHeardOfAnError) {
  const auto store = std::make_shared<MemoryStore>();
  const auto join = [&](int rank) {
    const auto job = MakeTcpCommunicator({.rank = rank,
                                          .size = 3,
                                          .store = store,
                                          .limit = absl::Milliseconds(200),
                                          .secret = kSecret});
    EXPECT_FALSE(job.ok());
  };
  std::thread other([&] { join(1); });
  while (*store->Add("came", 0) == 0) absl::SleepFor(absl::Milliseconds(1));
  join(0);
  EXPECT_EQ(*store->Add("heard", 0), 2);
  other.join();
}

TEST(TcpJob, OfManyRanksThatDoNotComeTheFirstEightAreNamed) {
  const auto statuses =
      StartAll(std::make_shared<MemoryStore>(), {{0, 12}}, Nothing, absl::Milliseconds(300));
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("ranks 1, 2, 3, 4, 5, 6, 7, 8, ... of 12 did not come to here"));
}

// Rank 0 has connections to both by then, and must neither go on nor take the store away.
TEST(TcpJob, TwoRanksThatCannotConnectAreNamedByAllOthersToo) {
  ExpectAllSay(StartAll(std::make_shared<MemoryStore>(), {{0, 3}, {1, 3}, {2, 3, Mislead}}, Nothing,
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

// A caller with an older build's text, and a called rank with one.
TEST(TcpJob, ARankOfABuildThatConnectsOtherwiseIsNamed) {
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_TRUE(store->Set("rank/1", "2\th3 process 77\th3\t41233\t5\t127.0.0.1").ok());
  ExpectAllSay(StartAll(store, {{0, 2}}, Nothing, absl::Seconds(5)),
               HasSubstr("rank 1 (h3 process 77) runs another build, which does not connect by"));
  const auto other = std::make_shared<MemoryStore>();
  const Edit first = [](std::vector<std::string>& places) {
    places[0] = "h1 process 7\th1\t41233\t5\tdeepnet4\t127.0.0.1\tits proof";
  };
  ExpectAllSay(StartAll(other, {{0, 2}, {1, 2, first}}, Nothing, absl::Seconds(5)),
               HasSubstr("rank 0 (h1 process 7) runs another build, which does not connect by"));
}

TEST(TcpJob, StrangersThatConnectHoldNobodyUp) {
  const OpenFileLimit limit(4096);
  const auto start = [](int num_ranks, const Visit& visit) {
    const auto store = std::make_shared<MemoryStore>();
    std::mutex mutex;
    std::vector<Descriptor> visitors;
    store->on_place = [&](int, const std::string& place) {
      const std::lock_guard lock(mutex);
      visit(PortIn(place), visitors);
    };
    std::vector<Process> processes;
    for (int rank = 0; rank < num_ranks; ++rank) processes.push_back({rank, num_ranks});
    const absl::Time began = absl::Now();
    ExpectAllOk(StartAll(store, processes, Nothing, absl::Seconds(10)));
    return absl::Now() - began;
  };
  const std::map<std::string, Visit> visits = {{"idle", Idle},
                                               {"a port scan", Scan},
                                               {"health probes", Probe},
                                               {"half a hello", SayHalfAHello},
                                               {"nonsense", SayNonsense}};
  for (const int num_ranks : {2, 4}) {
    const absl::Duration alone = start(num_ranks, [](int, std::vector<Descriptor>&) {});
    for (const auto& [name, visit] : visits) {
      ASSERT_LT(start(num_ranks, visit), alone + absl::Seconds(2)) << name << ", " << num_ranks;
    }
  }
}

// The visitors' bytes come one by one all the time that the ranks meet.
TEST(TcpJob, StrangersThatSpeakSlowlyHoldNobodyUp) {
  const auto store = std::make_shared<MemoryStore>();
  std::atomic<bool> joined = false;
  std::vector<std::thread> visitors;
  std::mutex mutex;
  store->on_place = [&](int, const std::string& place) {
    std::vector<Descriptor> sockets;
    for (int i = 0; i < 20; ++i) sockets.push_back(ConnectTo(PortIn(place)));
    const std::lock_guard lock(mutex);
    visitors.emplace_back([&joined, sockets = std::move(sockets)] {
      const std::string hello = std::string("deepnet3") + std::string(24, '\0');
      for (size_t i = 0; !joined; ++i) {
        const Descriptor& socket = sockets[i % sockets.size()];
        send(socket.fd(), &hello[i / sockets.size() % hello.size()], 1, MSG_NOSIGNAL);
        pollfd pause = {.fd = socket.fd(), .events = 0, .revents = 0};
        poll(&pause, 1, 1);
      }
    });
  };
  const absl::Time began = absl::Now();
  ExpectAllOk(StartAll(store, {{0, 3}, {1, 3}, {2, 3}}, Nothing));
  EXPECT_LT(absl::Now() - began, absl::Seconds(2));
  joined = true;
  for (std::thread& visitor : visitors) visitor.join();
}

// The connector has hung up by the time that rank 0 hears its first call.
TEST(TcpJob, ACallThatWasGivenUpDoesNotCount) {
  Relay relay;
  std::thread relaying([&] {
    {
      const Descriptor caller = relay.Accept(), called = relay.Call();
      SendText(called, ReceiveText(caller));
    }
    const Descriptor caller = relay.Accept(), called = relay.Call();
    Relay::Forward(caller, called);
  });
  ExpectAllOk(StartAll(
      std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
      [](Communicator& comm) { return comm.Barrier(kSoon); }, absl::Seconds(20)));
  relaying.join();
}

// Rank 0 has answered the second call when it hears the first.
TEST(TcpJob, AnOlderCallThatIsHeardLaterDoesNotReplaceTheNewer) {
  Relay relay;
  std::thread relaying([&] {
    Descriptor caller = relay.Accept();
    const std::string first = ReceiveText(caller);
    caller = Descriptor();
    caller = relay.Accept();
    const Descriptor called = relay.Call();
    SendText(called, ReceiveText(caller));
    const std::string answer = ReceiveText(called);
    const Descriptor late = relay.Call();
    SendText(late, first);
    EXPECT_TRUE(EndsWithin(late, kSoon));
    SendText(caller, answer);
    Relay::Forward(caller, called);
  });
  ExpectAllOk(StartAll(
      std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
      [](Communicator& comm) { return comm.Barrier(kSoon); }, absl::Seconds(20)));
  relaying.join();
}

// Hears what ranks refuse.
class Refusals {
 public:
  TcpOptions Options() {
    return {.refused = [this](const std::string& what) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(what);
    }};
  }
  std::vector<std::string> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> heard_;
};

constexpr char kRefusedHere[] =
    "a connection from ::ffff:127.0.0.1 was refused: it does not know this job's secret";

TEST(TcpJob, WhoDoesNotKnowTheSecretTakesNoRanksPlace) {
  Relay relay;
  Refusals refusals;
  std::thread relaying([&] {
    Descriptor caller = relay.Accept();
    Descriptor called = relay.Call();
    const std::string hello = ReceiveText(caller);
    SendText(called, hello.substr(0, hello.size() - 1) + static_cast<char>(hello.back() ^ 1));
    EXPECT_TRUE(EndsWithin(called, absl::Seconds(3)));
    called = relay.Call();
    SendText(called, hello);
    const std::string answer = ReceiveText(called);
    SendText(caller, answer.substr(0, answer.size() - 1) + static_cast<char>(answer.back() ^ 1));
    EXPECT_TRUE(EndsWithin(caller, absl::Seconds(3)));
    caller = relay.Accept();
    called = relay.Call();
    Relay::Forward(caller, called);
  });
  ExpectAllOk(StartAll(
      std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
      [](Communicator& comm) { return comm.Barrier(kSoon); }, kSoon, refusals.Options()));
  relaying.join();
  EXPECT_THAT(refusals.heard(), ElementsAre(kRefusedHere));
}

// The relay says again what rank 1 said on another connection.
TEST(TcpJob, WhatWasOverheardProvesNothing) {
  Relay relay;
  Refusals refusals;
  std::thread relaying([&] {
    const Descriptor caller = relay.Accept(), called = relay.Call(), again = relay.Call();
    const std::string hello = ReceiveText(caller);
    SendText(called, hello);
    SendText(caller, ReceiveText(called));
    const std::string confirmation = ReceiveText(caller);
    SendText(again, hello);
    ReceiveText(again);
    SendText(again, confirmation);
    EXPECT_TRUE(EndsWithin(again, kSoon));
  });
  const auto statuses =
      StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}}, Nothing,
               absl::Seconds(1), refusals.Options());
  relaying.join();
  EXPECT_EQ(GetExitCode(statuses[0]), ExitCode::kPreflight) << statuses[0];
  EXPECT_THAT(refusals.heard(), ElementsAre(kRefusedHere));
}

// Frames of 32 bytes: kind, tag, group, id, bytes. Rank 0 writes them to itself in rank 1's name.
TEST(TcpJob, ARankThatSendsWhatIsNoMessageIsLost) {
  struct Frame {
    uint32_t kind;
    int32_t tag = 0;
    uint64_t group = 0, id = 0;
    int64_t bytes = 0;
  };
  constexpr uint32_t kEager = 1, kOffer = 2, kPiece = 5;
  const std::vector<std::vector<Frame>> cases = {
      {{.kind = 0}},
      {{.kind = 8}},
      {{.kind = kEager, .bytes = -1}},
      {{.kind = kEager, .bytes = (1 << 20) + 1}},
      {{.kind = kPiece, .id = 77, .bytes = (1 << 20) + 1}},
      {{.kind = kOffer, .id = 77, .bytes = 1}, {.kind = kPiece, .id = 77, .bytes = 2}}};
  for (const std::vector<Frame>& frames : cases) {
    Relay relay;
    std::promise<const Descriptor*> connection;
    std::thread relaying([&] {
      const Descriptor caller = relay.Accept(), called = relay.Call();
      connection.set_value(&called);
      Relay::Forward(caller, called);
    });
    const auto statuses = StartAll(
        std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
        [&](Communicator& comm) -> absl::Status {
          char byte = 0;
          ASSIGN_OR_RETURN(const auto got,
                           comm.Receive(Buffer::Of(std::span(&byte, 1)), 1 - comm.rank(), 0));
          if (comm.rank() == 0) {
            SendText(*connection.get_future().get(),
                     {reinterpret_cast<const char*>(frames.data()), frames.size() * sizeof(Frame)});
          }
          return got->Wait(kSoon);
        });
    relaying.join();
    for (const int rank : {0, 1}) {
      EXPECT_EQ(GetExitCode(statuses[rank]), ExitCode::kPeerLost) << statuses[rank];
      EXPECT_THAT(std::string(statuses[rank].message()),
                  HasSubstr(rank == 0 ? "is lost: it sent what is no message"
                                      : "is lost: its process has ended"))
          << frames.back().kind;
    }
  }
}

// Rank 0 hears of it from rank 1, and rank 1, which has said nothing, from rank 0.
void HandOnAnEnd() {
  struct {
    uint32_t kind = 6;
    int32_t code = 42;
    uint64_t group = 0, rank = 1;
    int64_t bytes = 0;
  } frame;
  Relay relay;
  std::promise<const Descriptor*> connection;
  std::thread relaying([&] {
    const Descriptor caller = relay.Accept(), called = relay.Call();
    connection.set_value(&called);
    Relay::Forward(caller, called);
    absl::SleepFor(kSoon);  // rank 0 would end the process when it sees the connection close
  });
  StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, relay.Redirect()}},
           [&](Communicator& comm) {
             if (comm.rank() == 0) {
               SendText(*connection.get_future().get(),
                        {reinterpret_cast<const char*>(&frame), sizeof(frame)});
             }
             char byte = 0;
             const auto never = comm.Receive(Buffer::Of(std::span(&byte, 1)), 1 - comm.rank(), 3);
             return never.ok() ? (*never)->Wait(kSoon) : never.status();
           });
}

TEST(TcpCommunicatorDeathTest, WhoEndedTheJobIsSaidByAll) {
  EXPECT_EXIT(HandOnAnEnd(), ::testing::ExitedWithCode(42),
              "1/2. rank 1 .host [^ ]*. ended the job with exit code 42");
}

// 80 bytes that begin as ranks do.
TEST(TcpJob, AFewOfTheStrangersThatAreRefusedAreNamed) {
  const auto store = std::make_shared<MemoryStore>();
  Refusals refusals;
  std::vector<Descriptor> strangers;
  store->on_place = [&](int rank, const std::string& place) {
    for (int i = 0; i < 12 && rank == 0; ++i) {
      SendText(strangers.emplace_back(ConnectTo(PortIn(place))), "deepnet3" + std::string(72, 'x'));
    }
  };
  const Edit wait = [&](std::vector<std::string>&) {
    for (const Descriptor& stranger : strangers) EXPECT_TRUE(EndsWithin(stranger, kSoon));
  };
  ExpectAllOk(StartAll(store, {{0, 2}, {1, 2, wait}}, Nothing, kSoon, refusals.Options()));
  EXPECT_THAT(refusals.heard(), AllOf(SizeIs(8), Each(kRefusedHere)));
}

TEST(TcpJob, ARankWithAnotherSecretIsNamed) {
  ExpectAllSay(
      StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, nullptr, "another"}}, Nothing),
      AllOf(HasSubstr("has another job secret than "), HasSubstr("set DEEPNET_JOB_SECRET")));
}

TEST(TcpJob, RanksAreCalledAtTheirOtherAddressesTooAndAtLoopbackLast) {
  const auto is_loopback = [](const std::string& address) {
    return address.starts_with("127.") || address == "::1";
  };
  const Edit first_is_bad = [&](std::vector<std::string>& places) {
    std::vector<std::string> words = absl::StrSplit(places[0], '\t');
    words.pop_back();  // the proof
    const auto addresses = std::ranges::subrange(words.begin() + kAddresses, words.end());
    EXPECT_TRUE(std::ranges::is_partitioned(addresses, std::not_fn(is_loopback))) << places[0];
    words.insert(words.begin() + kAddresses, "no-address");
    places[0] = ProvedPlace(0, absl::StrJoin(words, "\t"), kSecret);
  };
  ExpectAllOk(StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, first_is_bad}}, Nothing,
                       absl::Seconds(5)));
}

TEST(TcpJob, APlaceThatIsNotTheRanksOwnIsNotCalled) {
  const Edit elsewhere = [](std::vector<std::string>& places) {
    std::vector<std::string> words = absl::StrSplit(places[0], '\t');
    words[kAddresses] = "127.0.0.2";
    places[0] = absl::StrJoin(words, "\t");
  };
  const Edit another = [](std::vector<std::string>& places) { places[0] = places[1]; };
  const absl::Time began = absl::Now();
  for (const Edit& edit : {elsewhere, another}) {
    ExpectAllSay(StartAll(std::make_shared<MemoryStore>(), {{0, 2}, {1, 2, edit}}, Nothing),
                 AllOf(HasSubstr("rank 0 ("), HasSubstr("has another job secret than ")));
  }
  EXPECT_LT(absl::Now() - began, kSoon / 2);  // rank 0, which waits for a call, hears of it
}

// All of 127/8 leads to this host: to the loopback interface, whose own address is 127.0.0.1.
TEST(TcpJob, OnlyTheJobsInterfaceIsListenedTo) {
  const auto is_heard = [](const TcpOptions& options) {
    const auto store = std::make_shared<MemoryStore>();
    std::atomic<int> heard = 0;
    store->on_place = [&](int, const std::string& place) {
      const Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = Loopback(PortIn(place));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
      heard +=
          connect(made.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    };
    ExpectAllOk(StartAll(store, {{0, 2}, {1, 2}}, Nothing, kSoon, options));
    return heard.load();
  };
  EXPECT_EQ(is_heard({}), 2);
  EXPECT_EQ(is_heard({.interface = "lo"}), 0);
  EXPECT_EQ(is_heard({.toward = "localhost"}), 0);
  EXPECT_EQ(is_heard({.toward = "127.0.0.1"}), 0);
  // The interface that was named is the one, also for ranks that meet at localhost.
  ifaddrs* list = nullptr;
  ASSERT_EQ(getifaddrs(&list), 0);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const bool up = (at->ifa_flags & IFF_UP) != 0 && at->ifa_addr != nullptr;
    if (!up || at->ifa_addr->sa_family != AF_INET) continue;
    EXPECT_EQ(is_heard({.interface = at->ifa_name, .toward = "localhost"}), 0) << at->ifa_name;
  }
  freeifaddrs(list);
}

TEST(TcpJob, OfManyStrangersTheOldestAreSentAwayAndTheOthersSoon) {
  const OpenFileLimit limit(4096);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<Descriptor> visitors;
  store->on_place = [&](int rank, const std::string& place) {
    if (rank == 0) Idle(PortIn(place), visitors);
  };
  const Edit wait = [&](std::vector<std::string>&) {
    EXPECT_TRUE(EndsWithin(visitors[0], absl::Seconds(3)));  // they might stay for longer
    EXPECT_TRUE(EndsWithin(visitors[200], absl::Seconds(3)));
    EXPECT_FALSE(EndsWithin(visitors[399], absl::ZeroDuration()));
    EXPECT_TRUE(EndsWithin(visitors[399], absl::Seconds(20)));
  };
  ExpectAllOk(StartAll(store, {{0, 2}, {1, 2, wait}}, Nothing));
}

// The ranks share what may be open here: so little that strangers take it all.
TEST(TcpJob, StrangersThatTakeAllOpenFilesHoldNobodyUp) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::vector<Descriptor> visitors;
  std::unique_ptr<OpenFileLimit> limit;
  store->on_place = [&](int, const std::string& place) {
    const std::lock_guard lock(mutex);
    const bool last = !visitors.empty();
    for (int i = 0; i < 40; ++i) visitors.push_back(ConnectTo(PortIn(place)));
    if (last) limit = std::make_unique<OpenFileLimit>(RoomFor(6));
  };
  const auto connect = [&](int rank) {
    const auto mesh = ConnectAll({.rank = rank, .size = 2, .store = store, .limit = kSoon});
    EXPECT_TRUE(mesh.ok()) << mesh.status();
  };
  const absl::Time began = absl::Now();
  std::thread other([&] { connect(1); });
  connect(0);
  other.join();
  EXPECT_LT(absl::Now() - began, absl::Seconds(2));
}

TEST(TcpJob, ConnectionsSendAtOnceAndNoticeAHostThatIsGone) {
  const auto store = std::make_shared<MemoryStore>();
  const auto connect = [&](int rank) {
    const auto mesh = ConnectAll({.rank = rank, .size = 2, .store = store, .limit = kSoon});
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    struct Option {
      int level, name, wanted;
    };
    for (const auto& [level, name, wanted] :
         {Option{IPPROTO_TCP, TCP_NODELAY, 1}, Option{SOL_SOCKET, SO_KEEPALIVE, 1},
          Option{IPPROTO_TCP, TCP_KEEPIDLE, 30}, Option{IPPROTO_TCP, TCP_KEEPINTVL, 5},
          Option{IPPROTO_TCP, TCP_KEEPCNT, 3}}) {
      int value = 0;
      socklen_t length = sizeof(value);
      getsockopt(mesh->sockets[1 - rank].fd(), level, name, &value, &length);
      EXPECT_EQ(value, wanted) << name;
    }
  };
  std::thread other([&] { connect(1); });
  connect(0);
  other.join();
}

TEST(TcpJob, WithoutOpenFilesARankWaitsAsleepAndSaysSo) {
  const auto store = std::make_shared<MemoryStore>();
  const std::string place = "h3 process 77\th3\t41233\t5\tdeepnet3\t127.0.0.1";
  ASSERT_TRUE(store->Set("rank/1", absl::StrCat("2\t", ProvedPlace(1, place, ""))).ok());
  std::vector<Descriptor> visitors;
  std::unique_ptr<OpenFileLimit> limit;
  store->on_place = [&](int, const std::string& mine) {
    for (int i = 0; i < 40; ++i) visitors.push_back(ConnectTo(PortIn(mine)));
    limit = std::make_unique<OpenFileLimit>(RoomFor(0));
  };
  const std::clock_t began = std::clock();
  const auto mesh =
      ConnectAll({.rank = 0, .size = 2, .store = store, .limit = absl::Milliseconds(700)});
  limit.reset();
  EXPECT_LT(std::clock() - began, CLOCKS_PER_SEC * 3 / 10);
  EXPECT_THAT(std::string(mesh.status().message()),
              AllOf(HasSubstr("rank 1 (h3 process 77) did not connect to rank 0 ("),
                    HasSubstr("could not accept: Too many open files")));
}

TEST(TcpJob, ALostStoreIsNamed) {
  const auto store = std::make_shared<MemoryStore>();
  store->Vanish();
  ExpectAllSay(StartAll(store, {{0, 2}}, Nothing), HasSubstr("the rendezvous at here is gone"));
}

TEST(TcpJob, AnInterfaceThatIsNotThereIsNamed) {
  ExpectAllSay(StartAll(std::make_shared<MemoryStore>(),
                        {{0, 2}, {1, 2, nullptr, kSecret, "nope0"}}, Nothing),
               HasSubstr("no network interface nope0"));
}

}  // namespace
}  // namespace deepnet
