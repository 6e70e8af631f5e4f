// The blocking collectives, over AllToAll and AllGather: the same algorithm, and so the same bits,
// on every backend.
#include "parallel/comm/communicator.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/collectives.h"

namespace deepnet {
namespace {

// Up to so many bytes per rank a sum is one exchange of everything instead of two of slices.
constexpr size_t kSmallBytes = 4096;

template <typename T>
void AddInto(std::span<T> sum, const T* values) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

// Row r of `rows` (each as long as `values`) is rank r's part; values <- row 0 + row 1 + ...
template <typename T>
void SumRows(const std::vector<T>& rows, std::span<T> values) {
  const size_t width = values.size();
  std::copy_n(rows.begin(), width, values.begin());
  for (size_t at = width; at < rows.size(); at += width) AddInto(values, rows.data() + at);
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
  ASSIGN_OR_RETURN(auto gathered,
                   comm.AllGather(Buffer::Of(values), Rows(rows, values.size(), comm.size())));
  RETURN_IF_ERROR(gathered->Wait(limit));
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
  ASSIGN_OR_RETURN(auto exchanged, comm.AllToAll(slices, Rows(rows, mine.size(), comm.size())));
  RETURN_IF_ERROR(exchanged->Wait(limit));
  SumRows(rows, mine);
  ASSIGN_OR_RETURN(auto gathered, comm.AllGather(Buffer::Of(mine), slices));
  return gathered->Wait(deadline - absl::Now());
}

template <typename T>
absl::Status Sum(Communicator& comm, std::span<T> values, absl::Duration limit) {
  if (comm.size() == 1) return comm.Barrier(limit);
  return values.size_bytes() <= kSmallBytes ? SumSmall(comm, values, limit)
                                            : SumBySlices(comm, values, limit);
}

// Never called: nobody is left when the own part is copied.
Communicator::TransferOr NoMessage(Buffer, int, int) {
  return absl::InternalError("a message in a group of 1");
}

MessageGroup Alone() { return {0, 1, NoMessage, NoMessage}; }

}  // namespace

absl::Status Communicator::Barrier(absl::Duration limit) {
  std::vector<char> here(size());
  char mine = 1;
  ASSIGN_OR_RETURN(auto all, AllGather(Buffer::Of(std::span(&mine, 1)), Rows(here, 1, size())));
  return all->Wait(limit);
}

absl::Status Communicator::AllReduceSum(std::span<float> values, absl::Duration limit) {
  return Sum(*this, values, limit);
}

absl::Status Communicator::AllReduceSum(std::span<double> values, absl::Duration limit) {
  return Sum(*this, values, limit);
}

absl::Status Communicator::Broadcast(Buffer buffer, int root, absl::Duration limit) {
  if (root < 0 || root >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Broadcast from rank ", root, " in a group of ", size()));
  }
  Buffer nothing = buffer;
  nothing.bytes = 0;
  std::vector<Buffer> send(size(), rank() == root ? buffer : nothing);
  std::vector<Buffer> receive(size(), nothing);
  send[rank()] = nothing;
  if (rank() != root) receive[root] = buffer;
  ASSIGN_OR_RETURN(auto sent, AllToAll(send, receive));
  return sent->Wait(limit);
}

void EndJob(Communicator& comm, const absl::Status& status) {
  if (!absl::IsAborted(status)) {
    std::fprintf(stderr, "[%d/%d] error: %s\n", comm.rank(), comm.size(),
                 std::string(status.message()).c_str());
  }
  comm.Abort(static_cast<int>(GetExitCode(status)));
}

Communicator::TransferOr SelfCommunicator::Send(Buffer, int peer, int tag) {
  return CheckMessage("Send to", *this, peer, tag);
}

Communicator::TransferOr SelfCommunicator::Receive(Buffer, int peer, int tag) {
  return CheckMessage("Receive from", *this, peer, tag);
}

Communicator::TransferOr SelfCommunicator::AllToAll(std::span<const Buffer> send,
                                                    std::span<const Buffer> receive) {
  return AllToAllByMessages(Alone(), send, receive);
}

Communicator::TransferOr SelfCommunicator::AllGather(Buffer mine, std::span<const Buffer> all) {
  return AllGatherByMessages(Alone(), mine, all);
}

absl::StatusOr<std::unique_ptr<Communicator>> SelfCommunicator::Split(int color, int) {
  if (color == kNoGroup) return nullptr;
  return std::make_unique<SelfCommunicator>();
}

}  // namespace deepnet
