// The names of fields as people type them: misspelt ones and those of other programs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// A setting of other programs. Names of one program are separated by blanks; fairseq's and Marian's
// are flags, those of Hugging Face and Megatron-LM stand in configurations and scripts.
struct ForeignField {
  const char* fairseq;
  const char* marian;
  const char* hugging_face;
  const char* megatron;
  const char* field;      // path of the field here; "": there is none
  const char* note = "";  // how it differs, or why there is none
};
std::span<const ForeignField> ForeignFields();

// Returns what is wrong with the name `name` in a message of type `type`, which has no such field:
// "OptimSpec has no field 'lr'; did you mean 'optim.learning_rate' (fairseq's --lr)?". Knows
// those of other programs, whatever group they were looked for in, else suggests the nearest name.
// Dashes count as underscores.
std::string NoSuchField(const google::protobuf::Descriptor& type, const std::string& name);

}  // namespace deepnet
