#include "trainer/telemetry/event_file.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/crc32c.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "proto/report.pb.h"

namespace deepnet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using tensorboard::Event;
using tensorboard::Summary;

constexpr char kFilePrefix[] = "events.out.tfevents.";  // TensorBoard looks for "tfevents"
constexpr int64_t kMaxFiles = 1'000'000'000;            // of a folder: others are not numbered on
constexpr int kText = 7;                                // DT_STRING
constexpr int kStart = 1;                               // SessionLog::START

template <typename Integer>
std::string LittleEndian(Integer value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// A checksum of bytes that hold checksums is a weak one; TFRecord's mask makes it another number.
std::string MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

std::string RecordOf(Event event, int64_t step) {
  event.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  event.set_step(step);
  return ToTfRecord(ToBytes(event));
}

// Returns the value of a field that is a figure; nothing for others.
std::optional<double> Figure(const Message& message, const FieldDescriptor& field) {
  if (field.is_repeated()) return std::nullopt;
  const auto& reflection = *message.GetReflection();
  if (field.has_presence() && !reflection.HasField(message, &field)) return std::nullopt;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    default:
      return std::nullopt;
  }
}

// Returns `text` so that TensorBoard's Markdown shows it as it is, provided that it begins no line.
std::string MarkdownEscaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"<", "&lt;"},
                                    {"&", "&amp;"},
                                    {"\\", "\\\\"},
                                    {"`", "\\`"},
                                    {"*", "\\*"},
                                    {"_", "\\_"},
                                    {"[", "\\["},
                                    {"]", "\\]"}});
}

// No sentence stands at the beginning of a line, where Markdown would see lists and headings in it.
void AddSample(const SampleTranslation& sample, Summary& summary) {
  Summary::Value& value = *summary.add_value();
  value.set_tag(absl::StrCat("sample/", sample.direction(), ".", sample.line()));
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  tensorboard::Tensor& texts = *value.mutable_tensor();
  texts.set_dtype(kText);
  for (const auto& [name, text] : {std::pair("source", sample.source()),
                                   {"reference", sample.reference()},
                                   {"translation", sample.translation()}}) {
    texts.add_string_val(absl::StrCat("**", name, "** ", MarkdownEscaped(text)));
  }
  texts.mutable_tensor_shape()->add_dim()->set_size(texts.string_val_size());
}

// Returns the number after that of the last file in `folder`.
int64_t NextNumber(const std::string& folder, std::error_code& error) {
  int64_t next = 1, number = 0;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.rfind(kFilePrefix, 0) != 0) continue;
    const size_t at = sizeof(kFilePrefix) - 1;
    const std::string digits = name.substr(at, name.find('.', at) - at);
    if (absl::SimpleAtoi(digits, &number) && number < kMaxFiles) next = std::max(next, number + 1);
  }
  return next;
}

}  // namespace

std::string ToTfRecord(std::string_view bytes) {
  const std::string length = LittleEndian(static_cast<uint64_t>(bytes.size()));
  return absl::StrCat(length, MaskedCrc(length), absl::string_view(bytes.data(), bytes.size()),
                      MaskedCrc(bytes));
}

// Opens the file for what follows its whole records.
absl::Status EventWriter::Open() {
  std::error_code error;
  if (path_.empty()) {
    RETURN_IF_ERROR(MakeOwnFolder(*files_, folder_));
    const int64_t number = NextNumber(folder_, error);
    if (error) return absl::DataLossError(absl::StrCat(folder_, ": ", error.message()));
    path_ = absl::StrFormat("%s/%s%010d.deepnet", folder_, kFilePrefix, number);
  }
  ASSIGN_OR_RETURN(auto file, files_->OpenForAppend(path_));
  std::filesystem::resize_file(path_, good_bytes_, error);
  if (error) return absl::DataLossError(absl::StrCat(path_, ": ", error.message()));
  file_ = std::move(file);
  return absl::OkStatus();
}

absl::Status EventWriter::Write(const Message& record) {
  if (file_ == nullptr) RETURN_IF_ERROR(Open());
  const FieldDescriptor* const step_field = record.GetDescriptor()->FindFieldByName("step");
  const int64_t step = record.GetReflection()->GetInt64(record, step_field);
  std::string bytes;
  Event event;
  if (good_bytes_ == 0) {
    event.set_file_version("brain.Event:2");
    bytes += RecordOf(event, 0);
  }
  if (forget_from_) {
    event.mutable_session_log()->set_status(kStart);
    bytes += RecordOf(event, *forget_from_);
  }
  *event.mutable_summary() = SummaryOf(record);
  bytes += RecordOf(event, step);
  if (absl::Status written = file_->Append(bytes); !written.ok()) {
    file_ = nullptr;
    return written;
  }
  good_bytes_ += static_cast<int64_t>(bytes.size());
  forget_from_.reset();
  return absl::OkStatus();
}

Summary EventWriter::SummaryOf(const Message& record) {
  Summary summary;
  const FieldDescriptor* const kind = record.GetDescriptor()->FindFieldByName("kind");
  AddFigures(record, record.GetReflection()->GetString(record, kind) + "/", "", summary);
  if (const auto* const scores = google::protobuf::DynamicCastToGenerated<EvalRecord>(&record)) {
    for (const DirectionScore& score : scores->directions()) {
      AddFigures(score, "", "/" + score.direction(), summary);
    }
    for (const SampleTranslation& sample : scores->samples()) AddSample(sample, summary);
  }
  return summary;
}

void EventWriter::AddFigures(const Message& record, std::string_view prefix,
                             std::string_view suffix, Summary& summary) {
  for (int i = 0; i < record.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *record.GetDescriptor()->field(i);
    const std::optional<double> figure = Figure(record, field);
    if (!figure || field.name() == "step" || field.name() == "sentences") continue;
    const std::string tag = std::string(prefix) + field.name() + std::string(suffix);
    if (*figure == 0.0 && shown_.count(tag) == 0) continue;
    shown_.insert(tag);
    Summary::Value& value = *summary.add_value();
    value.set_tag(tag);
    value.set_simple_value(static_cast<float>(*figure));
  }
}

}  // namespace deepnet
