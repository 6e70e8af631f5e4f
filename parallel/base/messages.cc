#include "parallel/base/messages.h"

#include <cmath>
#include <cstdint>
#include <memory>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include "parallel/base/check.h"
#include "parallel/base/utf8.h"

namespace deepnet {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::io::ErrorCollector;
using google::protobuf::io::Tokenizer;

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

// Takes errors and warnings, which the parser would print.
class SilentCollector final : public ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

// Returns false, and tells `errors`, at a number like 010, which the format takes for octal.
bool IsDecimal(const std::string& text, ErrorCollector& errors) {
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  SilentCollector silent;  // the parser says what else is wrong
  Tokenizer tokenizer(&input, &silent);
  tokenizer.set_allow_f_after_float(true);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  tokenizer.set_require_space_after_number(false);
  tokenizer.set_allow_multiline_strings(true);
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    const bool begins = tokenizer.previous().type != Tokenizer::TYPE_INTEGER;  // not in "10 000"
    const bool octal = token.type == Tokenizer::TYPE_INTEGER && begins && token.text.size() > 1 &&
                       token.text[0] == '0' && (token.text[1] | 0x20) != 'x';
    if (!octal) continue;
    errors.AddError(token.line, token.column,
                    "\"" + token.text + "\" would be octal: leave out the 0 in front");
    return false;
  }
  return true;
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

bool ParseTextProto(const std::string& text, Message* message, const TextProtoOptions& options) {
  SilentCollector silent;
  ErrorCollector& errors = options.errors == nullptr ? silent : *options.errors;
  if (!IsDecimal(text, errors)) return false;
  google::protobuf::TextFormat::Parser parser;
  parser.SetRecursionLimit(kMaxTextProtoDepth);
  parser.AllowUnknownField(options.skips_unknown_fields);
  parser.RecordErrorsTo(&errors);
  return options.merges ? parser.MergeFromString(text, message)
                        : parser.ParseFromString(text, message);
}

const FieldDescriptor& Fields::Find(const std::string& name) const {
  const FieldDescriptor* field = message_.GetDescriptor()->FindFieldByName(name);
  DEEPNET_CHECK(field != nullptr) << path_ << name << " is no field";
  return *field;
}

double Fields::Number(const std::string& name) const {
  const FieldDescriptor& field = Find(name);
  const auto& reflection = *message_.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message_, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message_, &field));
    default:
      return reflection.GetDouble(message_, &field);
  }
}

std::string Fields::ValueText(const FieldDescriptor& field) const {
  const auto& reflection = *message_.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return Quoted(reflection.GetString(message_, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(message_, &field)->name();
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message_, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message_, &field));
    default:
      return absl::StrCat(reflection.GetDouble(message_, &field));
  }
}

bool Fields::CheckValues() const {
  constexpr int64_t kMax = int64_t{1} << 53;  // doubles tell them apart, and sums do not overflow
  constexpr int64_t kMax32 = 2'000'000'000;
  bool fits = true;
  const auto& reflection = *message_.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message_, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool many = field->is_repeated();
    for (int i = 0; i < (many ? reflection.FieldSize(message_, field) : 1); ++i) {
      const std::string name = absl::StrCat(field->name(), many ? absl::StrCat("[", i, "]") : "");
      if (field->message_type() != nullptr) {
        const Message& inner = many ? reflection.GetRepeatedMessage(message_, field, i)
                                    : reflection.GetMessage(message_, field);
        fits &= Fields(inner, absl::StrCat(path_, name, "."), &mistakes_).CheckValues();
      } else if (field->enum_type() != nullptr && !many) {
        const int value = reflection.GetEnumValue(message_, field);
        Require(field->enum_type()->FindValueByNumber(value) != nullptr, name, absl::StrCat(value),
                "is no value of " + field->enum_type()->name());
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const double value = many ? reflection.GetRepeatedDouble(message_, field, i)
                                  : reflection.GetDouble(message_, field);
        Require(std::isfinite(value), name, absl::StrCat(value), "must be finite");
      } else if (!many && (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
                           field->cpp_type() == FieldDescriptor::CPPTYPE_INT64)) {
        const bool narrow = field->cpp_type() == FieldDescriptor::CPPTYPE_INT32;
        const int64_t value =
            narrow ? reflection.GetInt32(message_, field) : reflection.GetInt64(message_, field);
        const int64_t most = narrow ? kMax32 : kMax;
        fits &= Require(-most <= value && value <= most, name,
                        absl::StrCat("must be from ", -most, " to ", most));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string value = many ? reflection.GetRepeatedString(message_, field, i)
                                       : reflection.GetString(message_, field);
        Require(IsUtf8(value), name, Quoted(EscapedUtf8(value)), "must be UTF-8");
      }
    }
  }
  return fits;
}

}  // namespace deepnet
