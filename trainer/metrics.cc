#include "trainer/metrics.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

#include "parallel/base/check.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The shortest digits that read back as the same number.
std::string Number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

// One element of `field`; `index` < 0: the field is not repeated.
std::string Element(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const auto pick = [&](auto single, auto repeated) {
    return index < 0 ? (r.*single)(message, &field) : (r.*repeated)(message, &field, index);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(pick(&Reflection::GetInt32, &Reflection::GetRepeatedInt32));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(pick(&Reflection::GetInt64, &Reflection::GetRepeatedInt64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(pick(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(pick(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(pick(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(pick(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_BOOL:
      return pick(&Reflection::GetBool, &Reflection::GetRepeatedBool) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return JsonQuoted(pick(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return JsonQuoted(pick(&Reflection::GetString, &Reflection::GetRepeatedString));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(index < 0 ? r.GetMessage(message, &field)
                              : r.GetRepeatedMessage(message, &field, index));
  }
  DEEPNET_CHECK(false) << field.full_name();
  return "";
}

// Returns whether a line of metrics.jsonl is intact and of a step that will not be written again.
bool Keep(const std::string& line, int64_t last_step) {
  if (line.empty() || line.back() != '}') return false;
  const std::string key = "\"step\":";
  const size_t at = line.find(key);
  if (at == std::string::npos) return true;
  int64_t step = 0;
  const size_t end = line.find_first_of(",}", at);
  return absl::SimpleAtoi(line.substr(at + key.size(), end - at - key.size()), &step) &&
         step <= last_step;
}

// Rewrites `path` without the lines that are not kept; the file is replaced in one move.
absl::Status DropLines(const std::string& path, int64_t last_step) {
  std::ifstream old(path);
  const std::string fresh_path = path + ".new";
  std::ofstream fresh(fresh_path, std::ios::trunc);
  bool dropped = false;
  for (std::string line; std::getline(old, line);) {
    // getline leaves eofbit set only by a last line without its newline: a torn one.
    const bool keep = !old.eof() && Keep(line, last_step);
    if (keep) fresh << line << '\n';
    dropped = dropped || !keep;
  }
  fresh.close();
  std::error_code error;
  if (!fresh.good()) return absl::DataLossError(absl::StrCat(fresh_path, ": cannot be written"));
  if (dropped) {
    std::filesystem::rename(fresh_path, path, error);
  } else {
    std::filesystem::remove(fresh_path, error);
  }
  if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace

std::string ToJson(const Message& message) {
  std::vector<std::string> members;
  const auto& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    std::string value;
    if (field.is_repeated()) {
      std::vector<std::string> elements;
      for (int j = 0; j < message.GetReflection()->FieldSize(message, &field); ++j) {
        elements.push_back(Element(message, field, j));
      }
      value = absl::StrCat("[", absl::StrJoin(elements, ","), "]");
    } else if (field.message_type() != nullptr &&
               !message.GetReflection()->HasField(message, &field)) {
      value = "null";
    } else {
      value = Element(message, field, -1);
    }
    members.push_back(absl::StrCat("\"", field.name(), "\":", value));
  }
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}

MetricsWriter::MetricsWriter(const std::string& path) : path_(path) {
  // A buffer would keep what did not fit on the disk, and write it again with the next line.
  stream_.rdbuf()->pubsetbuf(nullptr, 0);
  stream_.open(path, std::ios::app);
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& path,
                                                                   int64_t last_step) {
  if (std::filesystem::exists(path)) RETURN_IF_ERROR(DropLines(path, last_step));
  auto writer = std::unique_ptr<MetricsWriter>(new MetricsWriter(path));
  if (!writer->stream_.good()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened for writing"));
  }
  return writer;
}

absl::Status MetricsWriter::Write(const Message& record) {
  stream_ << absl::StrCat(torn_ ? "\n" : "", ToJson(record), "\n") << std::flush;
  torn_ = !stream_.good();
  if (!torn_) return absl::OkStatus();
  stream_.clear();
  return absl::DataLossError(absl::StrCat(path_, ": cannot be written"));
}

absl::Status MetricsWriter::GoBack(int64_t last_step) {
  stream_.close();
  absl::Status dropped = DropLines(path_, last_step);
  stream_.clear();
  stream_.open(path_, std::ios::app);
  torn_ = false;
  return dropped;
}

}  // namespace deepnet
