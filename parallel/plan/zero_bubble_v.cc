// Rank r owns chunk r, met on the way down the V, and chunk 2 p - 1 - r, met on the way up.

#include "parallel/plan/zero_bubble_v.h"

#include <algorithm>
#include <array>
#include <vector>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// The actions of one chunk, each op with microbatches 0, 1, ...; surplus ones are counted only.
class ChunkActions {
 public:
  ChunkActions(int num_microbatches, int chunk)
      : num_microbatches_(num_microbatches), chunk_(chunk) {}

  int Count(Op op) const { return next_[static_cast<size_t>(op)]; }
  void Add(Op op, std::vector<Action>& list) {
    const int mb = next_[static_cast<size_t>(op)]++;
    if (mb < num_microbatches_) list.push_back({op, chunk_, mb});
  }

 private:
  const int num_microbatches_, chunk_;
  std::array<int, 4> next_ = {};
};

}  // namespace

Schedule MakeZeroBubbleV(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.chunks_per_rank, 2);
  const int p = shape.num_ranks;
  const int num = std::max(shape.num_microbatches, 2 * p - 1);  // surplus ones are left out
  Schedule schedule;
  for (int rank = 0; rank < p; ++rank) {
    ChunkActions down(shape.num_microbatches, rank), up(shape.num_microbatches, 2 * p - 1 - rank);
    std::vector<Action>& list = schedule.actions.emplace_back();
    for (int k = 0; k < 2 * (p - rank) - 1; ++k) down.Add(Op::kForward, list);
    for (int k = 0; k < rank; ++k) {
      up.Add(Op::kForward, list);
      down.Add(Op::kForward, list);
    }
    for (int k = 0; k < p - rank; ++k) {
      for (const Op op : {Op::kForward, Op::kBackwardInput, Op::kBackwardWeight}) up.Add(op, list);
    }
    while (up.Count(Op::kForward) < num) {
      if (down.Count(Op::kForward) < num) down.Add(Op::kForward, list);
      for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) down.Add(op, list);
      for (const Op op : {Op::kForward, Op::kBackwardInput, Op::kBackwardWeight}) up.Add(op, list);
    }
    for (int k = 0; k < rank; ++k) {
      down.Add(Op::kBackwardInput, list);
      up.Add(Op::kBackwardInput, list);
    }
    for (int k = 0; k < p - rank; ++k) {
      for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) down.Add(op, list);
    }
    while (up.Count(Op::kBackwardWeight) < num) up.Add(Op::kBackwardWeight, list);
    while (down.Count(Op::kBackwardWeight) < num) down.Add(Op::kBackwardWeight, list);
  }
  return schedule;
}

}  // namespace deepnet
