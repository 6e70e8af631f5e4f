#include "parallel/plan/in_flight.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

namespace deepnet {
namespace {

bool IsInputPass(Op op) { return op == Op::kBackward || op == Op::kBackwardInput; }

// Adds `now` unless some moment has as much of everything; drops those that it has as much as.
void AddMoment(const std::vector<int>& now, std::vector<std::vector<int>>& moments) {
  const auto covers = [](const std::vector<int>& x, const std::vector<int>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), std::greater_equal<int>());
  };
  for (const std::vector<int>& moment : moments) {
    if (covers(moment, now)) return;
  }
  std::erase_if(moments, [&](const std::vector<int>& moment) { return covers(now, moment); });
  moments.push_back(now);
}

// What is in flight on a rank at its fullest moments, by its chunks in chain order.
std::vector<std::vector<int>> FullestMoments(const std::vector<Action>& actions) {
  std::map<int, size_t> place;  // of a chunk among the rank's
  for (const Action& action : actions) place[action.chunk] = 0;
  size_t next = 0;
  for (auto& [chunk, index] : place) index = next++;
  std::vector<int> now(place.size(), 0);
  std::vector<std::vector<int>> moments;
  bool grew = false;
  for (const Action& action : actions) {
    int& alive = now[place[action.chunk]];
    if (action.op == Op::kForward) {
      ++alive;
      grew = true;
    }
    if (!IsInputPass(action.op)) continue;
    if (grew) AddMoment(now, moments);
    grew = false;
    --alive;
  }
  if (grew) AddMoment(now, moments);
  return moments;
}

// Buffers of the deferred weight gradients of one rank: a pool for each shape, which never shrinks.
class DeferredPools {
 public:
  DeferredPools(std::span<const std::vector<PendingMatrices>> pending, int per_sum)
      : pending_(pending), per_sum_(per_sum) {}

  void Take(const Action& action) {
    std::deque<int>& waiting = waiting_[action.chunk];
    if (IsInputPass(action.op)) FinishSumsBefore(action, waiting);
    if (action.op == Op::kBackwardInput) {
      waiting.push_back(action.microbatch);
      Change(action.chunk, 1);
    }
    if (action.op == Op::kBackwardWeight) {
      const auto found = std::find(waiting.begin(), waiting.end(), action.microbatch);
      if (found == waiting.end()) return;  // computed already
      waiting.erase(found);
      Change(action.chunk, -1);
    }
  }

  int64_t most_bytes() const {
    int64_t bytes = 0;
    for (const auto& [shape, pool] : pools_) bytes += pool.most;
    return bytes;
  }

 private:
  struct Pool {
    int64_t now = 0, most = 0;  // bytes
  };

  void FinishSumsBefore(const Action& action, std::deque<int>& waiting) {
    const int first = action.microbatch / per_sum_ * per_sum_;
    for (; !waiting.empty() && waiting.front() < first; waiting.pop_front()) {
      Change(action.chunk, -1);
    }
  }

  void Change(int chunk, int microbatches) {
    for (const PendingMatrices& matrices : pending_[chunk]) {
      Pool& pool = pools_[{matrices.rows, matrices.columns}];
      pool.now += microbatches * matrices.bytes;
      pool.most = std::max(pool.most, pool.now);
    }
  }

  const std::span<const std::vector<PendingMatrices>> pending_;
  const int per_sum_;
  std::map<int, std::deque<int>> waiting_;             // microbatches, by chunk
  std::map<std::pair<int64_t, int64_t>, Pool> pools_;  // by rows and columns
};

}  // namespace

InFlight CountInFlight(const Schedule& schedule,
                       std::span<const std::vector<PendingMatrices>> pending, int per_sum) {
  std::vector<int> now(pending.size(), 0);
  InFlight most{.slots = now, .deferred_bytes = {}, .moments = {}};
  for (const std::vector<Action>& actions : schedule.actions) {
    DeferredPools deferred(pending, per_sum);
    for (const Action& action : actions) {
      const int c = action.chunk;
      if (action.op == Op::kForward) most.slots[c] = std::max(most.slots[c], ++now[c]);
      if (IsInputPass(action.op)) --now[c];
      deferred.Take(action);
    }
    most.deferred_bytes.push_back(deferred.most_bytes());
    most.moments.push_back(FullestMoments(actions));
  }
  return most;
}

}  // namespace deepnet
