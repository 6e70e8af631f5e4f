#include "parallel/base/fields.h"

#include <cmath>
#include <cstdint>

#include "google/protobuf/descriptor.h"

#include "parallel/base/check.h"
#include "parallel/base/utf8.h"

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
