#include "launch/flags.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/field_names.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"

namespace deepnet {
namespace {

std::string BoundsComplaint(const Bounds& bounds, int64_t value) {
  if (value >= bounds.least && value <= bounds.most) return "";
  if (bounds.most == Bounds().most) return absl::StrCat("must be at least ", bounds.least);
  return absl::StrCat("must be from ", bounds.least, " to ", bounds.most);
}

// Returns what is wrong with `word` as a value of `flag`; empty: nothing.
std::string Complaint(const Flag& flag, const std::string& word) {
  int64_t integer = 0;
  double number = 0.0;
  switch (flag.kind) {
    case FlagKind::kInteger:
      if (!absl::SimpleAtoi(word, &integer)) return "a whole number is needed";
      return BoundsComplaint(flag.bounds, integer);
    case FlagKind::kNumber:
      return absl::SimpleAtod(word, &number) && std::isfinite(number) ? "" : "a number is needed";
    case FlagKind::kSwitch:
      return word == "true" || word == "false" ? "" : "only true and false are allowed";
    case FlagKind::kText:
    case FlagKind::kList:
      break;
  }
  const bool known =
      flag.allowed.empty() || std::count(flag.allowed.begin(), flag.allowed.end(), word);
  return known ? "" : absl::StrCat("allowed are: ", absl::StrJoin(flag.allowed, ", "));
}

// Returns the value of a flag that is not given: its default, or 0 or false without one.
std::vector<std::string> InitialWords(const Flag& flag) {
  if (flag.kind == FlagKind::kList) return {};
  const bool is_number = flag.kind == FlagKind::kInteger || flag.kind == FlagKind::kNumber;
  if (!flag.default_value.empty() || flag.kind == FlagKind::kText) return {flag.default_value};
  return {is_number ? "0" : "false"};
}

}  // namespace

absl::Status BadConfig(const std::vector<std::string>& mistakes) {
  if (mistakes.empty()) return absl::OkStatus();
  return ConfigError(absl::StrJoin(mistakes, "\n"));
}

const ParsedFlags::Value& ParsedFlags::Get(std::string_view name) const {
  const auto found = values_.find(name);
  DEEPNET_CHECK(found != values_.end()) << "--" << name << " is not in the table";
  return found->second;
}

const std::string& ParsedFlags::Word(std::string_view name, FlagKind kind) const {
  DEEPNET_CHECK(Get(name).kind == kind) << "--" << name << " has another kind";
  return Get(name).words.front();
}

int64_t ParsedFlags::Integer(std::string_view name) const {
  int64_t result = 0;
  DEEPNET_CHECK(absl::SimpleAtoi(Word(name, FlagKind::kInteger), &result));
  return result;
}

double ParsedFlags::Number(std::string_view name) const {
  double result = 0.0;
  DEEPNET_CHECK(absl::SimpleAtod(Word(name, FlagKind::kNumber), &result));
  return result;
}

const std::vector<std::string>& ParsedFlags::List(std::string_view name) const {
  DEEPNET_CHECK(Get(name).kind == FlagKind::kList) << "--" << name << " has another kind";
  return Get(name).words;
}

absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<Flag>& table,
                                       const std::vector<std::string>& words, int max_positional) {
  ParsedFlags result;
  for (const Flag& flag : table) {
    result.values_[flag.name] = {.kind = flag.kind, .words = InitialWords(flag)};
  }
  std::vector<std::string> mistakes;
  bool only_positional = false;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--" && !only_positional) {
      only_positional = true;
      continue;
    }
    if (only_positional || !absl::StartsWith(words[i], "--")) {
      result.positional_.push_back(words[i]);
      continue;
    }
    const std::vector<std::string> sides =
        absl::StrSplit(words[i].substr(2), absl::MaxSplits('=', 1));
    const auto flag =
        std::find_if(table.begin(), table.end(), [&](const Flag& f) { return f.name == sides[0]; });
    if (flag == table.end()) {
      std::vector<std::string> names;
      for (const Flag& known : table) names.push_back("--" + known.name);
      const std::string name = "--" + sides[0];
      mistakes.push_back(absl::StrCat(name, ": unknown flag", SuggestName(name, names)));
      continue;
    }
    std::string word = sides.back();
    if (sides.size() == 1 && flag->kind == FlagKind::kSwitch) {
      word = "true";
    } else if (sides.size() == 1 && i + 1 == words.size()) {
      mistakes.push_back(absl::StrCat("--", flag->name, ": needs a value, ", flag->value));
      continue;
    } else if (sides.size() == 1) {
      word = words[++i];
    }
    ParsedFlags::Value& value = result.values_[flag->name];
    value.given = true;
    if (const std::string complaint = Complaint(*flag, word); !complaint.empty()) {
      mistakes.push_back(absl::StrCat("--", flag->name, ": ", word, ": ", complaint));
      continue;
    }
    if (flag->kind != FlagKind::kList) value.words.clear();
    value.words.push_back(std::move(word));
  }
  for (size_t i = std::max(0, max_positional); i < result.positional_.size(); ++i) {
    mistakes.push_back(absl::StrCat(result.positional_[i], ": unexpected word"));
  }
  for (const Flag& flag : table) {
    const ParsedFlags::Value& value = result.values_[flag.name];
    if (flag.required && (!value.given || std::ranges::count(value.words, ""))) {
      result.missing_.push_back(absl::StrCat("--", flag.name, ": required"));
    }
  }
  RETURN_IF_ERROR(BadConfig(mistakes));
  return result;
}

std::string WrapText(std::string_view text, int indent, int columns) {
  const std::string new_line = "\n" + std::string(indent, ' ');
  std::string result;
  for (const auto& paragraph : absl::StrSplit(std::string(text), '\n')) {
    if (!result.empty()) result += new_line;
    int column = indent;
    std::string blank;
    for (const auto& word : absl::StrSplit(paragraph, ' ')) {
      column += static_cast<int>(blank.size() + word.size());
      if (!blank.empty() && column > columns) {
        blank = new_line;
        column = indent + static_cast<int>(word.size());
      }
      absl::StrAppend(&result, blank, word);
      blank = " ";
    }
  }
  return result;
}

std::string FlagHelp(const std::vector<Flag>& table) {
  constexpr int kIndent = 26, kColumns = 100;
  std::string result;
  for (const Flag& flag : table) {
    std::string head = absl::StrCat("  --", flag.name);
    if (flag.kind != FlagKind::kSwitch) absl::StrAppend(&head, " ", flag.value);
    if (static_cast<int>(head.size()) + 2 > kIndent) {
      absl::StrAppend(&head, "\n", std::string(kIndent, ' '));
    } else {
      head.resize(kIndent, ' ');
    }
    std::string help = flag.help;
    if (!flag.allowed.empty()) {
      absl::StrAppend(&help, " One of: ", absl::StrJoin(flag.allowed, ", "), ".");
    }
    if (!flag.default_value.empty()) absl::StrAppend(&help, " [default: ", flag.default_value, "]");
    if (flag.kind == FlagKind::kList) absl::StrAppend(&help, " May be repeated.");
    absl::StrAppend(&result, head, WrapText(help, kIndent, kColumns), "\n");
  }
  return result;
}

absl::StatusOr<int64_t> ParseByteSize(const std::string& text) {
  constexpr double kMaxBytes = 1e18;
  constexpr std::pair<const char*, double> kUnits[] = {
      {"B", 1.0},  {"KiB", 1024.0}, {"MiB", kMib}, {"GiB", kGib}, {"TiB", 1024.0 * kGib},
      {"kB", 1e3}, {"MB", 1e6},     {"GB", 1e9},   {"TB", 1e12}};
  const auto mistake = [&](const std::string& what) {
    return InvalidArgument("'", text, "': ", what, ", such as 256MiB or 1.5GB");
  };
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const size_t digits = std::min(trimmed.find_first_not_of("0123456789.+-"), trimmed.size());
  double number = 0.0;
  if (!absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    return mistake("a number and a unit are needed");
  }
  std::string name = trimmed.substr(digits);
  absl::StripAsciiWhitespace(&name);
  if (name.empty()) return mistake("a unit is needed");
  for (const auto& [unit, bytes_of_one] : kUnits) {
    if (!absl::EqualsIgnoreCase(name, unit)) continue;
    const double bytes = std::floor(number * bytes_of_one);
    if (bytes >= 1.0 && bytes <= kMaxBytes) return static_cast<int64_t>(bytes);
    return mistake("from 1 B to 1,000,000 TB are allowed");
  }
  return mistake(
      absl::StrCat("unknown unit '", name, "'; there are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"));
}

absl::StatusOr<std::pair<int64_t, int64_t>> ParseStepRange(const std::string& text) {
  const std::vector<std::string> ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  std::pair<int64_t, int64_t> range;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &range.first) ||
      !absl::SimpleAtoi(ends[1], &range.second)) {
    return InvalidArgument("'", text, "': two steps are needed, such as 10..12");
  }
  if (range.first < 1 || range.second < range.first) {
    return InvalidArgument("'", text,
                           "': steps count from 1, and the last may not be below the first");
  }
  return range;
}

}  // namespace deepnet
