// The words after `deepnet <subcommand>`: a table of flags says what is allowed, and the same table
// prints the help, so the two cannot disagree.
//
// Example:
//   const std::vector<Flag> table = {TextFlag("from", "TAG", "Source language."),
//                                    SwitchFlag("json", "Print JSON.")};
//   ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(table, {"--from=de", "--json"}, 0));
//   flags.Text("from");    // "de"
//   flags.Switch("json");  // true
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/exit_code.h"

namespace deepnet {

enum class FlagKind {
  kText,     // --name VALUE or --name=VALUE; given twice, the last one counts
  kInteger,  // the same, a whole number
  kNumber,   // the same, a finite number
  kSwitch,   // --name, --name=true or --name=false; default false
  kList,     // --name VALUE, as often as needed; every value counts, in order
};

// The whole numbers that a flag takes, from `least` to `most`; every rank refuses others.
struct Bounds {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

struct Flag {
  std::string name;                       // without the dashes
  FlagKind kind = FlagKind::kText;        // how it is written
  std::string value = {};                 // what the help calls the value, for example "FILE"
  std::string default_value = {};         // as it would be typed; an empty one is not shown
  std::string help = {};                  // one or more sentences; wrapped by FlagHelp
  std::vector<std::string> allowed = {};  // of kText and kList: the only values; empty: any
  Bounds bounds = {};                     // of kInteger
  bool required = false;  // must be given, and no value of it may be empty: CheckRequired
};

// Return the flags of a table; parameters as the fields of Flag.
inline Flag TextFlag(const std::string& name, const std::string& value, const std::string& help,
                     const std::string& default_value = "") {
  return {name, FlagKind::kText, value, default_value, help};
}

inline Flag IntegerFlag(const std::string& name, const std::string& help,
                        const std::string& default_value = "", Bounds bounds = {},
                        const std::string& value = "N") {
  return {name, FlagKind::kInteger, value, default_value, help, {}, bounds};
}

inline Flag NumberFlag(const std::string& name, const std::string& value, const std::string& help,
                       const std::string& default_value = "") {
  return {name, FlagKind::kNumber, value, default_value, help};
}

inline Flag SwitchFlag(const std::string& name, const std::string& help) {
  return {name, FlagKind::kSwitch, "", "", help};
}

inline Flag ChoiceFlag(const std::string& name, const std::string& value,
                       const std::vector<std::string>& allowed, const std::string& help,
                       const std::string& default_value = "") {
  return {name, FlagKind::kText, value, default_value, help, allowed};
}

inline Flag ListFlag(const std::string& name, const std::string& value, const std::string& help,
                     const std::vector<std::string>& allowed = {}) {
  return {name, FlagKind::kList, value, "", help, allowed};
}

inline Flag Required(Flag flag) {
  flag.required = true;
  return flag;
}

// Returns OK where there are no `mistakes`, else INVALID_ARGUMENT with ExitCode::kBadConfig and all
// of them, a line each.
absl::Status BadConfig(const std::vector<std::string>& mistakes);

// The outcome. Asking for a flag that is not in the table, or as another kind, is a broken
// invariant.
class ParsedFlags {
 public:
  bool Has(std::string_view name) const { return values_.contains(name); }  // in the table
  bool Given(std::string_view name) const { return Get(name).given; }       // typed by the user
  const std::string& Text(std::string_view name) const { return Word(name, FlagKind::kText); }
  int64_t Integer(std::string_view name) const;
  double Number(std::string_view name) const;
  bool Switch(std::string_view name) const { return Word(name, FlagKind::kSwitch) == "true"; }
  const std::vector<std::string>& List(std::string_view name) const;
  const std::vector<std::string>& positional() const { return positional_; }

  // Fails as BadConfig where required flags are missing. Not a part of ParseFlags, so that of the
  // ranks of a job, which agree on it, one says so.
  absl::Status CheckRequired() const { return BadConfig(missing_); }

 private:
  friend absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<Flag>& table,
                                                const std::vector<std::string>& words,
                                                int max_positional);
  struct Value {
    FlagKind kind;
    bool given = false;
    std::vector<std::string> words;  // exactly one unless kList
  };
  const Value& Get(std::string_view name) const;
  const std::string& Word(std::string_view name, FlagKind kind) const;

  std::map<std::string, Value, std::less<>> values_;
  std::vector<std::string> positional_;
  std::vector<std::string> missing_;  // mistakes
};

// Reads `words`. A word without dashes is positional, and so is every word after "--" and a single
// "-". BadConfig lists every mistake: unknown flags with the nearest name, missing and malformed
// values, more than `max_positional` words.
absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<Flag>& table,
                                       const std::vector<std::string>& words, int max_positional);

// Returns the table for people, 100 columns, one paragraph a flag, each line ended by a newline.
std::string FlagHelp(const std::vector<Flag>& table);

// Returns `text` broken at spaces into lines of at most `columns`; lines after the first start with
// `indent` spaces, the first one is assumed to start there already. No newline at the end.
std::string WrapText(std::string_view text, int indent, int columns);

// Reads "256MiB", "1.5 GiB", "64MB": a number and a unit, B, KiB, MiB, GiB or TiB (powers of 1,024)
// or kB, MB, GB or TB (of 1,000), in any case, blanks between them allowed. Returns bytes, rounded
// down. INVALID_ARGUMENT says what is wrong: no number, no or an unknown unit, nothing or too much.
absl::StatusOr<int64_t> ParseByteSize(const std::string& text);

// Reads "10..12": two whole numbers from 1 on, the second not below the first. INVALID_ARGUMENT
// says what is wrong.
absl::StatusOr<std::pair<int64_t, int64_t>> ParseStepRange(const std::string& text);

}  // namespace deepnet
