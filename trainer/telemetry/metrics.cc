#include "trainer/telemetry/metrics.h"

#include <charconv>
#include <cmath>
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

constexpr size_t kMaxLineBytes = size_t{16} << 20;  // a longer one is no record

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
absl::Status DropLines(FileSystem& fs, const std::string& path, int64_t last_step) {
  ASSIGN_OR_RETURN(const bool exists, Exists(fs, path));
  if (!exists) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto fresh, FileReplacement::Begin(fs, path));
  std::string chunk(size_t{1} << 20, '\0'), line, kept;
  bool dropped = false;
  for (int64_t offset = 0;;) {
    ASSIGN_OR_RETURN(const int64_t bytes, fs.ReadAt(path, offset, chunk));
    if (bytes == 0) break;
    offset += bytes;
    for (const char c : std::string_view(chunk.data(), static_cast<size_t>(bytes))) {
      if (c != '\n') {
        if (line.size() < kMaxLineBytes) line += c;
        continue;
      }
      const bool keep = line.size() < kMaxLineBytes && Keep(line, last_step);
      if (keep) absl::StrAppend(&kept, line, "\n");
      dropped = dropped || !keep;
      line.clear();
    }
    RETURN_IF_ERROR(fresh->Append(kept));
    kept.clear();
  }
  return dropped || !line.empty() ? fresh->Commit() : absl::OkStatus();
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
    } else if (field.has_presence() && !message.GetReflection()->HasField(message, &field)) {
      value = "null";
    } else {
      value = Element(message, field, -1);
    }
    members.push_back(absl::StrCat("\"", field.name(), "\":", value));
  }
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(FileSystem& fs,
                                                                   const std::string& path,
                                                                   int64_t last_step) {
  auto writer = std::unique_ptr<MetricsWriter>(new MetricsWriter(fs, path));
  RETURN_IF_ERROR(writer->GoBack(last_step));
  return writer;
}

absl::Status MetricsWriter::Write(const Message& record) {
  if (file_ == nullptr) return absl::DataLossError(absl::StrCat(path_, ": cannot be opened"));
  absl::Status written = file_->Append(absl::StrCat(torn_ ? "\n" : "", ToJson(record), "\n"));
  torn_ = !written.ok();
  return written;
}

absl::Status MetricsWriter::GoBack(int64_t last_step) {
  file_ = nullptr;
  absl::Status dropped = DropLines(fs_, path_, last_step);
  ASSIGN_OR_RETURN(file_, fs_.OpenForAppend(path_));
  torn_ = false;
  return dropped;
}

}  // namespace deepnet
