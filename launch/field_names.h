// The names of fields as people type them: misspelt ones, those of other programs, and those that
// this program had before.
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

// Returns the table of ForeignFields() as markdown, as docs/peers.md has it.
std::string ForeignFieldsMarkdown();

// A field that had another name in an earlier version.
struct RenamedField {
  const char* old_path;
  const char* new_path;
};
std::span<const RenamedField> RenamedFields();

// Returns what is wrong with the name `name` in a message of type `type`, which has no such field:
// "OptimSpec has no field 'lr'; did you mean 'optim.learning_rate' (fairseq's --lr)?". Knows
// renamed fields and those of other programs, whatever group they were looked for in, else suggests
// the nearest name. Dashes count as underscores.
std::string NoSuchField(const google::protobuf::Descriptor& type, const std::string& name);

// Returns the field that `path`, "data.microbatch.max_sentences", leads to below `root`; nullptr:
// none.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& root,
                                                   std::string_view path);

}  // namespace deepnet
