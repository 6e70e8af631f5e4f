// The scheduler of the kernel emulator. A fiber takes a thread of the block and calls the kernel.
// Where the thread must wait, the fiber switches to that of another thread which can go on; where
// it has left, the fiber takes the next thread that has not started. A kernel without barriers thus
// runs a whole block on one fiber. Threads that can run are bits: one word a warp, and one word of
// the warps that have any.
//
// Under ThreadSanitizer each thread of a block is a fiber of its own, which starts behind what the
// block's maker did. The blocks of a kernel take the sanitizer's fibers in turn: threads that share
// one, kSanitizerFibers threads apart, are one thread to it. This file is compiled without
// -fsanitize=thread there, and calls no memset that the sanitizer would see.
#include "tests/gpu/emulated/cuda_on_host.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <boost/context/detail/fcontext.hpp>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_GPU_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_GPU_ASAN
#endif
#endif
#if defined(EMULATED_GPU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(EMULATED_GPU_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulated_gpu {
namespace internal {

BlockState block_state;
const uint3* thread_index;

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t kPageBytes = 4096;
constexpr size_t kSanitizerFibers = 6000;  // it has 8128 threads
constexpr int kMaxWarps = kMaxBlockThreads / kWarpLanes;

#if defined(EMULATED_GPU_TSAN)
constexpr bool kFiberPerThread = true;
constexpr size_t kStackBytes = 64 << 10;  // the sanitizer takes time for every byte that is mapped
void Release(char* sync) { __tsan_release(sync); }
void Acquire(char* sync) { __tsan_acquire(sync); }
#else
constexpr bool kFiberPerThread = false;
constexpr size_t kStackBytes = 128 << 10;
void Release(char*) {}
void Acquire(char*) {}
#endif

// Shared memory has gaps between the variables, which AddressSanitizer guards.
#if defined(EMULATED_GPU_ASAN)
constexpr size_t kGapBytes = 256;
#else
constexpr size_t kGapBytes = 16;
#endif
constexpr size_t kArenaBytes = kMaxSharedBytes + 128 * 2 * kGapBytes;

struct Fiber {
  fcontext_t context = nullptr;         // where it goes on; null: to be made
  unsigned char* stack_low = nullptr;   // null: the stack of the caller of RunKernel
  void* fake_stack = nullptr;           // AddressSanitizer's
  const void* sanitizer_low = nullptr;  // the stack as the sanitizer was told or says
  size_t sanitizer_bytes = kStackBytes;
  void* sanitizer_fiber = nullptr;  // ThreadSanitizer's
};

enum class State : uint8_t { kReady, kWaitsForBlock, kWaitsInWarp, kLeft };

struct Thread {
  uint3 index;
  int number;    // in the block
  Fiber* fiber;  // null: has not started, or has left
  State state;
  WarpOperation operation;
  int source;      // the lane that it reads
  int phase;       // of the sanitizer's addresses
  uint32_t mask;   // of its operation in the warp
  uint64_t value;  // that it brings to the operation, then the result
  Place place;     // where it waits
};

// Sets of lanes.
struct Warp {
  uint32_t existing = 0, ready = 0, left = 0;
  uint32_t in_warp = 0, in_block = 0;  // lanes that wait, for the warp or the block
  uint32_t partial = 0;                // of in_warp, those that wait for a part of the warp
  int phase = 0;
};

uint64_t Mix(uint64_t x) {  // SplitMix64's finalizer
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

template <typename F>
void ForEachLane(uint32_t lanes, const F& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

void* MapOrDie(void* at, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
  void* p = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "emulated GPU: no memory for stacks\n");
    std::abort();
  }
  return p;
}

// Bytes 0xff, which are NaN in every floating-point format.
void FillWithNan(void* to, size_t bytes) {
  if (!kFiberPerThread) {
    std::memset(to, 0xff, bytes);
    return;
  }
  volatile unsigned char* p = static_cast<unsigned char*>(to);
  for (size_t i = 0; i < bytes; ++i) p[i] = 0xff;
}

class Machine {
 public:
  // Nothing grows later: ThreadSanitizer would see memory move beneath a fiber.
  Machine() {
    threads_.reserve(kMaxBlockThreads);
    fibers_.reserve(kMaxBlockThreads);
    free_fibers_.reserve(kMaxBlockThreads);
    sanitizer_fibers_.reserve(kSanitizerFibers);
  }

  void SetOrder(ThreadOrder order, uint64_t seed) {
    std::lock_guard lock(one_kernel_);
    order_ = order;
    seed_ = seed;
    order_is_set_ = true;
  }
  KernelStats stats() {
    std::lock_guard lock(one_kernel_);
    return stats_;
  }

  void Run(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
           const std::function<void()>& thread);

  // Called by the threads of the kernel.
  void WaitForBlock(const Place& place);
  uint64_t Exchange(WarpOperation operation, uint32_t mask, uint64_t value, int source,
                    const Place& place);
  int Lane() const { return LaneOf(*current_); }
  unsigned char* DynamicShared() { return arena_; }
  unsigned char* AddShared(size_t bytes);
  uint64_t block_number() const { return block_number_; }

 private:
  static int LaneOf(const Thread& t) { return t.number & (kWarpLanes - 1); }
  static int WarpNumberOf(const Thread& t) { return t.number >> 5; }
  Warp& WarpOf(const Thread& t) { return warps_[WarpNumberOf(t)]; }

  void ReadOrder();
  void RunBlock(uint64_t number, size_t shared_bytes);
  void PrepareThreads();
  void ResetShared(size_t shared_bytes);
  uint64_t BlockAt(uint64_t turn, uint64_t count) const;

  static void FiberMain(transfer_t from);
  static void Arrived(transfer_t from);
  void SwitchTo(Fiber& to);
  [[gnu::noinline]] Fiber& TakeFiber();
  void MakeFiber(Fiber& fiber);
  void Resume(Thread& next);
  void SetCurrent(Thread& next) {
    current_ = &next;
    thread_index = &next.index;
  }
  Thread* PickNext();
  void MakeReady(int warp, uint32_t lanes);
  void Wait(State state);
  void Leave();
  uint32_t OthersWith(uint32_t mask, const Warp& warp) const;
  void Finish(Warp& warp, uint32_t mask);
  [[noreturn, gnu::noinline, gnu::cold]] void Fail(const std::string& why);
  void PrintThreads(State state, const char* what);

  std::mutex one_kernel_;
  ThreadOrder order_ = ThreadOrder::kForward;
  uint64_t seed_ = 0;
  bool order_is_set_ = false;
  KernelStats stats_;

  // The kernel that runs.
  const char* name_ = "";
  const std::function<void()>* body_ = nullptr;
  Fiber caller_;
  Fiber* running_ = nullptr;

  // The block that runs.
  uint64_t block_number_ = 0;
  uint64_t random_ = 0;
  std::vector<Thread> threads_;
  std::array<Warp, kMaxWarps> warps_;
  uint32_t ready_warps_ = 0;
  Thread* current_ = nullptr;
  int live_ = 0, left_ = 0, in_block_ = 0, block_phase_ = 0;
  Place block_place_ = {};
  unsigned char* arena_ = nullptr;
  size_t arena_used_ = 0, shared_used_ = 0;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
  std::vector<void*> sanitizer_fibers_;  // ThreadSanitizer's: to make one takes it 0.1 ms
  size_t next_sanitizer_fiber_ = 0;

  // Addresses for the sanitizer, alternating from one barrier to the next: a thread that is already
  // at the next one does not release into what slow threads have still to acquire.
  char block_sync_[2] = {}, warp_sync_[kMaxWarps][2] = {}, start_sync_ = 0, end_sync_ = 0;
};

Machine& machine() {
  static Machine* const one = new Machine;  // never destroyed: streams may outlive main()
  return *one;
}

// --- Mistakes ---

std::string Text(const uint3& at) {
  return "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + ")";
}

// One line for each place: its first thread, and how many more are there.
void Machine::PrintThreads(State state, const char* what) {
  std::map<std::string, std::pair<const Thread*, int>> groups;
  for (const Thread& t : threads_) {
    if (t.state != state) continue;
    std::string where;
    if (state != State::kLeft) {
      where = std::string(" ") + t.place.operation + ", " + t.place.file + ":" +
              std::to_string(t.place.line);
    }
    auto& group = groups.try_emplace(where, &t, 0).first->second;
    ++group.second;
  }
  for (const auto& [where, group] : groups) {
    std::fprintf(stderr, "  thread %s %s%s", Text(group.first->index).c_str(), what, where.c_str());
    if (group.second > 1) std::fprintf(stderr, ", and %d more", group.second - 1);
    std::fprintf(stderr, "\n");
  }
}

void Machine::Fail(const std::string& why) {
  std::fprintf(stderr, "emulated GPU: kernel %s, block %s: %s\n", name_,
               Text(block_state.block_index).c_str(), why.c_str());
  if (current_ != nullptr) {
    std::fprintf(stderr, "  seen by thread %s\n", Text(current_->index).c_str());
    PrintThreads(State::kWaitsForBlock, "waits at");
    PrintThreads(State::kWaitsInWarp, "waits at");
    PrintThreads(State::kLeft, "has left");
  }
  std::fflush(stderr);
  std::abort();
}

// --- Fibers ---

void Machine::Arrived(transfer_t from) {
  Fiber& left = *static_cast<Fiber*>(from.data);
  left.context = from.fctx;
#if defined(EMULATED_GPU_ASAN)
  __sanitizer_finish_switch_fiber(machine().running_->fake_stack, &left.sanitizer_low,
                                  &left.sanitizer_bytes);
#endif
}

void Machine::SwitchTo(Fiber& to) {
  ++stats_.switches;
  Fiber& from = *running_;
  running_ = &to;
#if defined(EMULATED_GPU_TSAN)
  __tsan_switch_to_fiber(to.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#elif defined(EMULATED_GPU_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.sanitizer_low, to.sanitizer_bytes);
#endif
  Arrived(jump_fcontext(to.context, &from));
}

void Machine::FiberMain(transfer_t from) {
  Arrived(from);
  for (Machine& m = machine();;) {
    Acquire(&m.start_sync_);
    (*m.body_)();
    m.Leave();
  }
}

// A context at the top of the fiber's stack. Tops differ in their place within a page, so that the
// hot ends of many stacks do not compete for a few lines of the cache.
void Machine::MakeFiber(Fiber& fiber) {
  const size_t stagger = fibers_.size() * 320 % kPageBytes;
  fiber.sanitizer_low = fiber.stack_low;
  fiber.fake_stack = nullptr;
  fiber.context =
      make_fcontext(fiber.stack_low + kStackBytes - stagger, kStackBytes - stagger, FiberMain);
}

Fiber& Machine::TakeFiber() {
  if (free_fibers_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber& fiber = *fibers_.back();
    auto* low = static_cast<unsigned char*>(MapOrDie(nullptr, kStackBytes + kPageBytes));
    mprotect(low, kPageBytes, PROT_NONE);
    fiber.stack_low = low + kPageBytes;
    MakeFiber(fiber);
    return fiber;
  }
  Fiber& fiber = *free_fibers_.back();
  free_fibers_.pop_back();
  return fiber;
}

void Machine::Resume(Thread& next) {
  SetCurrent(next);
  if (next.fiber == nullptr) next.fiber = &TakeFiber();
  SwitchTo(*next.fiber);
}

// --- Who runs ---

Thread* Machine::PickNext() {
  if (ready_warps_ == 0) return nullptr;
  int w = 0, lane = 0;
  if (order_ == ThreadOrder::kShuffled) {
    random_ = Mix(random_);
    const auto turned = [](uint32_t set, int by) {
      return (std::countr_zero(std::rotr(set, by)) + by) % kWarpLanes;
    };
    w = turned(ready_warps_, static_cast<int>(random_ % kWarpLanes));
    lane = turned(warps_[w].ready, static_cast<int>(random_ >> 32) & (kWarpLanes - 1));
  } else {
    // A warp goes on as long as it can: its stacks stay in the cache.
    const bool forward = order_ == ThreadOrder::kForward;
    if (current_ != nullptr && (ready_warps_ >> WarpNumberOf(*current_) & 1)) {
      w = WarpNumberOf(*current_);
    } else {
      w = forward ? std::countr_zero(ready_warps_) : 31 - std::countl_zero(ready_warps_);
    }
    const uint32_t ready = warps_[w].ready;
    lane = forward ? std::countr_zero(ready) : 31 - std::countl_zero(ready);
  }
  warps_[w].ready &= ~(1u << lane);
  if (warps_[w].ready == 0) ready_warps_ &= ~(1u << w);
  return &threads_[w * kWarpLanes + lane];
}

void Machine::MakeReady(int warp, uint32_t lanes) {
  if (lanes == 0) return;
  warps_[warp].ready |= lanes;
  ready_warps_ |= 1u << warp;
  ForEachLane(lanes, [&](int l) { threads_[warp * kWarpLanes + l].state = State::kReady; });
}

// The current thread waits: another one runs until something has made this one ready.
void Machine::Wait(State state) {
  current_->state = state;
  Thread* next = PickNext();
  if (next == nullptr) Fail("threads wait for each other");
  Resume(*next);
}

// The current thread has left the kernel. Its fiber takes another thread, or waits to be taken.
void Machine::Leave() {
  Thread& me = *current_;
  Fiber& fiber = *running_;
  Warp& warp = WarpOf(me);
  Release(&end_sync_);
  me.state = State::kLeft;
  me.fiber = nullptr;
  warp.left |= 1u << LaneOf(me);
  ++left_;
  --live_;
  bool awaited = in_block_ > 0;
  ForEachLane(warp.in_warp, [&](int l) {
    awaited |= (threads_[me.number - LaneOf(me) + l].mask & warp.left) != 0;
  });
  if (awaited) Fail("a thread has left while others wait for it");
  Thread* next = PickNext();
  if (next == nullptr && live_ > 0) Fail("threads wait for each other");
  if (next != nullptr && next->fiber == nullptr) {
    next->fiber = &fiber;
    SetCurrent(*next);
    return;
  }
  free_fibers_.push_back(&fiber);
  if (next == nullptr) {
    SwitchTo(caller_);
  } else {
    Resume(*next);
  }
}

// --- Barriers and exchanges ---

bool Same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool Same(const Place& a, const Place& b) {
  return a.line == b.line && Same(a.operation, b.operation) && Same(a.file, b.file);
}

void Machine::WaitForBlock(const Place& place) {
  Thread& me = *current_;
  me.place = place;
  if (left_ > 0) {
    me.state = State::kWaitsForBlock;
    Fail("a thread is at a barrier after another has left");
  }
  if (in_block_ > 0 && !Same(block_place_, place)) {
    me.state = State::kWaitsForBlock;
    Fail("threads of one block are at different barriers");
  }
  block_place_ = place;
  const int phase = block_phase_;
  Release(&block_sync_[phase]);
  if (++in_block_ == live_) {
    in_block_ = 0;
    block_phase_ ^= 1;
    const int num_warps = static_cast<int>(threads_.size() + kWarpLanes - 1) / kWarpLanes;
    for (int w = 0; w < num_warps; ++w) {
      MakeReady(w, warps_[w].in_block);
      warps_[w].in_block = 0;
    }
  } else {
    WarpOf(me).in_block |= 1u << LaneOf(me);
    Wait(State::kWaitsForBlock);
  }
  Acquire(&block_sync_[phase]);
}

// All lanes of `mask` are there: what each of them gets.
void Machine::Finish(Warp& warp, uint32_t mask) {
  Thread* const first = &threads_[(&warp - warps_.data()) * kWarpLanes];
  std::array<uint64_t, kWarpLanes> values = {};
  uint64_t ballot = 0;
  ForEachLane(mask, [&](int l) {
    values[l] = first[l].value;
    ballot |= uint64_t{first[l].value != 0} << l;
  });
  ForEachLane(mask, [&](int l) {
    Thread& t = first[l];
    switch (t.operation) {
      case WarpOperation::kBarrier:
        break;
      case WarpOperation::kShuffle:
        if (!(mask >> t.source & 1)) {
          Fail("lane " + std::to_string(l) + " reads lane " + std::to_string(t.source) +
               ", which is not in the mask");
        }
        t.value = values[t.source];
        break;
      case WarpOperation::kAny:
        t.value = ballot != 0;
        break;
      case WarpOperation::kAll:
        t.value = ballot == mask;
        break;
      case WarpOperation::kBallot:
        t.value = ballot;
        break;
    }
  });
}

// Lanes that wait with this mask. Parts of a warp may be at operations of their own.
uint32_t Machine::OthersWith(uint32_t mask, const Warp& warp) const {
  if (mask == warp.existing) return warp.in_warp & ~warp.partial;
  const Thread* const first = &threads_[(&warp - warps_.data()) * kWarpLanes];
  uint32_t others = 0;
  ForEachLane(warp.partial & mask, [&](int l) { others |= uint32_t{first[l].mask == mask} << l; });
  return others;
}

uint64_t Machine::Exchange(WarpOperation operation, uint32_t mask, uint64_t value, int source,
                           const Place& place) {
  Thread& me = *current_;
  Warp& warp = WarpOf(me);
  const int number = WarpNumberOf(me);
  const uint32_t own = 1u << LaneOf(me);
  mask &= warp.existing;  // a block may end within a warp
  me.operation = operation;
  me.mask = mask;
  me.value = value;
  me.source = source;
  me.place = place;
  me.phase = warp.phase;
  const auto refuse = [&](const char* why) {
    me.state = State::kWaitsInWarp;
    Fail(why);
  };
  if (!(mask & own)) refuse("a lane is not in its own mask");
  if (mask & warp.left) refuse("a lane of the mask has left");
  const uint32_t others = OthersWith(mask, warp);
  if (others != 0) {
    const Thread& other = threads_[number * kWarpLanes + std::countr_zero(others)];
    if (!Same(other.place, place)) refuse("lanes of one warp are at different operations");
    me.phase = other.phase;
  }
  const int phase = me.phase;
  Release(&warp_sync_[number][phase]);
  if ((others | own) == mask) {
    Finish(warp, mask);
    warp.phase ^= 1;
    warp.in_warp &= ~others;
    warp.partial &= ~others;
    MakeReady(number, others);
  } else {
    warp.in_warp |= own;
    if (mask != warp.existing) warp.partial |= own;
    Wait(State::kWaitsInWarp);
  }
  Acquire(&warp_sync_[number][phase]);
  return me.value;
}

// --- Shared memory ---

void Machine::ResetShared(size_t shared_bytes) {
  if (arena_ == nullptr || kFiberPerThread) {
    // Mapped anew, the memory has no past that the sanitizer would compare with.
    arena_ = static_cast<unsigned char*>(MapOrDie(arena_, kArenaBytes));
  }
#if defined(EMULATED_GPU_ASAN)
  __asan_poison_memory_region(arena_, kArenaBytes);
#endif
  arena_used_ = shared_used_ = 0;
  AddShared(shared_bytes);
}

unsigned char* Machine::AddShared(size_t bytes) {
  unsigned char* p = arena_ + arena_used_;
  arena_used_ += (bytes + kGapBytes - 1) / kGapBytes * kGapBytes + kGapBytes;
  shared_used_ += bytes;
  if (shared_used_ > kMaxSharedBytes || arena_used_ > kArenaBytes) {
    Fail("more than " + std::to_string(kMaxSharedBytes) + " bytes of shared memory");
  }
#if defined(EMULATED_GPU_ASAN)
  __asan_unpoison_memory_region(p, bytes);
#endif
  FillWithNan(p, bytes);
  return p;
}

// --- Blocks and kernels ---

void Machine::PrepareThreads() {
  const dim3& block = block_state.block;
  const unsigned count = block.x * block.y * block.z;
  threads_.resize(count);
  uint3 at = {0, 0, 0};
  for (Thread& t : threads_) {
    t.index = at;
    t.number = static_cast<int>(&t - threads_.data());
    t.fiber = nullptr;
    t.state = State::kReady;
    if (++at.x < block.x) continue;
    at.x = 0;
    if (++at.y < block.y) continue;
    at.y = 0;
    ++at.z;
  }
  const unsigned num_warps = (count + kWarpLanes - 1) / kWarpLanes;
  ready_warps_ = 0;
  for (unsigned w = 0; w < num_warps; ++w) {
    const unsigned lanes = count - w * kWarpLanes;
    warps_[w] = {};
    warps_[w].existing = lanes >= kWarpLanes ? ~0u : (1u << lanes) - 1;
    warps_[w].ready = warps_[w].existing;
    ready_warps_ |= 1u << w;
  }
  live_ = static_cast<int>(count);
  left_ = in_block_ = block_phase_ = 0;
  current_ = nullptr;
  stats_.threads += count;
}

// The turns' blocks: 0, 1, ...; the reverse; or steps of a length that has no divisor in common
// with their number.
uint64_t Machine::BlockAt(uint64_t turn, uint64_t count) const {
  if (order_ == ThreadOrder::kForward) return turn;
  if (order_ == ThreadOrder::kBackward) return count - 1 - turn;
  uint64_t step = Mix(seed_) % count;
  while (std::gcd(step, count) != 1) step = (step + 1) % count;
  return (Mix(seed_ + 1) % count + turn * step) % count;
}

void Machine::RunBlock(uint64_t number, size_t shared_bytes) {
  const dim3& grid = block_state.grid;
  block_state.block_index = {static_cast<unsigned>(number % grid.x),
                             static_cast<unsigned>(number / grid.x % grid.y),
                             static_cast<unsigned>(number / grid.x / grid.y)};
  ++block_number_;
  random_ = Mix(seed_ ^ number << 32);
  PrepareThreads();
  ResetShared(shared_bytes);
#if defined(EMULATED_GPU_TSAN)
  for (Thread& t : threads_) {
    t.fiber = &TakeFiber();
    // The stack mapped anew: the sanitizer forgets which fiber used it.
    MapOrDie(t.fiber->stack_low, kStackBytes);
    MakeFiber(*t.fiber);
    if (next_sanitizer_fiber_ == kSanitizerFibers) next_sanitizer_fiber_ = 0;
    if (next_sanitizer_fiber_ == sanitizer_fibers_.size()) {
      sanitizer_fibers_.push_back(__tsan_create_fiber(0));
    }
    t.fiber->sanitizer_fiber = sanitizer_fibers_[next_sanitizer_fiber_++];
  }
#endif
  Release(&start_sync_);
  Resume(*PickNext());
}

void Machine::ReadOrder() {
  if (order_is_set_) return;
  order_is_set_ = true;
  const char* text = std::getenv("DEEPNET_EMULATED_ORDER");
  if (text == nullptr) return;
  const std::string order = text;
  if (order == "forward") return;
  if (order == "backward") {
    order_ = ThreadOrder::kBackward;
  } else if (order.starts_with("shuffled:")) {
    order_ = ThreadOrder::kShuffled;
    seed_ = std::strtoull(text + std::strlen("shuffled:"), nullptr, 10);
  } else {
    Fail("DEEPNET_EMULATED_ORDER is '" + order + "', not forward, backward or shuffled:SEED");
  }
}

void Machine::Run(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
                  const std::function<void()>& thread) {
  std::lock_guard lock(one_kernel_);
  name_ = name;
  current_ = nullptr;
  ReadOrder();
  block_state = {grid, block, {0, 0, 0}};
  if (CheckLaunch(grid, block, shared_bytes) != cudaSuccess) {
    Fail("a grid, block or shared memory that a GPU does not take");
  }
  body_ = &thread;
  running_ = &caller_;
#if defined(EMULATED_GPU_TSAN)
  caller_.sanitizer_fiber = __tsan_get_current_fiber();
#endif
  next_sanitizer_fiber_ = 0;  // the end of the kernel before orders it before this one
  const uint64_t count = uint64_t{grid.x} * grid.y * grid.z;
  for (uint64_t turn = 0; turn < count; ++turn) RunBlock(BlockAt(turn, count), shared_bytes);
  Acquire(&end_sync_);  // only here, as only the end of a kernel orders its blocks
}

}  // namespace

uint3 ThreadIndex() { return *thread_index; }
BlockState State() { return block_state; }
int Lane() { return machine().Lane(); }

// Flattened: a processor foresees no return behind a switch of stacks, so there had better be few.
[[gnu::flatten]] void BlockBarrier(const Place& place) { machine().WaitForBlock(place); }
[[gnu::flatten]] uint64_t ExchangeInWarp(WarpOperation operation, uint32_t mask, uint64_t value,
                                         int source, const Place& place) {
  return machine().Exchange(operation, mask, value, source, place);
}
void* DynamicShared() { return machine().DynamicShared(); }

void* SharedVariable::Get(size_t bytes) {
  Machine& m = machine();
  if (block_ != m.block_number()) {
    block_ = m.block_number();
    data_ = m.AddShared(bytes);
  }
  return data_;
}

}  // namespace internal

void SetThreadOrder(ThreadOrder order, uint64_t seed) { internal::machine().SetOrder(order, seed); }

void RunKernel(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
               const std::function<void()>& thread) {
  internal::machine().Run(name, grid, block, shared_bytes, thread);
}

KernelStats ReadKernelStats() { return internal::machine().stats(); }

}  // namespace emulated_gpu
