// The thread that owns MPI (private to mpi_communicator.cc): callers leave closures in its queue,
// it runs them and looks after what they started.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"

namespace deepnet {

// A message under way.
struct MpiMessage {
  enum class Kind { kSend, kReceive };

  const Kind kind;
  const Buffer buffer;
  const MPI_Comm comm;
  const int peer;
  const int tag;

  // The progress thread's own.
  int64_t num_pieces = 0;  // not finished yet
  int64_t received_bytes = 0;
  absl::Status result = absl::OkStatus();  // for others once `finished`

  // Guarded by the progress thread's mutex.
  bool finished = false;
  std::condition_variable changed;

  std::string Text() const;  // "Send to rank 1 with tag 2, 3 B"
};

class MpiProgress {
 public:
  MpiProgress();
  ~MpiProgress();  // no message is under way, unless given up

  // Runs `call`, which may call MPI, on the thread; returns when it has. The first call starts MPI,
  // the last one ends it.
  void Run(const std::function<void()>& call);

  // The message's memory belongs to the thread until it is finished.
  void Start(std::shared_ptr<MpiMessage> message);

  // Sleeps until the message is finished, or for at most `limit`; whether it is.
  bool Wait(MpiMessage& message, absl::Duration limit);

  // Takes the message's memory back: cancels what can be cancelled and waits a moment for the rest.
  // If that does not end, no message of this process moves any more.
  void GiveUp(const std::shared_ptr<MpiMessage>& message);

  // OK, or Aborted with what was given up.
  absl::Status Alive();

  // Does not return.
  [[noreturn]] void Abort(int exit_code);

 private:
  void Enqueue(std::function<void()> call);
  void Loop();
  void Post(const std::shared_ptr<MpiMessage>& message);
  bool Poll();
  void TakePiece(int index, int error, const MPI_Status& status);
  void Finish(MpiMessage& message);
  void Cancel(const MpiMessage& message);

  std::mutex mutex_;
  std::condition_variable wake_;             // of the thread
  std::deque<std::function<void()>> calls_;  // guarded by mutex_, as are the next two
  bool stop_ = false;
  std::string given_up_;

  // The thread's own: element i of both belongs to one piece of a message.
  std::vector<MPI_Request> requests_;
  std::vector<std::shared_ptr<MpiMessage>> owners_;
  bool frozen_ = false;

  std::thread thread_;  // last: starts when all else is there
};

}  // namespace deepnet
