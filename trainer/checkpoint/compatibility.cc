// Fields are compared by reflection, so that a new one of ModelSpec is compared without being
// listed here.
#include "trainer/checkpoint/compatibility.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include "parallel/base/check.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the value of a field for people: "12", "[de-en, en-de]", "{ max_source_tokens: 900 }".
std::string ValueText(const Message& message, const FieldDescriptor& field) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  if (!field.is_repeated()) {
    printer.PrintFieldValueToString(message, &field, -1, &text);
    return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? absl::StrCat("{ ", text, "}")
                                                                : text;
  }
  std::vector<std::string> values;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    printer.PrintFieldValueToString(message, &field, i, &text);
    values.push_back(text);
  }
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

void AddDifference(const std::string& what, const std::string& saved, const std::string& now,
                   std::vector<std::string>& differences) {
  if (saved == now) return;
  differences.push_back(absl::StrCat(what, " is ", saved.empty() ? "none" : saved,
                                     " in the checkpoint and ", now.empty() ? "none" : now,
                                     " in this run"));
}

// Adds a sentence to `differences` for every field of `names` (all fields if that is empty) but
// those of `free` in which the two, of one type, differ. `path` is "model."
void CompareFields(const std::string& path, const Message& saved, const Message& now,
                   const std::set<std::string>& names, const std::set<std::string>& free,
                   std::vector<std::string>& differences) {
  const google::protobuf::Descriptor& type = *saved.GetDescriptor();
  for (const std::string& name : names) {
    DEEPNET_CHECK(type.FindFieldByName(name) != nullptr) << path << name;
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if ((!names.empty() && !names.contains(field.name())) || free.contains(field.name())) continue;
    google::protobuf::util::MessageDifferencer differencer;
    differencer.set_message_field_comparison(
        google::protobuf::util::MessageDifferencer::EQUIVALENT);  // an absent message is an empty
                                                                  // one
    const bool equal = differencer.CompareWithFields(saved, now, {&field}, {&field});
    if (equal) continue;
    differences.push_back(absl::StrCat(path, field.name(), " is ", ValueText(saved, field),
                                       " in the checkpoint and ", ValueText(now, field),
                                       " in this run"));
  }
}

}  // namespace

absl::Status CheckSameRun(const Manifest& manifest, const RunIdentity& identity,
                          const RunSpec& run) {
  RunSpec saved = manifest.run();
  // More pairs than target tokens were never packed; such a bound is no longer kept.
  MicrobatchSpec& microbatch = *saved.mutable_data()->mutable_microbatch();
  microbatch.set_max_sentences(
      std::min(microbatch.max_sentences(), microbatch.max_target_tokens()));
  std::vector<std::string> differences;
  CompareFields("model.", saved.model(), run.model(), {},
                {"dropout", "attention_dropout", "activation_dropout"}, differences);
  CompareFields("", saved, run, {"seed"}, {}, differences);
  CompareFields("data.", saved.data(), run.data(),
                {"tags", "microbatch", "global_microbatches", "directions", "max_sentence_tokens"},
                {}, differences);
  CompareFields("optim.", saved.optim(), run.optim(), {"optimizer", "virtual_replicas"}, {},
                differences);
  AddDifference("the hash of parameters' names and shapes", manifest.inventory_hash(),
                identity.inventory_hash, differences);
  AddDifference("the corpus's content hash", manifest.corpus_hash(), identity.corpus_hash,
                differences);
  AddDifference("the tokenizer's content hash", manifest.tokenizer_hash(), identity.tokenizer_hash,
                differences);
  if (differences.empty()) return absl::OkStatus();
  return CheckpointRefused(absl::StrCat("the checkpoint of step ", manifest.step(),
                                        " is of another run: ", absl::StrJoin(differences, "; ")));
}

}  // namespace deepnet
