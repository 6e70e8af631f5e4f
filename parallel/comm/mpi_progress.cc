#include "parallel/comm/mpi_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Messages travel in pieces of at most so many bytes: MPI counts in ints, and each piece that ends
// shows that a long message moves, which keeps the pauses between looks short.
constexpr int64_t kPieceBytes = 4 << 20;

constexpr microseconds kShortestPause(20);
constexpr microseconds kLongestPause(500);

// How long the end of a job may take in MPI's hands, and how long a message that is given up may.
constexpr seconds kAbortLimit(5);
constexpr seconds kGiveUpLimit(1);

// How long to sleep before looking again when nothing has happened for `idle`: what is found late
// is late by an eighth of the time that was waited anyway.
microseconds Pause(steady_clock::duration idle) {
  return std::clamp(std::chrono::duration_cast<microseconds>(idle) / 8, kShortestPause,
                    kLongestPause);
}

std::string ErrorText(int error) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return std::string(text, length);
}

}  // namespace

std::string MpiMessage::Text() const {
  return absl::StrCat(kind == Kind::kSend ? "Send to rank " : "Receive from rank ", peer,
                      " with tag ", tag, ", ", buffer.bytes, " B");
}

MpiProgress::MpiProgress() : thread_([this] { Loop(); }) {}

MpiProgress::~MpiProgress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void MpiProgress::Enqueue(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  wake_.notify_one();
}

void MpiProgress::Run(const std::function<void()>& call) {
  bool done = false;  // guarded by mutex_
  std::condition_variable changed;
  Enqueue([&] {
    call();
    const std::lock_guard lock(mutex_);
    done = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex_);
  changed.wait(lock, [&] { return done; });
}

void MpiProgress::Start(std::shared_ptr<MpiMessage> message) {
  Enqueue([this, message = std::move(message)] { Post(message); });
}

bool MpiProgress::Wait(MpiMessage& message, absl::Duration limit) {
  const auto finished = [&] { return message.finished; };
  std::unique_lock lock(mutex_);
  if (limit > absl::Hours(24 * 365)) {
    message.changed.wait(lock, finished);
    return true;
  }
  return message.changed.wait_until(lock, steady_clock::now() + absl::ToChronoNanoseconds(limit),
                                    finished);
}

void MpiProgress::GiveUp(const std::shared_ptr<MpiMessage>& message) {
  {
    const std::lock_guard lock(mutex_);
    if (message->finished) return;
    if (given_up_.empty()) given_up_ = message->Text();
  }
  Run([&] { Cancel(*message); });
  if (!Wait(*message, absl::FromChrono(kGiveUpLimit))) Run([&] { frozen_ = true; });
}

absl::Status MpiProgress::Alive() {
  const std::lock_guard lock(mutex_);
  if (given_up_.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("this rank gave up ", given_up_));
}

void MpiProgress::Abort(int exit_code) {
  std::fflush(nullptr);
  Enqueue([=] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
  // The thread may be inside of a call that waits for a lost peer. Then this process ends alone,
  // and its launcher ends the others.
  std::this_thread::sleep_for(kAbortLimit);
  _exit(exit_code);
}

void MpiProgress::Loop() {
  prctl(PR_SET_NAME, "mpi");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default would add 50 us to each pause
  auto last_event = steady_clock::now();
  std::deque<std::function<void()>> calls;
  std::unique_lock lock(mutex_);
  while (true) {
    calls.swap(calls_);
    const bool stop = stop_ && calls.empty();
    if (stop) return;
    lock.unlock();
    const bool called = !calls.empty();
    for (const auto& call : calls) call();
    calls.clear();
    const bool moved = Poll();
    if (called || moved) last_event = steady_clock::now();
    const bool idle = requests_.empty() || frozen_;
    const auto pause = Pause(steady_clock::now() - last_event);
    lock.lock();
    const auto called_again = [&] { return !calls_.empty() || stop_; };
    if (idle) {
      wake_.wait(lock, called_again);
    } else if (!moved) {
      wake_.wait_for(lock, pause, called_again);
    }
  }
}

void MpiProgress::Post(const std::shared_ptr<MpiMessage>& message) {
  auto* const data = static_cast<char*>(message->buffer.data);
  const int64_t bytes = message->buffer.bytes;
  int64_t at = 0;
  do {  // an empty message is one empty piece
    const int piece = static_cast<int>(std::min(kPieceBytes, bytes - at));
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = message->kind == MpiMessage::Kind::kSend
                          ? MPI_Isend(data + at, piece, MPI_BYTE, message->peer, message->tag,
                                      message->comm, &request)
                          : MPI_Irecv(data + at, piece, MPI_BYTE, message->peer, message->tag,
                                      message->comm, &request);
    if (error != MPI_SUCCESS) {
      message->result =
          absl::UnavailableError(absl::StrCat(message->Text(), ": ", ErrorText(error)));
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
bool MpiProgress::Poll() {
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
    TakePiece(ended[i], each_has_its_own ? statuses[i].MPI_ERROR : error, statuses[i]);
  }
  // Ended requests are null now; the others keep their order.
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    owners_[kept++] = std::move(owners_[i]);
  }
  requests_.resize(kept);
  owners_.resize(kept);
  return true;
}

void MpiProgress::TakePiece(int index, int error, const MPI_Status& status) {
  MpiMessage& message = *owners_[index];
  int error_class = MPI_SUCCESS;
  if (error != MPI_SUCCESS) MPI_Error_class(error, &error_class);
  if (error_class == MPI_ERR_TRUNCATE) {
    message.result =
        absl::InvalidArgumentError(absl::StrCat(message.Text(), ": the peer states more bytes"));
  } else if (error_class != MPI_SUCCESS) {
    message.result = absl::UnavailableError(absl::StrCat(message.Text(), ": ", ErrorText(error)));
  } else if (message.kind == MpiMessage::Kind::kReceive) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    message.received_bytes += bytes;
  }
  if (--message.num_pieces == 0) Finish(message);
}

void MpiProgress::Finish(MpiMessage& message) {
  const bool whole =
      message.kind == MpiMessage::Kind::kSend || message.received_bytes == message.buffer.bytes;
  if (message.result.ok() && !whole) {
    message.result = absl::InvalidArgumentError(
        absl::StrCat(message.Text(), ": the peer states ", message.received_bytes, " B"));
  }
  const std::lock_guard lock(mutex_);
  message.finished = true;
  message.changed.notify_all();
}

// MPI cannot cancel a send that the peer may know of already.
void MpiProgress::Cancel(const MpiMessage& message) {
  if (message.kind == MpiMessage::Kind::kSend) return;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (owners_[i].get() == &message) MPI_Cancel(&requests_[i]);
  }
}

}  // namespace deepnet
