#include "tests/gpu/emulated/shared_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tests/gpu/emulated/memory.h"

namespace emulated_gpu {
namespace {

constexpr size_t kRingBytes = size_t{64} << 10;

// The contents of an ncclUniqueId.
struct Id {
  uint64_t magic;
  int32_t process;
  int32_t file;
  int64_t number;  // of the process's ids: another id may have the file's descriptor later
};
constexpr uint64_t kMagic = 0x6465656e65746964;

// Files of ids that this process has made and not all ranks have opened yet.
struct OpenFiles {
  std::mutex mutex;
  std::map<int64_t, int> files;  // by the number of the id
  int64_t num_ids = 0;
};
OpenFiles& TheOpenFiles() {
  static OpenFiles files;
  return files;
}

const char* TypeName(int type) {
  constexpr const char* kNames[] = {"int8",    "uint8",    "int32",   "uint32",
                                    "int64",   "uint64",   "float16", "float32",
                                    "float64", "bfloat16", "float8",  "float8"};
  return type >= 0 && type < static_cast<int>(std::size(kNames)) ? kNames[type] : "unknown";
}

}  // namespace

struct SharedGroup::Header {
  std::atomic<int> size;  // 0 until somebody has joined
  std::atomic<uint32_t> moves;
  mutable std::atomic<int> waiting;
  struct Rank {
    std::atomic<int> state;
    std::atomic<int> device;
  } ranks[kMaxRanks];
  std::atomic<uint8_t> announced[kMaxRanks][kMaxRanks][2];  // from, to, {receiver, sender}
};

struct SharedGroup::Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char bytes[kRingBytes];
};

std::string Descriptor::Text() const {
  return std::to_string(count) + " x " + TypeName(type) + " (" + std::to_string(bytes) + " B)";
}

ncclResult_t SharedGroup::MakeId(ncclUniqueId& id) {
  const int file = memfd_create("emulated_nccl", MFD_CLOEXEC);
  if (file < 0) return ncclSystemError;
  if (ftruncate(file, sizeof(Header)) != 0) return ncclSystemError;
  const std::lock_guard lock(TheOpenFiles().mutex);
  const int64_t number = TheOpenFiles().num_ids++;
  TheOpenFiles().files[number] = file;
  const Id made = {kMagic, static_cast<int32_t>(getpid()), file, number};
  std::memset(&id, 0, sizeof(id));
  std::memcpy(&id, &made, sizeof(made));
  return ncclSuccess;
}

void SharedGroup::CloseId(const ncclUniqueId& id) {
  Id given;
  std::memcpy(&given, &id, sizeof(given));
  if (given.process != getpid()) return;
  const std::lock_guard lock(TheOpenFiles().mutex);
  if (TheOpenFiles().files.erase(given.number) > 0) close(given.file);
}

std::unique_ptr<SharedGroup> SharedGroup::Join(const ncclUniqueId& id, int size, int rank,
                                               int device, std::string& why) {
  Id given;
  std::memcpy(&given, &id, sizeof(given));
  if (given.magic != kMagic) why = "the id was not made by ncclGetUniqueId";
  if (size < 1 || size > kMaxRanks) why = "size " + std::to_string(size) + " is not 1 to 64";
  if (rank < 0 || rank >= size) why = "no rank " + std::to_string(rank);
  if (!why.empty()) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(given.process) + "/fd/" + std::to_string(given.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    why = "the process that made the id is gone";
    return nullptr;
  }
  std::unique_ptr<SharedGroup> group(new SharedGroup(file, size, rank));
  int expected = 0;
  if (!group->header_->size.compare_exchange_strong(expected, size) && expected != size) {
    why = "rank " + std::to_string(rank) + " says " + std::to_string(size) +
          " ranks, another rank says " + std::to_string(expected);
    return nullptr;
  }
  auto& own = group->header_->ranks[rank];
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  if (own.state != static_cast<int>(State::kAbsent) || fcntl(file, F_OFD_SETLK, &lock) != 0) {
    why = "there are two ranks " + std::to_string(rank);
    return nullptr;
  }
  own.device = device;
  group->SetOwnState(State::kJoined);
  return group;
}

SharedGroup::SharedGroup(int file, int size, int rank) : file_(file), size_(size), rank_(rank) {
  const size_t bytes = sizeof(Header) + static_cast<size_t>(size) * size * sizeof(Ring);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) Fail("no shared memory for NCCL");
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) Fail("no shared memory for NCCL");
  memory_ = static_cast<char*>(memory);
  header_ = reinterpret_cast<Header*>(memory_);  // a new file's zeros are its initial state
}

SharedGroup::~SharedGroup() {
  munmap(memory_, sizeof(Header) + static_cast<size_t>(size_) * size_ * sizeof(Ring));
  close(file_);
}

bool SharedGroup::AllJoined() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (StateOf(rank) == State::kAbsent) return false;
  }
  return true;
}

SharedGroup::State SharedGroup::StateOf(int rank) const {
  return static_cast<State>(header_->ranks[rank].state.load());
}

void SharedGroup::SetOwnState(State state) {
  header_->ranks[rank_].state = static_cast<int>(state);
  Moved();
}

int SharedGroup::DeviceOf(int rank) const { return header_->ranks[rank].device; }

bool SharedGroup::IsDead(int rank) const {
  if (rank == rank_ || StateOf(rank) != State::kJoined) return false;
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  const bool asked = fcntl(file_, F_OFD_GETLK, &lock) == 0;
  return asked && lock.l_type == F_UNLCK && StateOf(rank) == State::kJoined;
}

void SharedGroup::Announce(int from, int to, bool sends) {
  header_->announced[from][to][sends ? 1 : 0] = 1;
  Moved();
}

bool SharedGroup::Connected(int from, int to) const {
  return header_->announced[from][to][0] != 0 && header_->announced[from][to][1] != 0;
}

SharedGroup::Ring& SharedGroup::RingOf(int from, int to) const {
  auto* const rings = reinterpret_cast<Ring*>(memory_ + sizeof(Header));
  return rings[static_cast<size_t>(from) * size_ + to];
}

size_t SharedGroup::Write(int to, const char* from, size_t bytes) {
  Ring& ring = RingOf(rank_, to);
  const uint64_t at = ring.written.load(std::memory_order_relaxed);
  const size_t room = kRingBytes - (at - ring.read.load(std::memory_order_acquire));
  const size_t now = std::min(bytes, room);
  const size_t first = std::min(now, kRingBytes - at % kRingBytes);
  std::memcpy(ring.bytes + at % kRingBytes, from, first);
  std::memcpy(ring.bytes, from + first, now - first);
  ring.written.store(at + now, std::memory_order_release);
  return now;
}

size_t SharedGroup::Readable(int from) const {
  const Ring& ring = RingOf(from, rank_);
  return ring.written.load(std::memory_order_acquire) - ring.read.load(std::memory_order_relaxed);
}

size_t SharedGroup::Read(int from, char* to, size_t bytes) {
  Ring& ring = RingOf(from, rank_);
  const uint64_t at = ring.read.load(std::memory_order_relaxed);
  const size_t now = std::min(bytes, Readable(from));
  const size_t first = std::min(now, kRingBytes - at % kRingBytes);
  std::memcpy(to, ring.bytes + at % kRingBytes, first);
  std::memcpy(to + first, ring.bytes, now - first);
  ring.read.store(at + now, std::memory_order_release);
  return now;
}

bool SharedGroup::AllRead(int to) const {
  const Ring& ring = RingOf(rank_, to);
  return ring.read.load(std::memory_order_acquire) == ring.written.load(std::memory_order_relaxed);
}

uint32_t SharedGroup::Moves() const { return header_->moves; }

void SharedGroup::WaitForMove(uint32_t seen) const {
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 10'000'000};
  ++header_->waiting;
  syscall(SYS_futex, &header_->moves, FUTEX_WAIT, seen, &kPause, nullptr, 0);
  --header_->waiting;
}

void SharedGroup::Moved() {
  ++header_->moves;
  if (header_->waiting > 0) {
    syscall(SYS_futex, &header_->moves, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace emulated_gpu
