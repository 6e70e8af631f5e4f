// Collectives over messages, and the blocking ones over AllToAll and AllGather: the same algorithm,
// and so the same bits, on every backend.
#include "parallel/comm/communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/utf8.h"

namespace deepnet {
namespace {

// Up to so many bytes per rank a sum is one exchange of everything instead of two of slices.
constexpr size_t kSmallBytes = 4096;

// Row r of `rows` (each as long as `values`) is rank r's part; values <- row 0 + row 1 + ...
template <typename T>
void SumRows(const std::vector<T>& rows, std::span<T> values) {
  const size_t width = values.size();
  std::copy_n(rows.begin(), width, values.begin());
  for (size_t at = width; at < rows.size(); at += width) {
    std::transform(values.begin(), values.end(), rows.begin() + at, values.begin(), std::plus());
  }
}

template <typename T>
std::vector<Buffer> Rows(std::vector<T>& rows, size_t width, int num_rows) {
  std::vector<Buffer> buffers;
  for (int row = 0; row < num_rows; ++row) {
    buffers.push_back(Buffer::Of(std::span(rows).subspan(row * width, width)));
  }
  return buffers;
}

template <typename T>
absl::Status SumSmall(Communicator& comm, std::span<T> values, absl::Duration limit) {
  std::vector<T> rows(values.size() * comm.size());
  RETURN_IF_ERROR(
      Finish(comm.AllGather(Buffer::Of(values), Rows(rows, values.size(), comm.size())), limit));
  SumRows(rows, values);
  return absl::OkStatus();
}

// Each rank sums one slice of the values, then the slices are gathered: every value travels twice,
// whatever the number of ranks.
template <typename T>
absl::Status SumBySlices(Communicator& comm, std::span<T> values, absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  const size_t size = comm.size();
  std::vector<Buffer> slices;
  std::span<T> mine;
  for (size_t rank = 0; rank < size; ++rank) {
    const size_t begin = values.size() * rank / size;
    const std::span<T> slice = values.subspan(begin, values.size() * (rank + 1) / size - begin);
    if (static_cast<int>(rank) == comm.rank()) mine = slice;
    slices.push_back(Buffer::Of(slice));
  }
  std::vector<T> rows(mine.size() * size);
  RETURN_IF_ERROR(Finish(comm.AllToAll(slices, Rows(rows, mine.size(), comm.size())), limit));
  SumRows(rows, mine);
  return Finish(comm.AllGather(Buffer::Of(mine), slices), deadline - absl::Now());
}

template <typename T>
absl::Status Sum(Communicator& comm, std::span<T> values, absl::Duration limit) {
  if (comm.size() == 1) return comm.Barrier(limit);
  return values.size_bytes() <= kSmallBytes ? SumSmall(comm, values, limit)
                                            : SumBySlices(comm, values, limit);
}

class JoinedTransfer final : public Transfer {
 public:
  JoinedTransfer(std::string name, std::vector<std::unique_ptr<Transfer>> parts)
      : name_(std::move(name)), parts_(std::move(parts)) {}

  absl::Status Wait(absl::Duration limit) override {
    const absl::Time deadline = absl::Now() + limit;
    for (; error_.ok() && num_finished_ < parts_.size(); ++num_finished_) {
      const absl::Status status = parts_[num_finished_]->Wait(deadline - absl::Now());
      if (absl::IsDeadlineExceeded(status)) return WithPrefix(name_, status);
      if (!status.ok()) error_ = WithPrefix(name_, status);
    }
    return error_;
  }

  bool Done() override {
    return !error_.ok() || std::all_of(parts_.begin() + num_finished_, parts_.end(),
                                       [](const auto& part) { return part->Done(); });
  }

 private:
  const std::string name_;
  const std::vector<std::unique_ptr<Transfer>> parts_;
  size_t num_finished_ = 0;  // of the first parts, without an error
  absl::Status error_;
};

}  // namespace

absl::Status Communicator::Connect(const Connections&, absl::Duration) { return absl::OkStatus(); }

Communicator::TransferOr Communicator::ReduceScatter(Buffer) {
  return absl::UnimplementedError("ReduceScatter: this communicator moves host memory only");
}

absl::Status Communicator::Barrier(absl::Duration limit) {
  std::vector<char> here(size() + 1);
  return Finish(AllGather(Buffer::Of(std::span(here).last(1)), Rows(here, 1, size())), limit);
}

absl::Status Communicator::AllReduceSum(std::span<float> values, absl::Duration limit) {
  return Sum(*this, values, limit);
}

absl::Status Communicator::AllReduceSum(std::span<double> values, absl::Duration limit) {
  return Sum(*this, values, limit);
}

absl::Status Finish(const Communicator::TransferOr& transfer, absl::Duration limit) {
  return transfer.ok() ? (*transfer)->Wait(limit) : transfer.status();
}

void EndJob(Communicator& comm, const absl::Status& status) {
  if (!absl::IsAborted(status)) {
    std::fprintf(stderr, "[%d/%d] error: %s\n", comm.rank(), comm.size(),
                 ShownLines(std::string(status.message())).c_str());
  }
  comm.Abort(static_cast<int>(GetExitCode(status)));
}

std::string MessageText(Communicator::Direction direction, int peer) {
  const bool sends = direction == Communicator::Direction::kSend;
  return absl::StrCat(sends ? "Send to rank " : "Receive from rank ", peer);
}

absl::Status CheckMessage(Communicator::Direction direction, const Communicator& comm, int peer,
                          int tag) {
  const bool good = peer >= 0 && peer < comm.size() && peer != comm.rank() && tag >= 0 &&
                    tag < Communicator::kNumTags;
  if (good) return absl::OkStatus();
  return InvalidArgument(MessageText(direction, peer), " with tag ", tag, ": this is rank ",
                         comm.rank(), " of ", comm.size(),
                         "; a peer is another of them, a tag less than ", Communicator::kNumTags);
}

std::unique_ptr<Transfer> JoinTransfers(std::string name,
                                        std::vector<std::unique_ptr<Transfer>> parts) {
  return std::make_unique<JoinedTransfer>(std::move(name), std::move(parts));
}

std::string MessageCommunicator::Message::Text() const {
  return absl::StrCat(MessageText(direction, peer), " with tag ", tag, ", ", buffer.bytes, " B");
}

Communicator::TransferOr MessageCommunicator::StartMessages(Direction direction,
                                                            std::span<const Buffer> buffers,
                                                            int peer, int tag) {
  std::vector<std::unique_ptr<Transfer>> parts;
  for (const Buffer& buffer : buffers) {
    RETURN_IF_ERROR(CheckMessage(direction, *this, peer, tag));
    ASSIGN_OR_RETURN(parts.emplace_back(), StartChecked({direction, buffer, peer, tag++}));
  }
  if (parts.size() == 1) return std::move(parts[0]);
  return JoinTransfers(direction == Direction::kSend ? "SendAll" : "ReceiveAll", std::move(parts));
}

Communicator::TransferOr MessageCommunicator::AllToAll(std::span<const Buffer> send,
                                                       std::span<const Buffer> receive) {
  return Exchange("AllToAll", send, receive);
}

Communicator::TransferOr MessageCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  return Exchange("AllGather", std::vector<Buffer>(size(), mine), all);
}

Communicator::TransferOr MessageCommunicator::StartChecked(const Message& message) {
  if (message.buffer.device.kind == Device::Kind::kHost) return Start(message);
  return InvalidArgument(message.sends() ? "Send of " : "Receive of ", message.buffer.bytes,
                         " B on accelerator ", message.buffer.device.index,
                         ": this communicator moves host memory only");
}

Communicator::TransferOr MessageCommunicator::Exchange(const char* call,
                                                       std::span<const Buffer> send,
                                                       std::span<const Buffer> receive) {
  RETURN_IF_ERROR(CheckAlive(call));
  for (const size_t count : {send.size(), receive.size()}) {
    if (count == static_cast<size_t>(size())) continue;
    return InvalidArgument(call, ": ", count, " buffers in a group of ", size());
  }
  const Buffer &from = send[rank()], &to = receive[rank()];
  if (from.bytes != to.bytes) {
    return InvalidArgument(call, ": the own part has ", from.bytes, " B to send and ", to.bytes,
                           " B to receive");
  }
  if (from.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes);
  std::vector<std::unique_ptr<Transfer>> parts;
  for (const auto direction : {Direction::kReceive, Direction::kSend}) {
    const bool sends = direction == Direction::kSend;
    for (int distance = 1; distance < size(); ++distance) {
      const int peer = (rank() + (sends ? distance : size() - distance)) % size();
      const Buffer& buffer = (sends ? send : receive)[peer];
      if (buffer.bytes == 0) continue;
      ASSIGN_OR_RETURN(parts.emplace_back(), StartChecked({direction, buffer, peer, kNumTags}));
    }
  }
  return JoinTransfers(call, std::move(parts));
}

absl::StatusOr<MessageCommunicator::Part> MessageCommunicator::AgreeOnPart(int color, int key,
                                                                           uint64_t number) {
  struct Wish {
    int color, key;
    uint64_t number;
  };
  ASSIGN_OR_RETURN(const std::vector<Wish> wishes, AllGatherValue(*this, Wish{color, key, number}));
  Part part;
  for (const Wish& wish : wishes) part.number = std::max(part.number, wish.number);
  if (color == kNoGroup) return part;
  for (int member = 0; member < size(); ++member) {
    if (wishes[member].color == color) part.members.push_back(member);
  }
  std::stable_sort(part.members.begin(), part.members.end(),
                   [&](int a, int b) { return wishes[a].key < wishes[b].key; });
  const auto self = std::find(part.members.begin(), part.members.end(), rank());
  part.rank = static_cast<int>(self - part.members.begin());
  return part;
}

absl::StatusOr<std::unique_ptr<Communicator>> SelfCommunicator::Split(int color, int) {
  if (color == kNoGroup) return nullptr;
  return std::make_unique<SelfCommunicator>();
}

// Never called: nobody is left when the own part is copied.
Communicator::TransferOr SelfCommunicator::Start(const Message&) {
  return absl::InternalError("a message in a group of 1");
}

}  // namespace deepnet
