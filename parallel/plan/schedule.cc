#include "parallel/plan/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"F",  "B",  "I",  "W",
                                                    "SF", "RF", "SB", "RB"};  // in the order of Op

// Digits at the start of `text`, which are removed.
std::optional<int> ConsumeNumber(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(end - text.data());
  return number;
}

std::optional<Action> ParseAction(std::string_view word) {
  const std::optional<int> chunk = ConsumeNumber(word);
  const std::string_view name = word.substr(0, word.find_first_of("0123456789"));
  word.remove_prefix(name.size());
  const auto op = std::find(kNames.begin(), kNames.end(), name);
  const std::optional<int> microbatch = ConsumeNumber(word);
  if (!chunk || op == kNames.end() || !microbatch || !word.empty()) return std::nullopt;
  return Action{static_cast<Op>(op - kNames.begin()), *chunk, *microbatch};
}

// One line without comment; `rank` is the one that must come next.
absl::StatusOr<std::vector<Action>> ParseLine(absl::string_view line, int rank) {
  const std::string head = absl::StrCat("rank ", rank, ":");
  if (!absl::ConsumePrefix(&line, head)) {
    return InvalidArgument("expected '", head, "'");
  }
  std::vector<Action> actions;
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::optional<Action> action = ParseAction({word.data(), word.size()});
    if (!action) {
      return InvalidArgument("'", word,
                             "' is not <chunk><F, B, I, W, SF, RF, SB or RB><microbatch>");
    }
    actions.push_back(*action);
  }
  return actions;
}

}  // namespace

int NumMicrobatches(const Schedule& schedule) {
  int count = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) count = std::max(count, action.microbatch + 1);
  }
  return count;
}

int PeakAlive(const Schedule& schedule, int rank) {
  int alive = 0, peak = 0;
  for (const Action& action : schedule.actions[rank]) {
    if (action.op == Op::kForward) ++alive;
    if (IsWeightPass(action.op)) --alive;
    peak = std::max(peak, alive);
  }
  return peak;
}

bool HasTransfers(const Schedule& schedule) {
  const auto transfers = [](const Action& action) { return IsTransfer(action.op); };
  return absl::c_any_of(schedule.actions, [&](const std::vector<Action>& actions) {
    return absl::c_any_of(actions, transfers);
  });
}

std::optional<Action> ScheduleProgress::WaitsFor(const Action& action) const {
  const int chunk = action.chunk, mb = action.microbatch;
  const auto received_at = [&](int cut) { return transfers != nullptr && transfers->Crosses(cut); };
  const auto need = [&](Op op, int of_chunk) {
    const Action needed{op, of_chunk, mb};
    return done.contains(needed) ? std::nullopt : std::optional(needed);
  };
  const auto has_gradient = [&](int of_chunk) {
    return !need(Op::kBackward, of_chunk) || !need(Op::kBackwardInput, of_chunk);
  };
  switch (action.op) {
    case Op::kForward:
      if (chunk == 0) return std::nullopt;
      return received_at(chunk) ? need(Op::kReceiveForward, chunk) : need(Op::kForward, chunk - 1);
    case Op::kBackward:
    case Op::kBackwardInput:
      if (const auto forward = need(Op::kForward, chunk)) return forward;
      if (received_at(chunk + 1)) return need(Op::kReceiveBackward, chunk);
      if (chunk + 1 == num_chunks || has_gradient(chunk + 1)) return std::nullopt;
      return Action{action.op, chunk + 1, mb};
    case Op::kBackwardWeight:
      return need(Op::kBackwardInput, chunk);
    case Op::kSendForward:
      return need(Op::kForward, chunk);
    case Op::kSendBackward:
      return has_gradient(chunk) ? std::nullopt : need(Op::kBackward, chunk);
    case Op::kReceiveForward:
    case Op::kReceiveBackward:
      return OtherEnd(action);
  }
  return std::nullopt;
}

Action OtherEnd(const Action& transfer) {
  const auto& [op, chunk, microbatch] = transfer;
  DEEPNET_CHECK(IsTransfer(op)) << "computes, transfers nothing";
  const bool forward = IsForward(op);
  if (IsSend(op)) {
    return {forward ? Op::kReceiveForward : Op::kReceiveBackward, chunk + (forward ? 1 : -1),
            microbatch};
  }
  return {forward ? Op::kSendForward : Op::kSendBackward, chunk + (forward ? -1 : 1), microbatch};
}

std::string ToText(const Action& action) {
  return absl::StrCat(action.chunk, std::string(kNames[static_cast<size_t>(action.op)]),
                      action.microbatch);
}

std::string ToText(const Schedule& schedule) {
  std::string text;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const Action& action : schedule.actions[rank]) absl::StrAppend(&text, " ", ToText(action));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<Schedule> ParseSchedule(std::string_view text) {
  Schedule schedule;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<std::vector<Action>> actions =
        ParseLine(line, static_cast<int>(schedule.actions.size()));
    if (!actions.ok()) {
      return InvalidArgument("schedule, line ", line_number, ": ", actions.status().message());
    }
    schedule.actions.push_back(*std::move(actions));
  }
  return schedule;
}

}  // namespace deepnet
