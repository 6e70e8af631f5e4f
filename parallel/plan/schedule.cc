#include "parallel/plan/schedule.h"

#include <algorithm>

#include "parallel/base/check.h"

namespace deepnet {

Schedule MakeTrivial(int num_microbatches) {
  return MakeOneForwardOneBackward({.num_microbatches = num_microbatches});
}

Schedule MakeGPipe(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.chunks_per_rank, 1);
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const Op op : {Op::kForward, Op::kBackward}) {
      for (int mb = 0; mb < shape.num_microbatches; ++mb) actions.push_back({op, rank, mb});
    }
  }
  return schedule;
}

Schedule MakeOneForwardOneBackward(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.chunks_per_rank, 1);
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int num_ahead = std::min(shape.num_ranks - rank, shape.num_microbatches);
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (int mb = 0; mb < num_ahead; ++mb) actions.push_back({Op::kForward, rank, mb});
    for (int mb = 0; mb < shape.num_microbatches; ++mb) {
      actions.push_back({Op::kBackward, rank, mb});
      const int next = num_ahead + mb;  // the slot that the backward just freed
      if (next < shape.num_microbatches) actions.push_back({Op::kForward, rank, next});
    }
  }
  return schedule;
}

int PeakAlive(const Schedule& schedule, int rank) {
  int alive = 0, peak = 0;
  for (const Action& action : schedule.actions[rank]) {
    if (action.op == Op::kForward) ++alive;
    if (action.op == Op::kBackward || action.op == Op::kBackwardWeight) --alive;
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace deepnet
