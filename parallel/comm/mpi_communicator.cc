// One thread of the process owns MPI: it starts it, makes every call, and ends it. Callers leave
// closures in the queue of MpiProgress, whose thread runs them and looks after the messages that
// they started. It sleeps between two looks, or until it is called.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <latch>
#include <thread>
#include <utility>

#include "parallel/comm/backends.h"

#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/prctl.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/mutex.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/pending_message.h"

namespace deepnet {
namespace {

// Messages travel in pieces of at most so many bytes: MPI counts in ints, and each piece that ends
// shows that a long message moves, which keeps the pauses between looks short.
constexpr int64_t kPieceBytes = 4 << 20;

// Limits for MPI to end the job, and to finish a message that was given up.
constexpr absl::Duration kAbortLimit = absl::Seconds(5);
constexpr absl::Duration kGiveUpLimit = absl::Seconds(1);

std::string ErrorText(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, length);
}

using Message = MessageCommunicator::Message;

struct MpiMessage : PendingMessage {
  MpiMessage(const Message& message, MPI_Comm comm) : PendingMessage(message), comm(comm) {}

  const MPI_Comm comm;

  // The progress thread's own.
  int64_t num_pieces = 0;  // not finished yet
  int64_t received_bytes = 0;
  absl::Status status = absl::OkStatus();  // of its pieces
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

class MpiProgress : public MessageBackend {
 public:
  // Ends MPI, when every rank has come here. No message is under way, unless given up.
  ~MpiProgress() {
    if (begun_) {
      if (!Alive().ok()) Abort(static_cast<int>(ExitCode::kInternal));
      Run([] { MPI_Finalize(); });
    }
    {
      const MutexLock lock(mutex);
      stop_ = true;
      wake_.NotifyOne();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Starts the thread, and MPI. Call it first.
  absl::Status Begin() {
    ASSIGN_OR_RETURN(thread_, StartThread([this] { Loop(); }));
    absl::Status started;
    Run([&] { started = StartMpi(); });
    begun_ = started.ok();
    return WithExitCode(started, ExitCode::kPreflight);
  }

  // Runs `call`, which may call MPI, on the thread; returns when it has.
  void Run(const std::function<void()>& call) {
    const auto done = std::make_shared<std::latch>(1);  // may end while it still notifies
    Enqueue([&call, done] {
      call();
      done->count_down();
    });
    done->wait();
  }

  // The message's memory belongs to the thread until it is finished.
  void Start(std::shared_ptr<MpiMessage> message) {
    Enqueue([this, message = std::move(message)] { Post(message); });
  }

  // Takes the message's memory back: cancels what can be cancelled and waits a moment for the rest.
  // If that does not end, no message of this process moves any more.
  void GiveUp(const std::shared_ptr<MpiMessage>& message) {
    {
      const MutexLock lock(mutex);
      if (message->finished) return;
      SetGivenUp(*message);
    }
    Run([&] { Cancel(*message); });
    if (!Wait(*message, kGiveUpLimit)) Run([&] { frozen_ = true; });
  }

  // Does not return.
  [[noreturn]] void Abort(int exit_code) {
    std::fflush(nullptr);
    Enqueue([=] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
    // The thread may be inside of a call that waits for a lost peer. Then this process ends alone,
    // and its launcher ends the others.
    absl::SleepFor(kAbortLimit);
    _exit(exit_code);
  }

 private:
  void Enqueue(std::function<void()> call) {
    const MutexLock lock(mutex);
    calls_.push_back(std::move(call));
    wake_.NotifyOne();
  }

  void Loop() {
    prctl(PR_SET_NAME, "mpi");
    prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default would add 50 us to each pause
    absl::Time last_event = absl::Now();
    while (true) {
      std::deque<std::function<void()>> calls;
      {
        const MutexLock lock(mutex);
        calls.swap(calls_);
        if (stop_ && calls.empty()) return;
      }
      for (const auto& call : calls) call();
      const bool moved = Poll();
      if (!calls.empty() || moved) last_event = absl::Now();
      const bool idle = requests_.empty() || frozen_;
      if (moved && !idle) continue;
      const absl::Duration pause =
          idle ? absl::InfiniteDuration() : PauseAfter(absl::Now() - last_event);
      const MutexLock lock(mutex);
      wake_.WaitFor(mutex, pause, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
        return !calls_.empty() || stop_;
      });
    }
  }

  void Post(const std::shared_ptr<MpiMessage>& message) {
    auto* const data = static_cast<char*>(message->buffer.data);
    const int64_t bytes = message->buffer.bytes;
    int64_t at = 0;
    do {  // an empty message is one empty piece
      const int piece = static_cast<int>(std::min(kPieceBytes, bytes - at));
      MPI_Request request = MPI_REQUEST_NULL;
      const int error = message->sends() ? MPI_Isend(data + at, piece, MPI_BYTE, message->peer,
                                                     message->tag, message->comm, &request)
                                         : MPI_Irecv(data + at, piece, MPI_BYTE, message->peer,
                                                     message->tag, message->comm, &request);
      if (error != MPI_SUCCESS) {
        message->status = absl::UnavailableError(ErrorText(error));
        break;
      }
      ++message->num_pieces;
      requests_.push_back(request);
      owners_.push_back(message);
      at += piece;
    } while (at < bytes);
    if (message->num_pieces == 0) Finish(*message);
  }

  // Looks once at all that is under way; whether any of it ended.
  bool Poll() {
    if (requests_.empty() || frozen_) return false;
    const int count = static_cast<int>(requests_.size());
    std::vector<int> ended(count);
    std::vector<MPI_Status> statuses(count);
    int num_ended = 0;
    const int error =
        MPI_Testsome(count, requests_.data(), &num_ended, ended.data(), statuses.data());
    if (num_ended == MPI_UNDEFINED || num_ended == 0) return false;
    const bool each_has_its_own = error == MPI_ERR_IN_STATUS;
    for (int i = 0; i < num_ended; ++i) {
      EndPiece(ended[i], each_has_its_own ? statuses[i].MPI_ERROR : error, statuses[i]);
    }
    // The others keep their order.
    std::erase(requests_, MPI_REQUEST_NULL);
    std::erase(owners_, nullptr);
    DEEPNET_CHECK_EQ(requests_.size(), owners_.size());
    return true;
  }

  void EndPiece(int index, int error, const MPI_Status& status) {
    requests_[index] = MPI_REQUEST_NULL;  // MPI may leave it after an error
    const std::shared_ptr<MpiMessage> owner = std::move(owners_[index]);
    MpiMessage& message = *owner;
    int error_class = MPI_SUCCESS;
    if (error != MPI_SUCCESS) MPI_Error_class(error, &error_class);
    if (error_class == MPI_ERR_TRUNCATE) {
      message.status = absl::InvalidArgumentError("the peer states more bytes");
    } else if (error_class != MPI_SUCCESS) {
      message.status = absl::UnavailableError(ErrorText(error));
    } else if (!message.sends()) {
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      message.received_bytes += bytes;
    }
    if (--message.num_pieces == 0) Finish(message);
  }

  void Finish(MpiMessage& message) {
    const bool whole = message.sends() || message.received_bytes == message.buffer.bytes;
    if (message.status.ok() && !whole) {
      message.status = InvalidArgument("the peer states ", message.received_bytes, " B");
    }
    const MutexLock lock(mutex);
    message.Finish(message.status);
  }

  // MPI cannot cancel a send that the peer may know of already.
  void Cancel(const MpiMessage& message) {
    if (message.sends()) return;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (owners_[i].get() == &message) MPI_Cancel(&requests_[i]);
    }
  }

  CondVar wake_;  // of the thread
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex);
  bool stop_ ABSL_GUARDED_BY(mutex) = false;

  // The thread's own: element i of both belongs to one piece of a message.
  std::vector<MPI_Request> requests_;
  std::vector<std::shared_ptr<MpiMessage>> owners_;
  bool frozen_ = false;

  bool begun_ = false;  // MPI has started
  std::thread thread_;
};

// A group is an MPI communicator; MPI_Finalize frees all of them, because MPI_Comm_free would be a
// collective at a moment that only one rank chooses.
class MpiCommunicator final : public MessageCommunicator {
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
  TransferOr Start(const Message& message) override {
    RETURN_IF_ERROR(progress_->Alive());
    const auto started = std::make_shared<MpiMessage>(message, comm_);
    progress_->Start(started);
    return std::make_unique<PendingTransfer<MpiProgress, MpiMessage>>(progress_, started);
  }
  absl::Status CheckAlive(const char*) override { return progress_->Alive(); }

  const std::shared_ptr<MpiProgress> progress_;
  const MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator() {
  auto progress = std::make_shared<MpiProgress>();
  RETURN_IF_ERROR(progress->Begin());
  return std::make_unique<MpiCommunicator>(std::move(progress), MPI_COMM_WORLD);
}

// "Open MPI v4.1.4, package: ..." or "MPICH Version:  4.0.2\nMPICH Release date: ...".
std::string MpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text);
  return all.substr(0, all.find_first_of(",\n"));
}

}  // namespace deepnet
