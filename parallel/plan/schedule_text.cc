#include "parallel/plan/schedule_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

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
    return absl::InvalidArgumentError(absl::StrCat("expected '", head, "'"));
  }
  std::vector<Action> actions;
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::optional<Action> action = ParseAction({word.data(), word.size()});
    if (!action) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", word, "' is not <chunk><F, B, I, W, SF, RF, SB or RB><microbatch>"));
    }
    actions.push_back(*action);
  }
  return actions;
}

}  // namespace

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
      return absl::InvalidArgumentError(
          absl::StrCat("schedule, line ", line_number, ": ", actions.status().message()));
    }
    schedule.actions.push_back(*std::move(actions));
  }
  return schedule;
}

}  // namespace deepnet
