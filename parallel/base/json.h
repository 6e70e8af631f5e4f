// The parts of JSON that are easy to get wrong.
#pragma once

#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace deepnet {

// Returns `text` between quotes, with quotes, backslashes, control characters (U+007F to U+009F
// included), U+2028, U+2029 and what is no UTF-8 escaped, so that it is one line for every reader.
std::string JsonQuoted(std::string_view text);

class JsonObject;

// Returns `value` as JSON: a text, a bool, a number (with at most `digits` significant digits, of
// which 17 give any double back, or null where it is not finite), a JsonObject, or a list of these.
// A list of objects has a line for each.
template <typename T>
std::string JsonOf(const T& value, int digits = 17) {
  if constexpr (std::is_same_v<T, JsonObject>) {
    return absl::StrCat("{", value.members(), "}");
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    return JsonQuoted(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::integral<T>) {
    return absl::StrCat(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value) ? absl::StrFormat("%.*g", digits, value) : "null";
  } else {
    constexpr bool kObjects = std::is_same_v<typename T::value_type, JsonObject>;
    const auto append = [digits](std::string* out, const auto& each) {
      *out += JsonOf(each, digits);
    };
    return absl::StrCat(kObjects && !value.empty() ? "[\n  " : "[",
                        absl::StrJoin(value, kObjects ? ",\n  " : ", ", append), "]");
  }
}

// A JSON object whose members stand in the order of these calls.
//   JsonOf(JsonObject().Add("name", "a").Add("sizes", sizes))  // {"name": "a", "sizes": [1, 2]}
class JsonObject {
 public:
  template <typename T>
  JsonObject& Add(const std::string& name, const T& value, int digits = 17) {
    return AddJson(name, JsonOf(value, digits));
  }

  // Adds what is JSON already.
  JsonObject& AddJson(const std::string& name, const std::string& json) {
    absl::StrAppend(&members_, members_.empty() ? "" : ", ", JsonQuoted(name), ": ", json);
    return *this;
  }

  const std::string& members() const { return members_; }

 private:
  std::string members_;
};

// Returns what `to_object` makes of each item.
template <typename Items, typename ToObject>
std::vector<JsonObject> JsonObjects(const Items& items, const ToObject& to_object) {
  std::vector<JsonObject> objects;
  for (const auto& item : items) objects.push_back(to_object(item));
  return objects;
}

}  // namespace deepnet
