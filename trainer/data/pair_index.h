// The view of a corpus that the data order has. It has no tokens, so a test can make one up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"

namespace deepnet {

inline constexpr int kMaxLanguages = 4096;  // of a corpus and of a vocabulary

// Returns true for the tag of a language or of synthetic text: it becomes a part of names of files
// and directions. "zh-Hans" would clash with "de-en": up to 64 letters, digits and underscores.
inline bool IsLanguageTag(std::string_view tag) {
  return !tag.empty() && tag.size() <= 64 &&
         std::ranges::all_of(tag, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

struct Direction {
  std::string source;     // language tag
  std::string target;     // language tag
  int64_t num_pairs = 0;  // training pairs
  std::string tag = {};   // of synthetic text, else empty

  // Returns "de-en", of synthetic text "de-en.bt".
  std::string Name() const { return source + "-" + target + (tag.empty() ? "" : "." + tag); }
  // True if `pattern` is the name, or the name with "*" for languages: "*-en", "*-*.bt".
  bool Matches(std::string_view pattern) const {
    for (const std::string& from : {source, std::string("*")}) {
      for (const std::string& to : {target, std::string("*")}) {
        if (Direction{.source = from, .target = to, .tag = tag}.Name() == pattern) return true;
      }
    }
    return false;
  }
  friend bool operator==(const Direction&, const Direction&) = default;
};

// Numbers of pieces of one pair, without tag and </s>.
struct PairLengths {
  int32_t source = 0;
  int32_t target = 0;
};

struct MeanAndVariance {
  double mean = 0.0;
  double variance = 0.0;
};

// Moments of the lengths of a direction's pairs without those that have a side above some limit.
struct LengthMoments {
  int64_t num_pairs = 0;           // within the limit
  MeanAndVariance source, target;  // pieces
};

// Immutable; safe from several threads.
class PairIndex {
 public:
  virtual ~PairIndex() = default;

  virtual const std::vector<Direction>& directions() const = 0;  // in order of name
  virtual PairLengths Lengths(int direction, int64_t pair) const = 0;
  virtual LengthMoments Moments(int direction, int32_t max_tokens) const = 0;
};

}  // namespace deepnet
