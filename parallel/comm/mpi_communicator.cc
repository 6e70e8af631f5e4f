#include "parallel/comm/mpi_communicator.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/mpi_progress.h"

namespace deepnet {
namespace {

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(std::shared_ptr<MpiProgress> progress, std::shared_ptr<MpiMessage> message)
      : progress_(std::move(progress)), message_(std::move(message)) {}

  ~MpiTransfer() override { progress_->GiveUp(message_); }

  absl::Status Wait(absl::Duration limit) override {
    if (progress_->Wait(*message_, limit)) return message_->result;
    return absl::DeadlineExceededError(
        absl::StrCat(message_->Text(), ": not finished after ", absl::FormatDuration(limit)));
  }

  bool Done() override { return progress_->Wait(*message_, absl::ZeroDuration()); }

 private:
  const std::shared_ptr<MpiProgress> progress_;
  const std::shared_ptr<MpiMessage> message_;
};

// A group is an MPI communicator; MPI_Finalize frees all of them, because MPI_Comm_free would be a
// collective at a moment that only one rank chooses.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiProgress> progress, MPI_Comm comm)
      : progress_(std::move(progress)), comm_(comm) {
    progress_->Run([this] {
      MPI_Comm_rank(comm_, &rank_);
      MPI_Comm_size(comm_, &size_);
    });
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  TransferOr Send(Buffer buffer, int peer, int tag) override {
    RETURN_IF_ERROR(CheckMessage("Send to", *this, peer, tag));
    return Start(MpiMessage::Kind::kSend, buffer, peer, tag);
  }

  TransferOr Receive(Buffer buffer, int peer, int tag) override {
    RETURN_IF_ERROR(CheckMessage("Receive from", *this, peer, tag));
    return Start(MpiMessage::Kind::kReceive, buffer, peer, tag);
  }

  TransferOr AllToAll(std::span<const Buffer> send, std::span<const Buffer> receive) override {
    return WithMessages(
        [&](const MessageGroup& group) { return AllToAllByMessages(group, send, receive); });
  }

  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    return WithMessages(
        [&](const MessageGroup& group) { return AllGatherByMessages(group, mine, all); });
  }

  // Barrier first: ranks sleep in it, but burn their core in MPI_Comm_split.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    RETURN_IF_ERROR(Barrier());
    MPI_Comm part = MPI_COMM_NULL;
    int error = MPI_SUCCESS;
    progress_->Run([&] {
      error = MPI_Comm_split(comm_, color == kNoGroup ? MPI_UNDEFINED : color, key, &part);
    });
    if (error != MPI_SUCCESS) {
      return absl::UnavailableError(absl::StrCat("Split: MPI_Comm_split returned ", error));
    }
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiCommunicator>(progress_, part);
  }

  void Abort(int exit_code) override { progress_->Abort(exit_code); }

 private:
  template <typename Body>
  TransferOr WithMessages(Body body) {
    RETURN_IF_ERROR(progress_->Alive());
    const auto send = [&](Buffer buffer, int peer, int tag) {
      return Start(MpiMessage::Kind::kSend, buffer, peer, tag);
    };
    const auto receive = [&](Buffer buffer, int peer, int tag) {
      return Start(MpiMessage::Kind::kReceive, buffer, peer, tag);
    };
    return body(MessageGroup{rank_, size_, send, receive});
  }

  TransferOr Start(MpiMessage::Kind kind, Buffer buffer, int peer, int tag) {
    const bool sends = kind == MpiMessage::Kind::kSend;
    RETURN_IF_ERROR(CheckHostMemory(sends ? "Send of" : "Receive of", buffer));
    RETURN_IF_ERROR(progress_->Alive());
    std::shared_ptr<MpiMessage> message(new MpiMessage{kind, buffer, comm_, peer, tag});
    progress_->Start(message);
    return std::make_unique<MpiTransfer>(progress_, message);
  }

  const std::shared_ptr<MpiProgress> progress_;
  const MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
};

absl::Status StartMpi() {
  int started = 0;
  MPI_Initialized(&started);
  if (started) return absl::FailedPreconditionError("MPI was started before in this process");
  // Open MPI would yield the core after every look that found nothing, which on a busy machine
  // gives away a whole time slice: 2 ms instead of 70 us for a small message. The thread sleeps by
  // itself.
  setenv("OMPI_MCA_mpi_yield_when_idle", "0", /*overwrite=*/1);
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return absl::FailedPreconditionError("MPI_Init_thread failed");
  }
  if (provided < MPI_THREAD_FUNNELED) {
    return absl::FailedPreconditionError("this MPI serves programs without threads only");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // groups split from it inherit that
  return absl::OkStatus();
}

class StartedMpiJob final : public MpiJob {
 public:
  explicit StartedMpiJob(std::shared_ptr<MpiProgress> progress)
      : progress_(std::move(progress)), world_(progress_, MPI_COMM_WORLD) {}

  ~StartedMpiJob() override {
    if (!progress_->Alive().ok()) progress_->Abort(static_cast<int>(ExitCode::kInternal));
    progress_->Run([] { MPI_Finalize(); });
  }

  Communicator& world() override { return world_; }

 private:
  const std::shared_ptr<MpiProgress> progress_;
  MpiCommunicator world_;
};

}  // namespace

bool MpiJob::StartedByLauncher() {
  // Open MPI, MPICH and its descendants, and PMIx under srun.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<MpiJob>> MpiJob::Start() {
  auto progress = std::make_shared<MpiProgress>();
  absl::Status started;
  progress->Run([&] { started = StartMpi(); });
  if (!started.ok()) return WithExitCode(started, ExitCode::kPreflight);
  return std::make_unique<StartedMpiJob>(std::move(progress));
}

}  // namespace deepnet
