#include "trainer/decode/pipeline_link.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

constexpr size_t kMaxSends = 16;  // at once; one more waits for the oldest

// Tags. A boundary has the number of the chunk behind it.
constexpr int kCommandSize = Communicator::kNumTags - 1;
constexpr int kCommand = Communicator::kNumTags - 2;
constexpr int kEncoderOutput = Communicator::kNumTags - 3;

// Returns host memory for the first rows of x, which a device copies from and to directly.
at::Tensor HostRows(int64_t rows, const at::Tensor& x_RD) {
  const bool pinned = !x_RD.device().is_cpu();
  return at::empty({rows, x_RD.size(1)}, x_RD.options().device(at::kCPU).pinned_memory(pinned));
}

// Returns a copy on the host, once it is there.
at::Tensor ToHost(int64_t rows, const at::Tensor& x_RD) {
  return HostRows(rows, x_RD).copy_(x_RD.narrow(0, 0, rows));
}

std::vector<int> Without(std::set<int> ranks, int rank) {
  ranks.erase(rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

PipelineRoute MakePipelineRoute(const Inventory& inventory, std::span<const int> chunk_ends,
                                const Placement& placement, int rank) {
  DEEPNET_CHECK_EQ(static_cast<int>(chunk_ends.size()), placement.NumChunks());
  PipelineRoute route{.rank = rank, .chunks = {}, .rank_of_chunk = placement.rank_of_chunk};
  route.driver = placement.rank_of_chunk.back();
  std::set<int> all, decoders, behind_encoder;
  for (int c = 0, layer = 0; c < placement.NumChunks(); ++c) {
    const int owner = placement.rank_of_chunk[c];
    all.insert(owner);
    if (owner == rank) route.chunks.push_back(c);
    for (; layer < chunk_ends[c]; ++layer) {
      const LayerKind kind = inventory.layers[layer].kind;
      if (kind == LayerKind::kEncoder) route.encoder_end = owner;
      if (kind == LayerKind::kDecoder && SideInput(inventory.layers[layer]) != nullptr)
        decoders.insert(owner);
      if (kind >= LayerKind::kTargetEmbedding) behind_encoder.insert(owner);
    }
  }
  route.encoder_output_to = Without(decoders, route.encoder_end);
  route.steppers = Without(behind_encoder, route.driver);
  route.followers = Without(all, route.driver);
  return route;
}

void PipelineLink::ReceiveBefore(int i, int64_t rows, const at::Tensor& x_RD) {
  const int boundary = route_.chunks[i];
  const int peer = route_.rank_of_chunk[boundary - 1];
  if (peer == route_.rank) return;
  ReceiveRows(rows, x_RD, peer, boundary, absl::StrCat("rows before chunk ", boundary));
}

void PipelineLink::SendBehind(int i, int64_t rows, const at::Tensor& x_RD) {
  const int boundary = route_.chunks[i] + 1;
  const int peer = route_.rank_of_chunk[boundary];
  if (peer == route_.rank) return;
  Send(ToHost(rows, x_RD), peer, boundary, absl::StrCat("rows before chunk ", boundary));
}

void PipelineLink::SendEncoderOutput(int64_t rows, const at::Tensor& encoder_output_RD) {
  if (route_.encoder_output_to.empty()) return;
  const at::Tensor host = ToHost(rows, encoder_output_RD);
  for (const int peer : route_.encoder_output_to) {
    Send(host, peer, kEncoderOutput, "encoder output");
  }
}

void PipelineLink::ReceiveEncoderOutput(int64_t rows, const at::Tensor& encoder_output_RD) {
  ReceiveRows(rows, encoder_output_RD, route_.encoder_end, kEncoderOutput, "encoder output");
}

void PipelineLink::SendCommand(std::span<const int32_t> command, std::span<const int> ranks) {
  const int64_t count = static_cast<int64_t>(command.size());
  const at::Tensor size = at::full({1}, count, at::kLong), numbers = at::empty({count}, at::kInt);
  std::copy(command.begin(), command.end(), numbers.mutable_data_ptr<int32_t>());
  for (const int peer : ranks) {
    Send(size, peer, kCommandSize, "size of a command");
    Send(numbers, peer, kCommand, "command");
  }
}

std::vector<int32_t> PipelineLink::ReceiveCommand() {
  int64_t count = 0;
  Receive(Buffer::Of(std::span(&count, 1)), route_.driver, kCommandSize, limits_.command,
          "command of the driver");
  std::vector<int32_t> command(status_.ok() ? static_cast<size_t>(count) : 0);
  Receive(Buffer::Of(std::span(command)), route_.driver, kCommand, limits_.rows,
          "command of the driver");
  if (!status_.ok()) command.clear();
  return command;
}

void PipelineLink::AwaitOldestSend() {
  Await(*sends_.front().transfer, limits_.rows, sends_.front().what);
  if (status_.ok()) sends_.pop_front();
}

absl::Status PipelineLink::Finish() {
  while (status_.ok() && !sends_.empty()) AwaitOldestSend();
  return status_;
}

void PipelineLink::Send(const at::Tensor& data, int peer, int tag, const std::string& what) {
  while (status_.ok() && !sends_.empty() &&
         (sends_.size() >= kMaxSends || sends_.front().transfer->Done())) {
    AwaitOldestSend();
  }
  if (!status_.ok()) return;
  Sending& sending = sends_.emplace_back();
  sending.data = data;
  sending.what = absl::StrCat(what, " to rank ", peer);
  auto transfer =
      comm_.Send({data.mutable_data_ptr(), static_cast<int64_t>(data.nbytes()), {}}, peer, tag);
  if (transfer.ok()) {
    sending.transfer = *std::move(transfer);
  } else {
    Fail(transfer.status(), limits_.rows, sending.what);
    sends_.pop_back();
  }
}

void PipelineLink::ReceiveRows(int64_t rows, const at::Tensor& x_RD, int peer, int tag,
                               const std::string& what) {
  DEEPNET_CHECK(x_RD.is_contiguous());
  const at::Tensor there = x_RD.narrow(0, 0, rows);
  const at::Tensor here = x_RD.device().is_cpu() ? there : HostRows(rows, x_RD);
  Receive({here.mutable_data_ptr(), static_cast<int64_t>(here.nbytes()), {}}, peer, tag,
          limits_.rows, what);
  if (!here.is_same(there)) there.copy_(here);
}

void PipelineLink::Receive(const Buffer& into, int peer, int tag, absl::Duration limit,
                           const std::string& what) {
  if (!status_.ok()) return;
  const std::string from = absl::StrCat(what, " from rank ", peer);
  auto transfer = comm_.Receive(into, peer, tag);
  if (!transfer.ok()) return Fail(transfer.status(), limit, from);
  Await(**transfer, limit, from);
}

void PipelineLink::Await(Transfer& transfer, absl::Duration limit, const std::string& what) {
  const absl::Status status = transfer.Wait(limit);
  if (!status.ok()) Fail(status, limit, what);
}

// Ends the job before pending transfers are dropped.
void PipelineLink::Fail(const absl::Status& status, absl::Duration limit, const std::string& what) {
  const std::string place = absl::StrCat("decoding, rank ", route_.rank, ": ", what);
  if (absl::IsDeadlineExceeded(status)) {
    status_ = WithExitCode(absl::DeadlineExceededError(absl::StrCat(
                               place, " has not moved for ", absl::FormatDuration(limit),
                               " (parallel.comm_timeout_seconds)")),
                           ExitCode::kHang);
  } else if (absl::IsUnavailable(status)) {
    status_ =
        WithExitCode(absl::UnavailableError(absl::StrCat(place, " is lost: ", status.message())),
                     ExitCode::kPeerLost);
  } else {
    status_ = status;
  }
  if (!absl::IsAborted(status_)) EndJob(comm_, status_);
}

}  // namespace deepnet
