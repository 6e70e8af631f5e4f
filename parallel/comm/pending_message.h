// A message under way in a backend, and the transfer that waits for it.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/mutex.h"
#include "parallel/comm/communicator.h"

namespace deepnet {

// The backend's mutex guards the fields; when it is finished they change no more.
struct PendingMessage : MessageCommunicator::Message {
  explicit PendingMessage(const Message& message) : Message(message) {}

  void Finish(const absl::Status& status) {
    result = WithPrefix(Text(), status);
    finished = true;
    changed.NotifyAll();
  }

  bool finished = false;
  absl::Status result;
  CondVar changed;
};

// The state that the messages of one process or world share.
struct MessageBackend {
  // Sleeps until the message is finished, or for `limit`. Returns whether it is.
  bool Wait(PendingMessage& message, absl::Duration limit) {
    const MutexLock lock(mutex);
    return message.changed.WaitFor(mutex, limit, [&] { return message.finished; });
  }

  absl::Status Alive() {
    const MutexLock lock(mutex);
    return alive;
  }

  void SetGivenUp(const PendingMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    alive.Update(absl::AbortedError(absl::StrCat("this rank gave up ", message.Text())));
  }

  Mutex mutex;
  absl::Status alive ABSL_GUARDED_BY(mutex);  // Aborted: why no message can start any more
};

// Returns how long to sleep between two looks when nothing has happened for `idle`: an end is found
// late by at most an eighth of the time that it took.
inline absl::Duration PauseAfter(absl::Duration idle) {
  return std::clamp(idle / 8, absl::Microseconds(20), absl::Microseconds(500));
}

inline absl::Status NotFinished(const std::string& what, absl::Duration limit) {
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": not finished after ", absl::FormatDuration(limit)));
}

// `Backend` has Wait, as above, and GiveUp, which takes the message's memory back.
template <typename Backend, typename Message>
class PendingTransfer final : public Transfer {
 public:
  PendingTransfer(std::shared_ptr<Backend> backend, std::shared_ptr<Message> message)
      : backend_(std::move(backend)), message_(std::move(message)) {}

  ~PendingTransfer() override { backend_->GiveUp(message_); }

  absl::Status Wait(absl::Duration limit) override {
    if (backend_->Wait(*message_, limit)) return message_->result;
    return NotFinished(message_->Text(), limit);
  }

  bool Done() override { return backend_->Wait(*message_, absl::ZeroDuration()); }

 private:
  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<Message> message_;
};

}  // namespace deepnet
