// What is wrong with a RunSpec, a line a mistake; and checks that any message may need.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"

namespace deepnet {

class Mistakes {
 public:
  // Adds "field: value: text" unless `good`. Returns `good`.
  template <typename Value>
  bool Require(bool good, const std::string& field, const Value& value, const std::string& text) {
    if (!good) lines_.push_back(absl::StrCat(field, ": ", Print(value), ": ", text));
    return good;
  }

  // OK without mistakes, else INVALID_ARGUMENT with ExitCode::kBadConfig and all of them.
  absl::Status ToStatus() const;

 private:
  template <typename Value>
  static std::string Print(const Value& value) {
    return absl::StrCat(value);
  }
  static std::string Print(const std::string& value) { return absl::StrCat("'", value, "'"); }

  std::vector<std::string> lines_;
};

// Numbers that are no numbers and enum values without a name, anywhere below `message`: the file
// formats let both through. `path` stands before the names of fields: "prepare.", or nothing.
void CheckValues(const google::protobuf::Message& message, const std::string& path,
                 Mistakes* mistakes);

// Whether `tag` names a language. "zh-Hans" would clash with "de-en": letters, digits and
// underscores only.
bool IsLanguage(const std::string& tag);
inline constexpr char kLanguageNeeded[] = "must be a tag of letters, digits and '_'";

}  // namespace deepnet
