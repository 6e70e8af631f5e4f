#include "parallel/base/fields.h"

#include <cmath>
#include <cstdint>

#include "google/protobuf/descriptor.h"

#include "parallel/base/check.h"

namespace deepnet {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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

void Fields::CheckValues() const {
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
        Fields(inner, absl::StrCat(path_, name, "."), &mistakes_).CheckValues();
      } else if (field->enum_type() != nullptr && !many) {
        const int value = reflection.GetEnumValue(message_, field);
        Require(field->enum_type()->FindValueByNumber(value) != nullptr, name, absl::StrCat(value),
                "is no value of " + field->enum_type()->name());
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const double value = many ? reflection.GetRepeatedDouble(message_, field, i)
                                  : reflection.GetDouble(message_, field);
        Require(std::isfinite(value), name, absl::StrCat(value), "must be finite");
      }
    }
  }
}

}  // namespace deepnet
