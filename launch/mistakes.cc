#include "launch/mistakes.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"

#include "parallel/base/exit_code.h"

namespace deepnet {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status Mistakes::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(lines_, "\n")),
                      ExitCode::kBadConfig);
}

void CheckValues(const Message& message, const std::string& path, Mistakes* mistakes) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const auto& reflection = *message.GetReflection();
    const std::string name = absl::StrCat(path, field->name());
    if (field->message_type() != nullptr && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        CheckValues(reflection.GetRepeatedMessage(message, field, i),
                    absl::StrCat(name, "[", i, "]."), mistakes);
      }
    } else if (field->message_type() != nullptr) {
      CheckValues(reflection.GetMessage(message, field), name + ".", mistakes);
    } else if (field->enum_type() != nullptr) {
      const int value = reflection.GetEnumValue(message, field);
      mistakes->Require(field->enum_type()->FindValueByNumber(value) != nullptr, name, value,
                        "is no value of " + field->enum_type()->name());
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        const double value = reflection.GetRepeatedDouble(message, field, i);
        mistakes->Require(std::isfinite(value), absl::StrCat(name, "[", i, "]"), value,
                          "must be finite");
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      const double value = reflection.GetDouble(message, field);
      mistakes->Require(std::isfinite(value), name, value, "must be finite");
    }
  }
}

bool IsLanguage(const std::string& tag) {
  for (const char c : tag) {
    if (!absl::ascii_isalnum(c) && c != '_') return false;
  }
  return !tag.empty();
}

}  // namespace deepnet
