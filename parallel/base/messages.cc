#include "parallel/base/messages.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include "parallel/base/utf8.h"

namespace deepnet {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

void MakeUtf8(Message* message) {
  const auto& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool many = field->is_repeated();
    for (int i = 0; i < (many ? reflection.FieldSize(*message, field) : 1); ++i) {
      if (field->message_type() != nullptr) {
        MakeUtf8(many ? reflection.MutableRepeatedMessage(message, field, i)
                      : reflection.MutableMessage(message, field));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = many ? reflection.GetRepeatedString(*message, field, i)
                                      : reflection.GetString(*message, field);
        if (IsUtf8(text)) continue;
        if (many) {
          reflection.SetRepeatedString(message, field, i, EscapedUtf8(text));
        } else {
          reflection.SetString(message, field, EscapedUtf8(text));
        }
      }
    }
  }
}

std::unique_ptr<Message> Utf8Copy(const Message& message) {
  std::unique_ptr<Message> copy(message.New());
  copy->CopyFrom(message);
  MakeUtf8(copy.get());
  return copy;
}

}  // namespace

std::string ToBytes(const Message& message) { return Utf8Copy(message)->SerializeAsString(); }

std::string ToIndentedJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  (void)google::protobuf::util::MessageToJsonString(*Utf8Copy(message), &json, options);
  return json;
}

absl::Status ParseSent(const std::string& bytes, Message& message) {
  if (message.ParseFromString(bytes)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a ", message.GetDescriptor()->name(), " did not survive being sent"));
}

}  // namespace deepnet
