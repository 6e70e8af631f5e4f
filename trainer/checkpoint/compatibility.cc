// Fields are compared by reflection, so that a new one of ModelSpec is compared without being
// listed here.
#include "trainer/checkpoint/compatibility.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the value of a field for people: "12", "[de-en, en-de]", "{ max_source_tokens: 900 }".
std::string ValueText(const Message& message, const FieldDescriptor& field) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetHideUnknownFields(true);  // of a newer program's checkpoint
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

// Adds the differences in the fields `names` of two messages of one type. `path` is "model."
void CompareFields(const std::string& path, const Message& saved, const Message& now,
                   const std::vector<std::string>& names, std::vector<std::string>& differences) {
  for (const std::string& name : names) {
    const FieldDescriptor* const field = saved.GetDescriptor()->FindFieldByName(name);
    DEEPNET_CHECK(field != nullptr) << path << name;
    AddDifference(path + name, ValueText(saved, *field), ValueText(now, *field), differences);
  }
}

}  // namespace

absl::Status CheckSameRun(const Manifest& saved, const Manifest& now) {
  RunSpec before = saved.run();
  // More pairs than target tokens were never packed; such a bound is no longer kept.
  MicrobatchSpec& microbatch = *before.mutable_data()->mutable_microbatch();
  microbatch.set_max_sentences(
      std::min(microbatch.max_sentences(), microbatch.max_target_tokens()));
  std::vector<std::string> of_model;
  const google::protobuf::Descriptor& type = *ModelSpec::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string& name = type.field(i)->name();
    if (!absl::EndsWith(name, "dropout")) of_model.push_back(name);
  }
  std::vector<std::string> differences;
  CompareFields("model.", before.model(), now.run().model(), of_model, differences);
  CompareFields("", before, now.run(), {"seed"}, differences);
  CompareFields("data.", before.data(), now.run().data(),
                {"tags", "microbatch", "global_microbatches", "directions", "max_sentence_tokens"},
                differences);
  CompareFields("optim.", before.optim(), now.run().optim(), {"optimizer", "virtual_replicas"},
                differences);
  AddDifference("the hash of parameters' names and shapes", saved.inventory_hash(),
                now.inventory_hash(), differences);
  AddDifference("the corpus's content hash", saved.corpus_hash(), now.corpus_hash(), differences);
  AddDifference("the tokenizer's content hash", saved.tokenizer_hash(), now.tokenizer_hash(),
                differences);
  if (differences.empty()) return absl::OkStatus();
  return CheckpointRefused("the checkpoint of step ", saved.step(),
                           " is of another run: ", absl::StrJoin(differences, "; "));
}

}  // namespace deepnet
