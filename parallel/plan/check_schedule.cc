// Two passes. The first looks at each rank's list alone (ranges, owners, doubles, order of weight
// gradients) and counts what is missing. The second lets every rank run as far as its dependencies
// allow, in turns, until nobody moves: whoever is not at its end then would wait for ever, because
// an action that is done stays done and the order of turns cannot matter.

#include "parallel/plan/check_schedule.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

// Which ops of one (chunk, microbatch) have been seen.
struct Seen {
  bool forward = false, backward = false, input = false, weight = false;

  bool& Of(Op op) {
    switch (op) {
      case Op::kForward:
        return forward;
      case Op::kBackward:
        return backward;
      case Op::kBackwardInput:
        return input;
      case Op::kBackwardWeight:
        return weight;
      default:
        break;
    }
    return forward;
  }
  bool InputGradient() const { return backward || input; }
  bool Complete() const { return forward && (backward || (input && weight)); }
};

class Checker {
 public:
  Checker(const Schedule& schedule, const PipelineShape& shape)
      : schedule_(schedule), shape_(shape), num_chunks_(shape.num_ranks * shape.chunks_per_rank) {}

  absl::Status Run() {
    if (static_cast<int>(schedule_.actions.size()) != shape_.num_ranks) {
      return absl::InvalidArgumentError(absl::StrCat("schedule: ", schedule_.actions.size(),
                                                     " ranks listed, expected ", shape_.num_ranks));
    }
    RETURN_IF_ERROR(CheckLists());
    RETURN_IF_ERROR(CheckComplete());
    return CheckProgress();
  }

 private:
  std::vector<Seen> NothingSeen() const {
    return std::vector<Seen>(static_cast<size_t>(num_chunks_) * shape_.num_microbatches);
  }
  size_t Cell(int chunk, int microbatch) const {
    return static_cast<size_t>(chunk) * shape_.num_microbatches + microbatch;
  }
  static absl::Status Offence(int rank, const Action& action, std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("schedule: rank ", rank, ", action ",
                                                   ToText(action), ": ", std::string(what)));
  }

  absl::Status CheckLists() {
    seen_ = NothingSeen();
    std::vector<int> owner(num_chunks_, -1), next_weight(num_chunks_, 0);
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (const Action& action : schedule_.actions[rank]) {
        RETURN_IF_ERROR(CheckAction(rank, action, owner, next_weight));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAction(int rank, const Action& action, std::vector<int>& owner,
                           std::vector<int>& next_weight) {
    if (action.chunk < 0 || action.chunk >= num_chunks_) {
      return Offence(rank, action, absl::StrCat("there are only ", num_chunks_, " chunks"));
    }
    if (action.microbatch < 0 || action.microbatch >= shape_.num_microbatches) {
      return Offence(rank, action,
                     absl::StrCat("there are only ", shape_.num_microbatches, " microbatches"));
    }
    int& owned_by = owner[action.chunk];
    if (owned_by >= 0 && owned_by != rank) {
      return Offence(rank, action, absl::StrCat("the chunk belongs to rank ", owned_by));
    }
    owned_by = rank;
    Seen& seen = seen_[Cell(action.chunk, action.microbatch)];
    if (seen.Of(action.op)) return Offence(rank, action, "a second time");
    seen.Of(action.op) = true;
    if (seen.backward && (seen.input || seen.weight)) {
      return Offence(rank, action, "a backward pass is either one B or one I and one W");
    }
    if (action.op == Op::kBackward || action.op == Op::kBackwardWeight) {
      if (action.microbatch < next_weight[action.chunk]) {
        return Offence(rank, action, "weight gradients must come in ascending microbatch order");
      }
      next_weight[action.chunk] = action.microbatch + 1;
    }
    return absl::OkStatus();
  }

  absl::Status CheckComplete() const {
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      for (int mb = 0; mb < shape_.num_microbatches; ++mb) {
        if (seen_[Cell(chunk, mb)].Complete()) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("schedule: chunk ", chunk, ", microbatch ", mb,
                         ": needs one F and either one B or one I and one W"));
      }
    }
    return absl::OkStatus();
  }

  bool Ready(const Action& action) const {
    const auto& at = [&](int chunk) -> const Seen& {
      return seen_[Cell(chunk, action.microbatch)];
    };
    switch (action.op) {
      case Op::kForward:
        return action.chunk == 0 || at(action.chunk - 1).forward;
      case Op::kBackwardWeight:
        return at(action.chunk).input;
      default:
        return at(action.chunk).forward &&
               (action.chunk + 1 == num_chunks_ || at(action.chunk + 1).InputGradient());
    }
  }

  absl::Status CheckProgress() {
    seen_ = NothingSeen();
    std::vector<size_t> position(shape_.num_ranks, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        const std::vector<Action>& actions = schedule_.actions[rank];
        for (; position[rank] < actions.size() && Ready(actions[position[rank]]); moved = true) {
          const Action& action = actions[position[rank]++];
          seen_[Cell(action.chunk, action.microbatch)].Of(action.op) = true;
        }
      }
    }
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      if (position[rank] == schedule_.actions[rank].size()) continue;
      return Offence(rank, schedule_.actions[rank][position[rank]],
                     "waits for ever: what it needs comes later or never");
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const PipelineShape shape_;
  const int num_chunks_;
  std::vector<Seen> seen_;  // [chunk][microbatch]
};

}  // namespace

absl::Status CheckSchedule(const Schedule& schedule, const PipelineShape& shape,
                           const ScheduleClaims&) {
  if (shape.num_ranks < 1 || shape.num_microbatches < 1 || shape.chunks_per_rank < 1) {
    return absl::InvalidArgumentError("schedule: ranks, microbatches and chunks must be positive");
  }
  return Checker(schedule, shape).Run();
}

}  // namespace deepnet
