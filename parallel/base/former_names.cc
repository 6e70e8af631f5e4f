// Both text forms consist of the same tokens: a name (quoted in JSON) stands before ':' or '{', and
// braces open and close messages. So one pass over the tokens, which keeps the stack of message
// types, finds the field that every name means.
#include "parallel/base/former_names.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "parallel/base/text_proto.h"

namespace deepnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::Tokenizer;

// In two pieces each, so that a program that renames a word in all files leaves them alone.
// clang-format off
constexpr FormerFieldName kFormerNames[] = {
    {"ModelSpec", 3, "wid" "th"},
    {"ModelSpec", 4, "ffn_wid" "th"},
    {"ModelSpec", 5, "hea" "ds"},
    {"OptimSpec", 2, "ra" "te"},
    {"OptimSpec", 3, "initial_ra" "te"},
    {"OptimSpec", 4, "final_ra" "te"},
    {"DataSpec", 5, "microbatches_per_st" "ep"},
    {"DataSpec", 7, "max_tok" "ens"},
    {"DataSpec", 8, "masked_sh" "are"},
    {"MicrobatchSpec", 1, "source_tok" "ens"},
    {"MicrobatchSpec", 2, "target_tok" "ens"},
    {"MicrobatchSpec", 3, "senten" "ces"},
    {"CleaningSpec", 1, "max_tok" "ens"},
    {"TokenizerSpec", 2, "pie" "ces"},
    {"TokenizerSpec", 4, "sample_senten" "ces"},
    {"ParallelSpec", 4, "chunks_per_ra" "nk"},
    {"ParallelSpec", 9, "step_timeout_sec" "onds"},
    {"Recompute", 2, "FF" "N"},
    {"Recompute", 3, "GE" "MM"},
    {"Recompute", 4, "LAY" "ER"},
    {"ClusterSpec", 7, "updates_per_sec" "ond"},
    {"TrainSpec", 2, "minu" "tes"},
    {"TrainSpec", 11, "time_limit_minu" "tes"},
};
// clang-format on

class SilentCollector final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

// Number of what was called `name` in `type`; -1: nothing was.
int FormerNumber(std::span<const FormerFieldName> names, std::string_view type,
                 std::string_view name) {
  for (const FormerFieldName& former : names) {
    if (former.type == type && former.name == name) return former.number;
  }
  return -1;
}

// nullptr: `type` (nullptr: unknown) neither has nor had such a field.
const FieldDescriptor* FindField(const Descriptor* type, const std::string& name,
                                 std::span<const FormerFieldName> names) {
  if (type == nullptr) return nullptr;
  const FieldDescriptor* const field = type->FindFieldByName(name);
  if (field != nullptr) return field;
  return type->FindFieldByNumber(FormerNumber(names, type->name(), name));
}

const EnumValueDescriptor* FindValue(const FieldDescriptor* field, const std::string& name,
                                     std::span<const FormerFieldName> names) {
  const EnumDescriptor* const type = field == nullptr ? nullptr : field->enum_type();
  if (type == nullptr) return nullptr;
  const EnumValueDescriptor* const value = type->FindValueByName(name);
  if (value != nullptr) return value;
  return type->FindValueByNumber(FormerNumber(names, type->name(), name));
}

}  // namespace

std::span<const FormerFieldName> FormerNames() { return kFormerNames; }

std::string WithTodaysNames(const std::string& text, const Descriptor& type,
                            std::span<const FormerFieldName> names) {
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  SilentCollector errors;
  Tokenizer tokenizer(&stream, &errors);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_allow_f_after_float(true);
  std::vector<const Descriptor*> open = {&type};  // nullptr: of an unknown field
  const FieldDescriptor* field = nullptr;         // whose value comes next
  bool changed = false;
  std::string translated;
  bool is_first = true;
  for (bool more = tokenizer.Next(); more; is_first = false) {
    const Tokenizer::TokenType kind = tokenizer.current().type;
    std::string token = tokenizer.current().text;
    more = tokenizer.Next();  // what follows says what a name means
    const bool is_quoted = kind == Tokenizer::TYPE_STRING;
    if (token == "{") {
      // A JSON object is in braces as a whole, a text is not.
      const bool is_all = is_first;
      open.push_back(is_all ? &type : field == nullptr ? nullptr : field->message_type());
      if (open.size() > 2 * kMaxTextProtoDepth) return text;  // which no parser reads
    } else if (token == "}") {
      if (open.size() > 1) open.pop_back();
    } else if (is_quoted || kind == Tokenizer::TYPE_IDENTIFIER) {
      const std::string word = is_quoted ? token.substr(1, token.size() - 2) : token;
      const std::string& next = tokenizer.current().text;  // empty at the end
      const std::string* todays = nullptr;
      if (next == ":" || next == "{") {
        field = FindField(open.back(), word, names);
        if (field != nullptr) todays = &field->name();
      } else if (const EnumValueDescriptor* value = FindValue(field, word, names)) {
        todays = &value->name();
      }
      if (todays != nullptr && *todays != word) {
        token = is_quoted ? absl::StrCat("\"", *todays, "\"") : *todays;
        changed = true;
      }
    }
    absl::StrAppend(&translated, token, token == "-" ? "" : " ");  // JSON knows no "- 1"
  }
  return changed ? translated : text;
}

}  // namespace deepnet
