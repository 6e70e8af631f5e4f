#include "parallel/comm/collectives.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

class JoinedTransfer final : public Transfer {
 public:
  JoinedTransfer(std::string_view name, std::vector<std::unique_ptr<Transfer>> parts)
      : name_(name), parts_(std::move(parts)) {}

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
    for (size_t part = num_finished_; error_.ok() && part < parts_.size(); ++part) {
      if (!parts_[part]->Done()) return false;
    }
    return true;
  }

 private:
  const std::string name_;
  const std::vector<std::unique_ptr<Transfer>> parts_;
  size_t num_finished_ = 0;  // of the first parts, without an error
  absl::Status error_;
};

absl::Status CopyOwn(const char* call, const Buffer& from, const Buffer& to) {
  if (from.bytes != to.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(call, ": the own part has ", from.bytes,
                                                   " B to send and ", to.bytes, " B to receive"));
  }
  if (from.bytes > 0 && from.data != to.data) std::memcpy(to.data, from.data, from.bytes);
  return absl::OkStatus();
}

absl::Status CheckCount(const char* call, size_t count, int size) {
  if (count == static_cast<size_t>(size)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": ", count, " buffers in a group of ", size));
}

}  // namespace

std::unique_ptr<Transfer> JoinTransfers(std::string_view name,
                                        std::vector<std::unique_ptr<Transfer>> parts) {
  return std::make_unique<JoinedTransfer>(name, std::move(parts));
}

Communicator::TransferOr AllToAllByMessages(const MessageGroup& group, std::span<const Buffer> send,
                                            std::span<const Buffer> receive) {
  const auto [rank, size, start_send, start_receive] = group;
  RETURN_IF_ERROR(CheckCount("AllToAll", send.size(), size));
  RETURN_IF_ERROR(CheckCount("AllToAll", receive.size(), size));
  RETURN_IF_ERROR(CopyOwn("AllToAll", send[rank], receive[rank]));
  std::vector<std::unique_ptr<Transfer>> parts;
  for (int distance = 1; distance < size; ++distance) {
    const int from = (rank + size - distance) % size;
    if (receive[from].bytes == 0) continue;
    ASSIGN_OR_RETURN(parts.emplace_back(), start_receive(receive[from], from, kCollectiveTag));
  }
  for (int distance = 1; distance < size; ++distance) {
    const int to = (rank + distance) % size;
    if (send[to].bytes == 0) continue;
    ASSIGN_OR_RETURN(parts.emplace_back(), start_send(send[to], to, kCollectiveTag));
  }
  return JoinTransfers("AllToAll", std::move(parts));
}

Communicator::TransferOr AllGatherByMessages(const MessageGroup& group, Buffer mine,
                                             std::span<const Buffer> all) {
  const auto [rank, size, start_send, start_receive] = group;
  RETURN_IF_ERROR(CheckCount("AllGather", all.size(), size));
  RETURN_IF_ERROR(CopyOwn("AllGather", mine, all[rank]));
  std::vector<std::unique_ptr<Transfer>> parts;
  for (int distance = 1; distance < size; ++distance) {
    const int from = (rank + size - distance) % size;
    if (all[from].bytes == 0) continue;
    ASSIGN_OR_RETURN(parts.emplace_back(), start_receive(all[from], from, kCollectiveTag));
  }
  for (int distance = 1; mine.bytes > 0 && distance < size; ++distance) {
    ASSIGN_OR_RETURN(parts.emplace_back(),
                     start_send(mine, (rank + distance) % size, kCollectiveTag));
  }
  return JoinTransfers("AllGather", std::move(parts));
}

absl::Status CheckMessage(std::string_view call, const Communicator& comm, int peer, int tag) {
  const bool good = peer >= 0 && peer < comm.size() && peer != comm.rank() && tag >= 0 &&
                    tag < Communicator::kNumTags;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      View(call), " rank ", peer, " with tag ", tag, ": this is rank ", comm.rank(), " of ",
      comm.size(), "; a peer is another of them, a tag less than ", Communicator::kNumTags));
}

absl::Status CheckHostMemory(std::string_view call, const Buffer& buffer) {
  if (buffer.device.kind == Device::Kind::kHost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(View(call), " ", buffer.bytes,
                                                 " B on accelerator ", buffer.device.index,
                                                 ": this communicator moves host memory only"));
}

absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& comm, std::string_view mine) {
  std::vector<int64_t> lengths(comm.size());
  std::vector<Buffer> parts;
  for (int64_t& length : lengths) parts.push_back(Buffer::Of(std::span(&length, 1)));
  int64_t length = static_cast<int64_t>(mine.size());
  ASSIGN_OR_RETURN(auto sizes, comm.AllGather(Buffer::Of(std::span(&length, 1)), parts));
  RETURN_IF_ERROR(sizes->Wait());

  std::string own(mine);
  std::vector<std::string> texts(comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    texts[rank].resize(lengths[rank]);
    parts[rank] = Buffer::Of(std::span(texts[rank]));
  }
  ASSIGN_OR_RETURN(auto bytes, comm.AllGather(Buffer::Of(std::span(own)), parts));
  RETURN_IF_ERROR(bytes->Wait());
  return texts;
}

}  // namespace deepnet
