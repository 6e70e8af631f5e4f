#include "trainer/decode/pipeline_link.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr size_t kMostSends = 16;  // under way at once; one more waits for the oldest

// Tags. Cuts have their number: that of the chunk behind them.
constexpr int kOrderSize = Communicator::kNumTags - 1;
constexpr int kOrder = Communicator::kNumTags - 2;
constexpr int kMemory = Communicator::kNumTags - 3;

int64_t BytesOf(int64_t rows, const at::Tensor& x_RD) {
  DEEPNET_CHECK(x_RD.is_contiguous());
  return rows * x_RD.size(1) * static_cast<int64_t>(x_RD.element_size());
}

std::vector<char> RowBytes(int64_t rows, const at::Tensor& x_RD) {
  std::vector<char> bytes(static_cast<size_t>(BytesOf(rows, x_RD)));
  const at::Tensor here =
      x_RD.device().is_cpu() ? x_RD : x_RD.narrow(0, 0, rows).to(at::Device(at::kCPU));
  std::memcpy(bytes.data(), here.const_data_ptr(), bytes.size());
  return bytes;
}

}  // namespace

void PipelineLink::ReceiveBefore(int i, int64_t rows, const at::Tensor& x_RD) {
  const int cut = route_.chunks[i];
  const int peer = route_.rank_of_chunk[cut - 1];
  if (peer == route_.rank) return;
  ReceiveRows(rows, x_RD, peer, cut, absl::StrCat("rows before chunk ", cut));
}

void PipelineLink::SendBehind(int i, int64_t rows, const at::Tensor& x_RD) {
  const int cut = route_.chunks[i] + 1;
  const int peer = route_.rank_of_chunk[cut];
  if (peer == route_.rank) return;
  Send(RowBytes(rows, x_RD), peer, cut, absl::StrCat("rows before chunk ", cut));
}

void PipelineLink::SendMemory(int64_t rows, const at::Tensor& memory_RD) {
  for (const int peer : route_.memory_to) Send(RowBytes(rows, memory_RD), peer, kMemory, "memory");
}

void PipelineLink::ReceiveMemory(int64_t rows, const at::Tensor& memory_RD) {
  ReceiveRows(rows, memory_RD, route_.encoder_end, kMemory, "memory");
}

void PipelineLink::SendOrder(std::span<const int32_t> order, std::span<const int> ranks) {
  const int64_t count = static_cast<int64_t>(order.size());
  std::vector<char> size(sizeof(count)), bytes(order.size_bytes());
  std::memcpy(size.data(), &count, sizeof(count));
  std::memcpy(bytes.data(), order.data(), bytes.size());
  for (const int peer : ranks) {
    Send(size, peer, kOrderSize, "size of an order");
    Send(bytes, peer, kOrder, "order");
  }
}

std::vector<int32_t> PipelineLink::ReceiveOrder() {
  int64_t count = 0;
  Receive(&count, sizeof(count), route_.driver, kOrderSize, limits_.order, "order of the driver");
  std::vector<int32_t> order(status_.ok() ? static_cast<size_t>(count) : 0);
  Receive(order.data(), count * static_cast<int64_t>(sizeof(int32_t)), route_.driver, kOrder,
          limits_.rows, "order of the driver");
  if (!status_.ok()) order.clear();
  return order;
}

absl::Status PipelineLink::Finish() {
  while (status_.ok() && !sends_.empty()) {
    Await(*sends_.front().transfer, limits_.rows, sends_.front().what);
    if (status_.ok()) sends_.pop_front();
  }
  return status_;
}

void PipelineLink::Send(std::vector<char> bytes, int peer, int tag, const std::string& what) {
  while (status_.ok() && !sends_.empty() &&
         (sends_.size() >= kMostSends || sends_.front().transfer->Done())) {
    Await(*sends_.front().transfer, limits_.rows, sends_.front().what);
    if (status_.ok()) sends_.pop_front();
  }
  if (!status_.ok()) return;
  Sending& sending = sends_.emplace_back();
  sending.bytes = std::move(bytes);
  sending.what = absl::StrCat(what, " to rank ", peer);
  auto transfer = comm_.Send(Buffer::Of(std::span(sending.bytes)), peer, tag);
  if (transfer.ok()) {
    sending.transfer = *std::move(transfer);
  } else {
    Fail(transfer.status(), limits_.rows, sending.what);
    sends_.pop_back();
  }
}

void PipelineLink::ReceiveRows(int64_t rows, const at::Tensor& x_RD, int peer, int tag,
                               const std::string& what) {
  if (x_RD.device().is_cpu()) {
    return Receive(x_RD.mutable_data_ptr(), BytesOf(rows, x_RD), peer, tag, limits_.rows, what);
  }
  const at::Tensor there = x_RD.narrow(0, 0, rows);
  const at::Tensor here = at::empty_like(there, there.options().device(at::kCPU));
  Receive(here.mutable_data_ptr(), BytesOf(rows, here), peer, tag, limits_.rows, what);
  there.copy_(here);
}

void PipelineLink::Receive(void* data, int64_t bytes, int peer, int tag, absl::Duration limit,
                           const std::string& what) {
  if (!status_.ok()) return;
  const std::string from = absl::StrCat(what, " from rank ", peer);
  auto transfer = comm_.Receive({data, bytes, {}}, peer, tag);
  if (!transfer.ok()) return Fail(transfer.status(), limit, from);
  Await(**transfer, limit, from);
}

void PipelineLink::Await(Transfer& transfer, absl::Duration limit, const std::string& what) {
  const absl::Status status = transfer.Wait(limit);
  if (!status.ok()) Fail(status, limit, what);
}

// The job ends before transfers that are under way are dropped.
void PipelineLink::Fail(const absl::Status& status, absl::Duration limit, const std::string& what) {
  const std::string place = absl::StrCat("decoding, rank ", route_.rank, ": ", what);
  if (absl::IsDeadlineExceeded(status)) {
    status_ = WithExitCode(absl::DeadlineExceededError(absl::StrCat(
                               place, " has not moved for ", absl::FormatDuration(limit),
                               " (parallel.step_timeout_seconds)")),
                           ExitCode::kHang);
  } else if (absl::IsUnavailable(status)) {
    status_ =
        WithExitCode(absl::UnavailableError(absl::StrCat(place, " is lost: ", status.message())),
                     ExitCode::kPeerLost);
  } else {
    status_ = status;
  }
  if (absl::IsAborted(status_)) return;
  std::fprintf(stderr, "error: %s\n", std::string(status_.message()).c_str());
  comm_.Abort(static_cast<int>(GetExitCode(status_)));
}

}  // namespace deepnet
