#include "parallel/comm/links.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kReachTag = 0, kPingTag = 1, kRingTag = 2;
constexpr int kRoundTrips = 8;
constexpr int kPings = 20;
constexpr int kLongMessages = 3;
constexpr int64_t kScratchFloats = 8;  // of each rank, at least, for Connect

// Ends the job, since the transfers that are under way are going to be dropped.
absl::Status NoWay(Communicator& comm, const std::string& peers, absl::Duration limit) {
  absl::Status status = PreflightError(
      "rank ", comm.rank(), " (host ", HostName(), ") heard nothing from ", peers, " within ",
      absl::FormatDuration(limit), ": the way between them is cut, blocked or very slow");
  EndJob(comm, status);
  return status;
}

// Waits for a message of `peer`; the end of `limit` becomes an error that names it.
absl::Status WaitFor(Communicator& comm, const Communicator::TransferOr& transfer, int peer,
                     absl::Duration limit) {
  absl::Status status = Finish(transfer, limit);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return NoWay(comm, absl::StrCat("rank ", peer), limit);
}

// Returns the seconds from the start of a message of `question` until the peer's `answer` is here.
absl::StatusOr<double> Ask(Communicator& comm, int peer, const Buffer& question,
                           const Buffer& answer, absl::Duration limit) {
  const double start = SecondsNow();
  ASSIGN_OR_RETURN(const auto sent, comm.Send(question, peer, kPingTag));
  RETURN_IF_ERROR(WaitFor(comm, comm.Receive(answer, peer, kPingTag), peer, limit));
  const double seconds = SecondsNow() - start;
  RETURN_IF_ERROR(sent->Wait(limit));
  return seconds;
}

// One side of a clock comparison: rank 0 asks, the peer answers with its time.
absl::StatusOr<double> AskOffset(Communicator& comm, int peer, const std::function<double()>& clock,
                                 absl::Duration limit) {
  double shortest = std::numeric_limits<double>::infinity(), offset = 0.0;
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    double theirs = 0.0, asked = clock();
    ASSIGN_OR_RETURN(const double seconds, Ask(comm, peer, Buffer::Of(std::span(&asked, 1)),
                                               Buffer::Of(std::span(&theirs, 1)), limit));
    if (seconds >= shortest) continue;
    shortest = seconds;
    offset = theirs - (asked + seconds / 2);
  }
  return offset;
}

absl::Status AnswerOffset(Communicator& comm, const std::function<double()>& clock,
                          absl::Duration limit) {
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    double time = 0.0;
    const Buffer buffer = Buffer::Of(std::span(&time, 1));
    // The first question comes after rank 0 has asked all ranks before this one.
    const absl::Duration patience = limit * (trip == 0 ? comm.size() : 1);
    RETURN_IF_ERROR(WaitFor(comm, comm.Receive(buffer, 0, kPingTag), 0, patience));
    time = clock();
    RETURN_IF_ERROR(WaitFor(comm, comm.Send(buffer, 0, kPingTag), 0, limit));
  }
  return absl::OkStatus();
}

class HostLinkMemory final : public LinkMemory {
 public:
  explicit HostLinkMemory(int64_t floats) : values_(floats) {}
  Buffer buffer() override { return Buffer::Of(std::span(values_)); }
  void Write(std::span<const float> values) override {
    std::copy(values.begin(), values.end(), values_.begin());
  }
  void Read(std::span<float> values) override {
    std::copy_n(values_.begin(), values.size(), values.begin());
  }

 private:
  std::vector<float> values_;
};

// Deals `pairs` to rounds in which no rank stands twice: each goes into the first one with room.
std::vector<std::vector<std::pair<int, int>>> Rounds(std::span<const std::pair<int, int>> pairs) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  std::vector<std::set<int>> busy;
  for (const auto& pair : pairs) {
    size_t round = 0;
    while (round < busy.size() &&
           (busy[round].contains(pair.first) || busy[round].contains(pair.second))) {
      ++round;
    }
    if (round == busy.size()) {
      rounds.emplace_back();
      busy.emplace_back();
    }
    rounds[round].push_back(pair);
    busy[round].insert({pair.first, pair.second});
  }
  return rounds;
}

// The memory of one rank's measurements.
struct PingBuffers {
  Buffer small, large;
};

absl::StatusOr<LinkRate> MeasureOne(Communicator& comm, int peer, const PingBuffers& buffers,
                                    absl::Duration limit) {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  LinkRate rate{.from = comm.rank(), .to = peer, .latency_seconds = kForever};
  for (int i = 0; i < kPings; ++i) {
    ASSIGN_OR_RETURN(const double seconds, Ask(comm, peer, buffers.small, buffers.small, limit));
    rate.latency_seconds = std::min(rate.latency_seconds, seconds / 2);
  }
  double best = kForever;
  for (int i = 0; i < kLongMessages; ++i) {
    ASSIGN_OR_RETURN(const double seconds, Ask(comm, peer, buffers.large, buffers.small, limit));
    best = std::min(best, seconds);
  }
  rate.bytes_per_second =
      static_cast<double>(buffers.large.bytes) / std::max(best - rate.latency_seconds, 1e-9);
  return rate;
}

absl::Status AnswerPings(Communicator& comm, int peer, const PingBuffers& buffers,
                         absl::Duration limit) {
  for (int i = 0; i < kPings + kLongMessages; ++i) {
    const Buffer& question = i < kPings ? buffers.small : buffers.large;
    RETURN_IF_ERROR(WaitFor(comm, comm.Receive(question, peer, kPingTag), peer, limit));
    RETURN_IF_ERROR(WaitFor(comm, comm.Send(buffers.small, peer, kPingTag), peer, limit));
  }
  return absl::OkStatus();
}

// The number that rank `rank` sends in place `i`. Sums of them over 2,000 ranks are exact in
// float32, in any order.
float NumberOf(int rank, int64_t i) { return static_cast<float>((rank * 7919 + i * 31) % 8191); }

std::vector<float> NumbersOf(int rank, int64_t count, int64_t first = 0) {
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = NumberOf(rank, first + i);
  return numbers;
}

// The checks of one size, which it adds to `checks`.
class MessageCheck {
 public:
  MessageCheck(Communicator& comm, const LinkOptions& options, int64_t bytes,
               std::vector<LinkCheck>& checks)
      : comm_(comm),
        limit_(options.limit),
        block_(std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / comm.size())),
        bytes_(bytes),
        checks_(checks),
        mine_(options.memory(block_ * comm.size())),
        got_(options.memory(block_ * comm.size())) {}

  absl::Status Run() {
    const int next = (comm_.rank() + 1) % comm_.size();
    const int previous = (comm_.rank() + comm_.size() - 1) % comm_.size();
    Fill();
    auto received = comm_.Receive(got_->buffer(), previous, kRingTag);
    auto sent = comm_.Send(mine_->buffer(), next, kRingTag);
    RETURN_IF_ERROR(WaitFor(comm_, received, previous, limit_));
    RETURN_IF_ERROR(WaitFor(comm_, sent, next, limit_));
    Compare("ring", *got_, NumbersOf(previous, count()));
    Fill();
    RETURN_IF_ERROR(AwaitAll(comm_.AllGather(Blocks(*mine_).front(), Blocks(*got_))));
    Compare("all-gather", *got_, NumbersOfAll(0));
    Fill();
    RETURN_IF_ERROR(AwaitAll(comm_.AllToAll(Blocks(*mine_), Blocks(*got_))));
    Compare("all-to-all", *got_, NumbersOfAll(comm_.rank() * block_));
    return Sums();
  }

 private:
  int64_t count() const { return block_ * comm_.size(); }

  void Fill() {
    mine_->Write(NumbersOf(comm_.rank(), count()));
    got_->Write(std::vector<float>(count()));
  }
  // Returns a block of every rank's numbers, from `first` on.
  std::vector<float> NumbersOfAll(int64_t first) const {
    std::vector<float> numbers;
    for (int r = 0; r < comm_.size(); ++r) {
      const std::vector<float> theirs = NumbersOf(r, block_, first);
      numbers.insert(numbers.end(), theirs.begin(), theirs.end());
    }
    return numbers;
  }
  std::vector<Buffer> Blocks(LinkMemory& memory) const {
    const int64_t bytes = block_ * static_cast<int64_t>(sizeof(float));
    std::vector<Buffer> blocks;
    for (int r = 0; r < comm_.size(); ++r) {
      blocks.push_back(memory.buffer().Part(r * bytes, bytes));
    }
    return blocks;
  }
  // Counts the numbers of `memory`, from `first` on, that are not those expected.
  void Compare(const char* what, LinkMemory& memory, const std::vector<float>& expected,
               int64_t first = 0) {
    std::vector<float> got(count());
    memory.Read(got);
    int64_t wrong = 0;
    for (size_t i = 0; i < expected.size(); ++i) wrong += got[first + i] != expected[i];
    checks_.push_back({absl::StrCat(what, " of ", bytes_ >> 10, " KiB"), wrong});
  }
  absl::Status AwaitAll(const Communicator::TransferOr& transfer) {
    return WaitFor(comm_, transfer, (comm_.rank() + 1) % comm_.size(), limit_);
  }

  // ReduceScatter is of device memory only; hosts add up by AllReduceSum.
  absl::Status Sums() {
    const bool device = mine_->buffer().device.kind != Device::Kind::kHost;
    const int64_t first = device ? comm_.rank() * block_ : 0;
    std::vector<float> expected(device ? block_ : count());
    for (int r = 0; r < comm_.size(); ++r) {
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += NumberOf(r, first + i);
    }
    std::vector<float> numbers = NumbersOf(comm_.rank(), count());
    if (!device) RETURN_IF_ERROR(comm_.AllReduceSum(std::span(numbers), limit_));
    mine_->Write(numbers);
    if (device) RETURN_IF_ERROR(AwaitAll(comm_.ReduceScatter(mine_->buffer())));
    Compare(device ? "reduce-scatter" : "all-reduce", *mine_, expected, first);
    return absl::OkStatus();
  }

  Communicator& comm_;
  const absl::Duration limit_;
  const int64_t block_, bytes_;
  std::vector<LinkCheck>& checks_;
  const std::unique_ptr<LinkMemory> mine_, got_;
};

}  // namespace

absl::StatusOr<std::vector<double>> ClockOffsets(Communicator& comm,
                                                 const std::function<double()>& clock,
                                                 absl::Duration limit) {
  std::vector<double> offsets(comm.size());  // zeros but on rank 0
  if (comm.rank() > 0) RETURN_IF_ERROR(AnswerOffset(comm, clock, limit));
  for (int peer = 1; comm.rank() == 0 && peer < comm.size(); ++peer) {
    ASSIGN_OR_RETURN(offsets[peer], AskOffset(comm, peer, clock, limit));
  }
  RETURN_IF_ERROR(comm.AllReduceSum(std::span(offsets), limit * comm.size()));
  return offsets;
}

absl::Status CheckReachable(Communicator& comm, absl::Duration limit) {
  std::vector<int64_t> theirs(comm.size());
  int64_t mine = comm.rank();
  std::vector<std::pair<int, std::unique_ptr<Transfer>>> transfers;
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer == comm.rank()) continue;
    ASSIGN_OR_RETURN(transfers.emplace_back(peer, nullptr).second,
                     comm.Receive(Buffer::Of(std::span(&theirs[peer], 1)), peer, kReachTag));
    ASSIGN_OR_RETURN(transfers.emplace_back(peer, nullptr).second,
                     comm.Send(Buffer::Of(std::span(&mine, 1)), peer, kReachTag));
  }
  const double deadline = SecondsNow() + absl::ToDoubleSeconds(limit);
  std::set<int> silent;
  for (const auto& [peer, transfer] : transfers) {
    const double left = std::max(deadline - SecondsNow(), 0.001);
    const absl::Status status = transfer->Wait(absl::Seconds(left));
    const bool late = absl::IsDeadlineExceeded(status);
    if (late) silent.insert(peer);
    if (!late) RETURN_IF_ERROR(status);
  }
  if (silent.empty()) return absl::OkStatus();
  return NoWay(comm,
               absl::StrCat(silent.size() == 1 ? "rank " : "ranks ", absl::StrJoin(silent, ", ")),
               limit);
}

std::unique_ptr<LinkMemory> MakeHostLinkMemory(int64_t floats) {
  return std::make_unique<HostLinkMemory>(floats);
}

absl::Status ConnectLinks(Communicator& comm, std::span<const std::pair<int, int>> pairs,
                          const LinkOptions& options) {
  std::set<int> peers = {(comm.rank() + 1) % comm.size(),
                         (comm.rank() + comm.size() - 1) % comm.size()};
  for (const auto& [a, b] : pairs) {
    if (a == comm.rank()) peers.insert(b);
    if (b == comm.rank()) peers.insert(a);
  }
  peers.erase(comm.rank());
  const std::vector<int> list(peers.begin(), peers.end());
  int64_t floats = kScratchFloats * comm.size();
  for (const int64_t bytes : options.checked_bytes) {
    floats = std::max(floats, bytes / static_cast<int64_t>(sizeof(float)));
  }
  const auto scratch = options.memory(floats);
  return comm.Connect({.to = list,
                       .from = list,
                       .all_to_all = true,
                       .all_gather = true,
                       .reduce_scatter = true,
                       .scratch = scratch->buffer()},
                      options.limit * 6);
}

absl::StatusOr<std::vector<LinkRate>> MeasureLinks(Communicator& comm,
                                                   std::span<const std::pair<int, int>> pairs,
                                                   const LinkOptions& options) {
  const auto small = options.memory(2);
  const auto large = options.memory(options.rate_bytes / static_cast<int64_t>(sizeof(float)));
  const PingBuffers buffers{small->buffer(), large->buffer()};
  std::vector<double> figures(4 * pairs.size());  // latency and rate, both directions
  for (const auto& round : Rounds(pairs)) {
    RETURN_IF_ERROR(comm.Barrier(options.limit * 6));
    for (const auto& [a, b] : round) {
      if (comm.rank() != a && comm.rank() != b) continue;
      const size_t number = std::find(pairs.begin(), pairs.end(), std::pair(a, b)) - pairs.begin();
      for (const bool back : {false, true}) {
        if ((comm.rank() == a) == back) {
          RETURN_IF_ERROR(AnswerPings(comm, back ? b : a, buffers, options.limit));
          continue;
        }
        ASSIGN_OR_RETURN(const LinkRate rate,
                         MeasureOne(comm, back ? a : b, buffers, options.limit));
        figures[4 * number + 2 * back] = rate.latency_seconds;
        figures[4 * number + 2 * back + 1] = rate.bytes_per_second;
      }
    }
  }
  RETURN_IF_ERROR(comm.AllReduceSum(std::span(figures), options.limit * 6));
  std::vector<LinkRate> rates;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [a, b] = pairs[i];
    rates.push_back({a, b, figures[4 * i], figures[4 * i + 1]});
    rates.push_back({b, a, figures[4 * i + 2], figures[4 * i + 3]});
  }
  return rates;
}

absl::StatusOr<std::vector<LinkCheck>> CheckMessages(Communicator& comm,
                                                     const LinkOptions& options) {
  std::vector<LinkCheck> checks;
  if (comm.size() == 1) return checks;
  for (const int64_t bytes : options.checked_bytes) {
    RETURN_IF_ERROR(MessageCheck(comm, options, bytes, checks).Run());
  }
  return checks;
}

}  // namespace deepnet
