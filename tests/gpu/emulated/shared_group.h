// The memory that the ranks of one emulated NCCL communicator share, be they threads or processes:
// who is there, and for every ordered pair of ranks a ring of bytes.
//
// The memory is a file without a name, held by whoever made the id and opened by the others through
// /proc, so that nothing is left behind however a process ends. A rank that is there holds a lock
// on a byte of the file; the system lets go of it when the process dies.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace emulated_gpu {

// What a message or a rank's part in a collective is; both ends must say the same.
struct Descriptor {
  char call[24] = {};  // "ncclSend" on both ends of a message
  int32_t type = 0;
  int32_t operation = -1;  // of a reduction
  int32_t root = -1;
  int32_t unused = 0;
  uint64_t count = 0;
  uint64_t bytes = 0;  // of this part

  std::string Text() const;  // "1000 x float32 (4000 B)"
  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

class SharedGroup {
 public:
  static constexpr int kMaxRanks = 64;
  enum class State : int { kAbsent, kJoined, kLeft, kAborted };

  static ncclResult_t MakeId(ncclUniqueId& id);
  // Lets go of an id of this process; all ranks have joined.
  static void CloseId(const ncclUniqueId& id);
  // Null, with the reason, where there is no such group, its size is another or the rank is taken.
  static std::unique_ptr<SharedGroup> Join(const ncclUniqueId& id, int size, int rank, int device,
                                           std::string& why);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  int size() const { return size_; }
  bool AllJoined() const;
  State StateOf(int rank) const;
  void SetOwnState(State state);
  int DeviceOf(int rank) const;
  bool IsDead(int rank) const;  // its process ended without leaving

  // The first message from one rank to another connects them: both ends announce it.
  void Announce(int from, int to, bool sends);
  bool Connected(int from, int to) const;

  // Bytes of the ring from one rank to another. Write and Read move what they can, at most `bytes`,
  // and return how much.
  size_t Write(int to, const char* from, size_t bytes);
  size_t Read(int from, char* to, size_t bytes);
  size_t Readable(int from) const;
  bool AllRead(int to) const;  // the peer has taken everything

  // Waiting for any change: takes what Moves() said before the last look.
  uint32_t Moves() const;
  void WaitForMove(uint32_t seen) const;  // some milliseconds at most
  void Moved();

 private:
  struct Header;
  struct Ring;

  SharedGroup(int file, int size, int rank);
  Ring& RingOf(int from, int to) const;

  const int file_;
  const int size_;
  const int rank_;
  char* memory_ = nullptr;
  Header* header_ = nullptr;
};

}  // namespace emulated_gpu
