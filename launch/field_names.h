// The names of fields as people type them: misspelt ones and those of other programs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace deepnet {

// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
// into `b`.
int EditDistance(std::string_view a, std::string_view b);

// Returns the candidate with the smallest distance to `name`, the first of equals; nothing where
// even that one differs in more than half of the letters.
std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates);

// Returns "; did you mean 'x'?" or, where nothing is near, "; there are: a, b, c".
std::string SuggestName(std::string_view name, const std::vector<std::string>& candidates);

// A setting of other programs: a row of the table in docs/peers.md.
struct ForeignField {
  std::string field = {};  // path of the field here; empty: there is none
  std::vector<std::pair<std::string, std::string>> names = {};  // "fairseq", "--lr"
  std::string note = {};  // how it differs, or why there is none
};
std::vector<ForeignField> ForeignFields();

// Returns what is wrong with the name `name` in a message of type `type`, which has no such field:
// "OptimSpec has no field 'lr'; did you mean 'optim.learning_rate' (fairseq's --lr)?". Knows
// those of other programs, whatever group they were looked for in, else suggests the nearest name.
// Dashes count as underscores.
std::string NoSuchField(const google::protobuf::Descriptor& type, const std::string& name);

}  // namespace deepnet
