#include "tests/parallel/comm/communicator_contract.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/comm/agreement.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

// Nobody is meant to come within it: short, so that the tests are; no test fails if it is too
// short.
constexpr absl::Duration kInVain = absl::Milliseconds(10);
// Whoever comes at all comes within it, on a busy machine too.
constexpr absl::Duration kSoon = absl::Seconds(60);

template <typename T>
Buffer View(std::vector<T>& values) {
  return Buffer::Of(std::span(values));
}

// Bytes that tell one message from another.
Bytes Pattern(int64_t bytes, int salt) {
  std::mt19937 draw(salt);
  Bytes pattern(bytes);
  for (uint8_t& byte : pattern) byte = static_cast<uint8_t>(draw());
  return pattern;
}

std::unique_ptr<Transfer> Started(Communicator::TransferOr transfer) {
  EXPECT_TRUE(transfer.ok()) << transfer.status();
  return transfer.ok() ? std::move(*transfer) : nullptr;
}

void ExpectDone(Communicator::TransferOr transfer) {
  const auto started = Started(std::move(transfer));
  if (started == nullptr) return;
  const absl::Status status = started->Wait(kSoon);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(started->Done());
}

int Next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int Previous(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

// Everybody sends `bytes` to the next rank, and checks what comes from the previous one.
void ShiftAround(Communicator& comm, int64_t bytes, int tag) {
  Bytes out = Pattern(bytes, comm.rank());
  Bytes in(bytes);
  const auto got = Started(comm.Receive(View(in), Previous(comm), tag));
  const auto sent = Started(comm.Send(View(out), Next(comm), tag));
  ASSERT_TRUE(got != nullptr && sent != nullptr);
  EXPECT_TRUE(got->Wait(kSoon).ok());
  EXPECT_TRUE(sent->Wait(kSoon).ok());
  EXPECT_TRUE(in == Pattern(bytes, Previous(comm)));
}

void ARingShiftDeliversTheNeighboursBytes(Communicator& comm) {
  for (const int64_t bytes : {1, 7, 4096, 100000}) ShiftAround(comm, bytes, 3);
}

void EmptyMessagesArrive(Communicator& comm) { ShiftAround(comm, 0, 3); }

void LargeMessagesArriveWhole(Communicator& comm) { ShiftAround(comm, (9 << 20) + 3, 0); }

void TheLastTagIsAsGoodAsTheFirst(Communicator& comm) {
  ShiftAround(comm, 10, Communicator::kNumTags - 1);
}

void MessagesWithOneTagArriveInOrder(Communicator& comm) {
  constexpr int kCount = 20;
  std::vector<Bytes> out, in;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i = 0; i < kCount; ++i) {  // sizes on both sides of an eager limit
    out.push_back(Pattern(1 + i * 3001, comm.rank() * kCount + i));
    in.emplace_back(out.back().size());
  }
  for (Bytes& bytes : out) transfers.push_back(Started(comm.Send(View(bytes), Next(comm), 1)));
  for (Bytes& bytes : in)
    transfers.push_back(Started(comm.Receive(View(bytes), Previous(comm), 1)));
  for (auto& transfer : transfers) EXPECT_TRUE(transfer->Wait(kSoon).ok());
  for (int i = 0; i < kCount; ++i) {
    EXPECT_TRUE(in[i] == Pattern(1 + i * 3001, Previous(comm) * kCount + i)) << "message " << i;
  }
}

void MessagesWithDifferentTagsAreIndependent(Communicator& comm) {
  Bytes first = Pattern(50000, 1), second = Pattern(60, 2), in_first(50000), in_second(60);
  const auto sent_first = Started(comm.Send(View(first), Next(comm), 1));
  const auto sent_second = Started(comm.Send(View(second), Next(comm), 2));
  ExpectDone(comm.Receive(View(in_second), Previous(comm), 2));
  ExpectDone(comm.Receive(View(in_first), Previous(comm), 1));
  EXPECT_TRUE(sent_first->Wait(kSoon).ok());
  EXPECT_TRUE(sent_second->Wait(kSoon).ok());
  EXPECT_TRUE(in_first == first && in_second == second);
}

struct Message {
  int from, to, tag;
  int64_t bytes;
  int salt;
};

// The same list on every rank.
std::vector<Message> RandomTraffic(int num_ranks, int count, int seed) {
  std::mt19937 draw(seed);
  std::vector<Message> traffic;
  for (int i = 0; i < count; ++i) {
    const int from = static_cast<int>(draw() % num_ranks);
    const int to = (from + 1 + static_cast<int>(draw() % (num_ranks - 1))) % num_ranks;
    const int64_t floor = int64_t{1} << (draw() % 19);
    const int64_t bytes = floor + static_cast<int64_t>(draw()) % floor;
    traffic.push_back({from, to, static_cast<int>(draw() % 3), bytes, i});
  }
  return traffic;
}

void TrafficPostedInAnyOrderArrives(Communicator& comm) {
  for (const int seed : {1, 2, 3}) {
    const std::vector<Message> traffic = RandomTraffic(comm.size(), 200, seed);
    // Sends in the list's order; receives too, or after them all, or before.
    std::vector<Bytes> memory(traffic.size());
    std::vector<std::unique_ptr<Transfer>> transfers;
    const auto post = [&](bool sends) {
      for (size_t i = 0; i < traffic.size(); ++i) {
        const auto& [from, to, tag, bytes, salt] = traffic[i];
        if ((sends ? from : to) != comm.rank()) continue;
        memory[i] = sends ? Pattern(bytes, salt) : Bytes(bytes);
        transfers.push_back(Started(sends ? comm.Send(View(memory[i]), to, tag)
                                          : comm.Receive(View(memory[i]), from, tag)));
      }
    };
    const bool sends_first = (comm.rank() + seed) % 2 == 0;
    post(sends_first);
    post(!sends_first);
    std::shuffle(transfers.begin(), transfers.end(), std::mt19937(seed));
    for (auto& transfer : transfers) EXPECT_TRUE(transfer->Wait(kSoon).ok());
    for (size_t i = 0; i < traffic.size(); ++i) {
      if (traffic[i].to != comm.rank()) continue;
      EXPECT_TRUE(memory[i] == Pattern(traffic[i].bytes, traffic[i].salt)) << "message " << i;
    }
  }
}

void WaitingWithALimitCanBeRepeated(Communicator& comm) {
  Bytes out = {1, 2, 3}, in(3), go(1), heard(1);
  const auto got = Started(comm.Receive(View(in), Previous(comm), 5));
  EXPECT_FALSE(got->Done());
  for (int i = 0; i < 2; ++i) {
    const absl::Status late = got->Wait(kInVain);
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(late.message()),
                HasSubstr("Receive from rank " + std::to_string(Previous(comm)) + " with tag 5"));
  }
  // Whoever receives from here has seen both limits pass.
  const auto told = Started(comm.Send(View(go), Previous(comm), 6));
  ExpectDone(comm.Receive(View(heard), Next(comm), 6));
  const auto sent = Started(comm.Send(View(out), Next(comm), 5));
  EXPECT_TRUE(got->Wait(kSoon).ok());
  EXPECT_TRUE(got->Wait(kSoon).ok()) << "a result comes again when asked";
  EXPECT_TRUE(sent->Wait(kSoon).ok());
  EXPECT_TRUE(told->Wait(kSoon).ok());
  EXPECT_THAT(in, ElementsAre(1, 2, 3));
}

void ACollectiveWaitsForTheLastRank(Communicator& comm) {
  Bytes mine = {1}, here(comm.size()), go(1);
  std::vector<Buffer> all;
  for (uint8_t& byte : here) all.push_back(Buffer::Of(std::span(&byte, 1)));
  if (comm.rank() == 0) {
    for (int rank = 1; rank < comm.size(); ++rank) ExpectDone(comm.Receive(View(go), rank, 0));
    ExpectDone(comm.AllGather(View(mine), all));
    return;
  }
  const auto gathered = Started(comm.AllGather(View(mine), all));
  EXPECT_EQ(gathered->Wait(kInVain).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(gathered->Done());
  ExpectDone(comm.Send(View(go), 0, 0));
  EXPECT_TRUE(gathered->Wait(kSoon).ok());
  EXPECT_EQ(here, Bytes(comm.size(), 1));
}

// From rank a to rank b: nothing for one of the pairs, something long for another.
int64_t PairBytes(int from, int to) { return (from + 2 * to) % 4 * 7000; }

// Starts an all-to-all whose bytes are told apart by `salt`; Check() waits and compares.
class SomeAllToAll {
 public:
  SomeAllToAll(Communicator& comm, int salt) : comm_(comm), salt_(salt) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      out_.push_back(Pattern(PairBytes(comm.rank(), rank), Salt(comm.rank(), rank)));
      in_.emplace_back(PairBytes(rank, comm.rank()));
    }
    std::vector<Buffer> send, receive;
    for (Bytes& bytes : out_) send.push_back(View(bytes));
    for (Bytes& bytes : in_) receive.push_back(View(bytes));
    transfer_ = Started(comm.AllToAll(send, receive));
  }

  void Check() {
    const absl::Status status = transfer_->Wait(kSoon);
    EXPECT_TRUE(status.ok()) << status;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      EXPECT_TRUE(in_[rank] == Pattern(PairBytes(rank, comm_.rank()), Salt(rank, comm_.rank())))
          << "from rank " << rank << ", salt " << salt_;
    }
  }

 private:
  int Salt(int from, int to) const { return (salt_ * 64 + from) * 64 + to; }

  Communicator& comm_;
  const int salt_;
  std::vector<Bytes> out_, in_;
  std::unique_ptr<Transfer> transfer_;
};

void AllToAllTakesUnevenSizes(Communicator& comm) { SomeAllToAll(comm, 1).Check(); }

void CollectivesAndMessagesAtOnceDoNotMix(Communicator& comm) {
  SomeAllToAll first(comm, 1);
  SomeAllToAll second(comm, 2);
  ShiftAround(comm, 5000, 0);
  EXPECT_TRUE(comm.Barrier(kSoon).ok());
  second.Check();
  first.Check();
}

void AllGatherTakesUnevenSizesInPlace(Communicator& comm) {
  std::vector<Bytes> memory;
  std::vector<Buffer> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const int64_t bytes = rank * 5000;  // none of rank 0
    memory.push_back(rank == comm.rank() ? Pattern(bytes, rank) : Bytes(bytes));
  }
  for (Bytes& bytes : memory) all.push_back(View(bytes));
  ExpectDone(comm.AllGather(all[comm.rank()], all));
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_TRUE(memory[rank] == Pattern(rank * 5000, rank)) << "from rank " << rank;
  }
}

void TextsOfAnyLengthAreGathered(Communicator& comm) {
  const auto texts = AllGatherText(comm, std::string(comm.rank() * 3, 'x'));
  ASSERT_TRUE(texts.ok()) << texts.status();
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_EQ((*texts)[rank], std::string(rank * 3, 'x'));
  }
}

// Values of mixed size and sign: almost every order of adding gives other bits.
template <typename T>
std::vector<T> Summands(size_t count, int rank) {
  std::mt19937 draw(rank + 1);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(std::ldexp(mantissa(draw), draw() % 20));
  return values;
}

template <typename T>
std::vector<T> SumInRankOrder(size_t count, int num_ranks) {
  std::vector<T> sum = Summands<T>(count, 0);
  for (int rank = 1; rank < num_ranks; ++rank) {
    const std::vector<T> values = Summands<T>(count, rank);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

template <typename T>
void ExpectSums(Communicator& comm) {
  for (const size_t count : {0, 1, 3, 1000, 5003, 100000}) {
    std::vector<T> values = Summands<T>(count, comm.rank());
    const absl::Status status = comm.AllReduceSum(std::span(values), kSoon);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(values == SumInRankOrder<T>(count, comm.size())) << count << " values";
  }
}

void SumsAreTakenInRankOrder(Communicator& comm) {
  ExpectSums<float>(comm);
  ExpectSums<double>(comm);
}

void SplitOrdersItsGroupsByKey(Communicator& comm) {
  const int color = comm.rank() % 2;
  auto part = comm.Split(color, -comm.rank());  // the last rank first
  ASSERT_TRUE(part.ok()) << part.status();
  const int size = (comm.size() + 1 - color) / 2;
  EXPECT_EQ((*part)->size(), size);
  EXPECT_EQ((*part)->rank(), size - 1 - comm.rank() / 2);
  std::vector<float> ranks = {static_cast<float>(comm.rank())};
  EXPECT_TRUE((*part)->AllReduceSum(std::span(ranks), kSoon).ok());
  EXPECT_EQ(ranks[0], size * color + size * (size - 1));
}

void EqualKeysKeepTheOrderOfRanks(Communicator& comm) {
  const auto part = comm.Split(7, 0);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->rank(), comm.rank());
  EXPECT_EQ((*part)->size(), comm.size());
}

void WhoeverGivesNoColourIsInNoGroup(Communicator& comm) {
  const bool member = comm.rank() > 0;
  const auto part = comm.Split(member ? 0 : Communicator::kNoGroup, 0);
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_EQ(*part != nullptr, member);
  if (member) {
    EXPECT_EQ((*part)->rank(), comm.rank() - 1);
  }
}

void GroupsDoNotHearEachOther(Communicator& comm) {
  const auto twin = comm.Split(0, 0);
  ASSERT_TRUE(twin.ok()) << twin.status();
  Bytes outer = {1}, inner = {2}, in_outer(1), in_inner(1);
  const auto sent_outer = Started(comm.Send(View(outer), Next(comm), 4));
  const auto sent_inner = Started((*twin)->Send(View(inner), Next(comm), 4));
  ExpectDone((*twin)->Receive(View(in_inner), Previous(comm), 4));
  ExpectDone(comm.Receive(View(in_outer), Previous(comm), 4));
  EXPECT_TRUE(sent_outer->Wait(kSoon).ok());
  EXPECT_TRUE(sent_inner->Wait(kSoon).ok());
  EXPECT_THAT(in_outer, ElementsAre(1));
  EXPECT_THAT(in_inner, ElementsAre(2));
}

void AGroupCanBeSplitAgain(Communicator& comm) {
  const auto half = comm.Split(comm.rank() / 2, 0);
  ASSERT_TRUE(half.ok()) << half.status();
  const auto alone = (*half)->Split((*half)->rank(), 0);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ((*alone)->size(), 1);
  EXPECT_TRUE((*alone)->Barrier(kSoon).ok());
  EXPECT_TRUE((*half)->Barrier(kSoon).ok());
}

void ExpectMisuse(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

void MisuseIsRefusedAndHarmsNothing(Communicator& comm) {
  Bytes bytes(4);
  const Buffer buffer = View(bytes);
  ExpectMisuse(comm.Send(buffer, comm.rank(), 0).status(), "Send to rank");
  ExpectMisuse(comm.Receive(buffer, comm.size(), 0).status(), "Receive from rank");
  ExpectMisuse(comm.Receive(buffer, -1, 0).status(), "rank -1");
  ExpectMisuse(comm.Send(buffer, Next(comm), -1).status(), "tag -1");
  ExpectMisuse(comm.Send(buffer, Next(comm), Communicator::kNumTags).status(), "tag 32767");
  const std::vector<Buffer> too_many(comm.size() + 1, buffer);
  ExpectMisuse(comm.AllGather(buffer, too_many).status(), "AllGather");
  const std::vector<Buffer> right(comm.size(), buffer);
  const std::string counts =
      absl::StrCat("AllToAll: ", comm.size() + 1, " buffers in a group of ", comm.size());
  ExpectMisuse(comm.AllToAll(too_many, right).status(), counts);
  ExpectMisuse(comm.AllToAll(right, too_many).status(), counts);
  std::vector<Buffer> shorter = right;
  for (Buffer& part : shorter) part.bytes = 3;
  ExpectMisuse(comm.AllToAll(right, shorter).status(), "has 4 B to send and 3 B to receive");
  EXPECT_TRUE(comm.Barrier(kSoon).ok());
}

void AReceiverThatStatesMoreBytesIsTold(Communicator& comm) {
  Bytes out(4), in(6);
  const auto got = Started(comm.Receive(View(in), Previous(comm), 0));
  const auto sent = Started(comm.Send(View(out), Next(comm), 0));
  const absl::Status status = got->Wait(kSoon);
  ExpectMisuse(status, "Receive from rank");
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 B"));
  (void)sent->Wait(kSoon);  // only some backends tell the sender
}

#define CONTRACT_CASE(name) \
  ContractCase { #name, name }
constexpr ContractCase kCases[] = {
    CONTRACT_CASE(ARingShiftDeliversTheNeighboursBytes),
    CONTRACT_CASE(EmptyMessagesArrive),
    CONTRACT_CASE(LargeMessagesArriveWhole),
    CONTRACT_CASE(TheLastTagIsAsGoodAsTheFirst),
    CONTRACT_CASE(MessagesWithOneTagArriveInOrder),
    CONTRACT_CASE(MessagesWithDifferentTagsAreIndependent),
    CONTRACT_CASE(TrafficPostedInAnyOrderArrives),
    CONTRACT_CASE(WaitingWithALimitCanBeRepeated),
    CONTRACT_CASE(ACollectiveWaitsForTheLastRank),
    CONTRACT_CASE(AllToAllTakesUnevenSizes),
    CONTRACT_CASE(CollectivesAndMessagesAtOnceDoNotMix),
    CONTRACT_CASE(AllGatherTakesUnevenSizesInPlace),
    CONTRACT_CASE(TextsOfAnyLengthAreGathered),
    CONTRACT_CASE(SumsAreTakenInRankOrder),
    CONTRACT_CASE(SplitOrdersItsGroupsByKey),
    CONTRACT_CASE(EqualKeysKeepTheOrderOfRanks),
    CONTRACT_CASE(WhoeverGivesNoColourIsInNoGroup),
    CONTRACT_CASE(GroupsDoNotHearEachOther),
    CONTRACT_CASE(AGroupCanBeSplitAgain),
    CONTRACT_CASE(MisuseIsRefusedAndHarmsNothing),
    CONTRACT_CASE(AReceiverThatStatesMoreBytesIsTold),
};

}  // namespace

std::span<const ContractCase> ContractCases() { return kCases; }

}  // namespace deepnet
