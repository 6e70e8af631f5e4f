#include "parallel/plan/interleaved_schedule.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace deepnet {
namespace {

// The list of a rank whose chunks are visited in turn by groups of num_ranks microbatches, forwards
// from its first chunk on, backwards from its last.
class VisitingRank {
 public:
  VisitingRank(const PipelineShape& shape, int rank) : shape_(shape), rank_(rank) {}

  // Surplus microbatches of an incomplete last group included.
  int NumVisits() const {
    const int num_groups = (shape_.num_microbatches + shape_.num_ranks - 1) / shape_.num_ranks;
    return num_groups * Round();
  }
  void Add(Op op, int visit) {
    const int lap = visit % Round() / shape_.num_ranks;
    const int mb = visit / Round() * shape_.num_ranks + visit % shape_.num_ranks;
    if (mb >= shape_.num_microbatches) return;  // surplus
    const int place = op == Op::kForward ? lap : shape_.chunks_per_rank - 1 - lap;
    actions_.push_back({op, place * shape_.num_ranks + rank_, mb});
  }
  std::vector<Action> Take() { return std::move(actions_); }

 private:
  int Round() const { return shape_.num_ranks * shape_.chunks_per_rank; }  // a group, all chunks

  const PipelineShape shape_;
  const int rank_;
  std::vector<Action> actions_;
};

}  // namespace

int NumInterleavedAhead(const PipelineShape& shape, int rank) {
  const int behind = shape.num_ranks - 1 - rank;
  if (shape.chunks_per_rank == 1) return behind;
  return 2 * behind + (shape.chunks_per_rank - 1) * shape.num_ranks;
}

Schedule MakeInterleaved(const PipelineShape& shape) {
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    VisitingRank list(shape, rank);
    const int warm_up = std::min(NumInterleavedAhead(shape, rank), list.NumVisits());
    for (int k = 0; k < list.NumVisits() + warm_up; ++k) {
      if (k < list.NumVisits()) list.Add(Op::kForward, k);
      if (k >= warm_up) list.Add(Op::kBackward, k - warm_up);
    }
    schedule.actions.push_back(list.Take());
  }
  return schedule;
}

Schedule MakeZeroBubbleInterleaved(const PipelineShape& shape) {
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    VisitingRank list(shape, rank);
    const int num = list.NumVisits();
    const int warm_up = std::min(NumInterleavedAhead(shape, rank), num);
    for (int k = 0; k < num + warm_up; ++k) {
      if (k < num) list.Add(Op::kForward, k);
      if (k < warm_up) continue;
      list.Add(Op::kBackwardInput, k - warm_up);
      if (k - warm_up >= rank) list.Add(Op::kBackwardWeight, k - warm_up - rank);
    }
    for (int k = std::max(0, num - rank); k < num; ++k) list.Add(Op::kBackwardWeight, k);
    schedule.actions.push_back(list.Take());
  }
  return schedule;
}

}  // namespace deepnet
