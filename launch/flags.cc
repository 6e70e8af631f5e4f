#include "launch/flags.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/field_names.h"
#include "parallel/base/check.h"

namespace deepnet {
namespace {

// Returns what is wrong with `word` as a value of `flag`; empty: nothing.
std::string Complaint(const Flag& flag, const std::string& word) {
  int64_t integer = 0;
  double number = 0.0;
  switch (flag.kind) {
    case FlagKind::kInteger:
      return absl::SimpleAtoi(word, &integer) ? "" : "a whole number is needed";
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

std::vector<std::string> Dashed(const std::vector<Flag>& table) {
  std::vector<std::string> names;
  for (const Flag& flag : table) names.push_back("--" + flag.name);
  return names;
}

// One word "--name" or "--name=value", split.
struct FlagWord {
  std::string name;
  std::optional<std::string> value;
};

FlagWord SplitWord(const std::string& word) {
  const std::vector<std::string> parts = absl::StrSplit(word.substr(2), absl::MaxSplits('=', 1));
  if (parts.size() == 1) return {parts[0], std::nullopt};
  return {parts[0], parts[1]};
}

}  // namespace

bool ParsedFlags::Given(std::string_view name) const {
  const auto found = values_.find(name);
  DEEPNET_CHECK(found != values_.end()) << "--" << name << " is not in the table";
  return found->second.given;
}

const ParsedFlags::Value& ParsedFlags::Get(std::string_view name, FlagKind kind) const {
  const auto found = values_.find(name);
  DEEPNET_CHECK(found != values_.end()) << "--" << name << " is not in the table";
  DEEPNET_CHECK(found->second.kind == kind) << "--" << name << " has another kind";
  return found->second;
}

const std::string& ParsedFlags::Text(std::string_view name) const {
  return Get(name, FlagKind::kText).words.front();
}

int64_t ParsedFlags::Integer(std::string_view name) const {
  int64_t result = 0;
  DEEPNET_CHECK(absl::SimpleAtoi(Get(name, FlagKind::kInteger).words.front(), &result));
  return result;
}

double ParsedFlags::Number(std::string_view name) const {
  double result = 0.0;
  DEEPNET_CHECK(absl::SimpleAtod(Get(name, FlagKind::kNumber).words.front(), &result));
  return result;
}

bool ParsedFlags::Switch(std::string_view name) const {
  return Get(name, FlagKind::kSwitch).words.front() == "true";
}

const std::vector<std::string>& ParsedFlags::List(std::string_view name) const {
  return Get(name, FlagKind::kList).words;
}

absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<Flag>& table,
                                       const std::vector<std::string>& words, int max_positional) {
  ParsedFlags result;
  for (const Flag& flag : table) {
    ParsedFlags::Value& value = result.values_[flag.name];
    value.kind = flag.kind;
    if (flag.kind == FlagKind::kList) continue;
    value.words = {flag.default_value};
    // Numbers and switches without a default read as 0 and false.
    if (flag.default_value.empty() && flag.kind == FlagKind::kSwitch) value.words = {"false"};
    if (flag.default_value.empty() && flag.kind == FlagKind::kInteger) value.words = {"0"};
    if (flag.default_value.empty() && flag.kind == FlagKind::kNumber) value.words = {"0"};
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
    FlagWord word = SplitWord(words[i]);
    const auto flag = std::find_if(table.begin(), table.end(),
                                   [&](const Flag& f) { return f.name == word.name; });
    if (flag == table.end()) {
      const std::string dashed = "--" + word.name;
      mistakes.push_back(
          absl::StrCat(dashed, ": unknown flag", SuggestName(dashed, Dashed(table))));
      continue;
    }
    if (!word.value.has_value() && flag->kind == FlagKind::kSwitch) word.value = "true";
    if (!word.value.has_value()) {
      if (i + 1 == words.size()) {
        mistakes.push_back(absl::StrCat("--", flag->name, ": needs a value, ", flag->value));
        continue;
      }
      word.value = words[++i];
    }
    if (const std::string complaint = Complaint(*flag, *word.value); !complaint.empty()) {
      mistakes.push_back(absl::StrCat("--", flag->name, ": ", *word.value, ": ", complaint));
      continue;
    }
    ParsedFlags::Value& value = result.values_.find(flag->name)->second;
    value.given = true;
    if (flag->kind != FlagKind::kList) value.words.clear();
    value.words.push_back(*std::move(word.value));
  }
  for (size_t i = std::max(0, max_positional); i < result.positional_.size(); ++i) {
    mistakes.push_back(absl::StrCat(result.positional_[i], ": unexpected word"));
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  return result;
}

std::string WrapText(std::string_view text, int indent, int columns) {
  std::string result;
  int column = indent;
  for (const auto& paragraph : absl::StrSplit(std::string(text), '\n')) {
    if (!result.empty()) {
      absl::StrAppend(&result, "\n", std::string(indent, ' '));
      column = indent;
    }
    bool first = true;
    for (const auto& word : absl::StrSplit(paragraph, ' ')) {
      const int needed = static_cast<int>(word.size()) + (first ? 0 : 1);
      if (!first && column + needed > columns) {
        absl::StrAppend(&result, "\n", std::string(indent, ' '));
        column = indent;
        first = true;
      }
      absl::StrAppend(&result, first ? "" : " ", word);
      column += static_cast<int>(word.size()) + (first ? 0 : 1);
      first = false;
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

namespace {

struct Unit {
  const char* name;
  double bytes;
};

constexpr Unit kUnits[] = {{"B", 1.0},
                           {"KiB", 1024.0},
                           {"MiB", 1024.0 * 1024.0},
                           {"GiB", 1024.0 * 1024.0 * 1024.0},
                           {"TiB", 1024.0 * 1024.0 * 1024.0 * 1024.0},
                           {"kB", 1e3},
                           {"MB", 1e6},
                           {"GB", 1e9},
                           {"TB", 1e12}};
constexpr double kMaxBytes = 1e18;

absl::Status Mistake(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "': ", what, ", such as 256MiB or 1.5GB"));
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(const std::string& text) {
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const size_t digits = std::min(trimmed.find_first_not_of("0123456789.+-"), trimmed.size());
  double number = 0.0;
  if (!absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    return Mistake(text, "a number and a unit are needed");
  }
  std::string name = trimmed.substr(digits);
  absl::StripAsciiWhitespace(&name);
  if (name.empty()) return Mistake(text, "a unit is needed");
  for (const Unit& unit : kUnits) {
    if (!absl::EqualsIgnoreCase(name, unit.name)) continue;
    const double bytes = std::floor(number * unit.bytes);
    if (bytes >= 1.0 && bytes <= kMaxBytes) return static_cast<int64_t>(bytes);
    return Mistake(text, "from 1 B to 1,000,000 TB are allowed");
  }
  return Mistake(text, absl::StrCat("unknown unit '", name,
                                    "'; there are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"));
}

}  // namespace deepnet
