#include "launch/spec_printer.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace deepnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Appends every field of `message` with its value, one to a line behind `indent`.
void AppendComplete(const Message& message, const std::string& indent, std::string* text) {
  const Reflection& reflection = *message.GetReflection();
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool many = field.is_repeated(), is_message = field.message_type() != nullptr;
    const int size = many ? reflection.FieldSize(message, &field) : 1;
    if (size == 0) absl::StrAppend(text, indent, field.name(), ": []\n");
    if (!many && !is_message && field.has_presence() && !reflection.HasField(message, &field)) {
      absl::StrAppend(text, indent, "# ", field.name(), ": not set\n");
      continue;
    }
    for (int k = 0; k < size; ++k) {
      if (is_message) {
        absl::StrAppend(text, indent, field.name(), " {\n");
        AppendComplete(many ? reflection.GetRepeatedMessage(message, &field, k)
                            : reflection.GetMessage(message, &field),
                       indent + "  ", text);
        absl::StrAppend(text, indent, "}\n");
      } else {
        std::string value;
        google::protobuf::TextFormat::PrintFieldValueToString(message, &field, many ? k : -1,
                                                              &value);
        absl::StrAppend(text, indent, field.name(), ": ", value, "\n");
      }
    }
  }
}

}  // namespace

std::string ToTextproto(RunSpec run) {
  run.DiscardUnknownFields();  // of checkpoints that other versions wrote
  std::string text;
  google::protobuf::TextFormat::PrintToString(run, &text);
  return text;
}

std::string ToCompleteTextproto(RunSpec run) {
  // A run without `instruments` has none; printing the message must not turn them on.
  if (!run.has_instruments()) run.mutable_instruments()->set_every_steps(0);
  std::string text;
  AppendComplete(run, "", &text);
  return text;
}

}  // namespace deepnet
