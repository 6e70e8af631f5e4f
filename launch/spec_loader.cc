// A textproto is parsed with unknown fields allowed, so that one pass meets all of them; after an
// error that stops protobuf's parser the offending word or line is blanked out and the text parsed
// again, so that one call reports every mistake. JSON is first walked as a plain tree against the
// descriptor for the same reason. A --set is a one-field textproto merged at the end of its path.
#include "launch/spec_loader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/type_resolver_util.h"

#include "launch/field_names.h"
#include "launch/flags.h"
#include "parallel/base/file_system.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/utf8.h"

namespace deepnet {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Returns the number of the value that `name` is another spelling of; none if it is not.
std::optional<int> OtherSpelling(const FieldDescriptor& field, const std::string& name) {
  if (field.enum_type() != DataType_descriptor()) return std::nullopt;
  const std::string lower = absl::AsciiStrToLower(name);
  if (lower == "bf16" || lower == "bfloat16") return BFLOAT16;
  if (lower == "fp16" || lower == "float16" || lower == "half") return FLOAT16;
  if (lower == "fp32" || lower == "float32") return FLOAT32;
  return std::nullopt;
}

std::string NoSuchValue(const FieldDescriptor& field, const std::string& name) {
  const EnumDescriptor& type = *field.enum_type();
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return absl::StrCat(field.name(), " has no value '", name, "'", SuggestName(name, names));
}

// ---- textproto ----

struct Position {
  int line = 0;    // from 0
  int column = 0;  // from 0

  friend auto operator<=>(const Position&, const Position&) = default;
};

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr size_t kMaxMistakes = 1000;  // a file with more is no configuration

// The complaints of one parse. Warnings are unknown fields; an error ends the parse.
class Complaints : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (errors.empty()) errors.emplace(Position{std::max(line, 0), std::max(column, 0)}, message);
  }
  void AddWarning(int line, int column, const std::string& message) override {
    if (warnings.size() < kMaxMistakes) warnings.emplace(Position{line, column}, message);
  }

  std::map<Position, std::string> errors, warnings;
};

// The words between double quotes in one of protobuf's messages.
std::vector<std::string> QuotedWords(const std::string& message) {
  const std::vector<std::string> parts = absl::StrSplit(message, '"');
  std::vector<std::string> words;
  for (size_t i = 1; i < parts.size(); i += 2) words.push_back(parts[i]);
  return words;
}

// 'Message type "deepnet.ModelSpec" has no field named "widht".', said our way.
std::string ReadableWarning(const std::string& message) {
  const std::vector<std::string> words = QuotedWords(message);
  if (words.size() != 2) return message;
  const Descriptor* type = DescriptorPool::generated_pool()->FindMessageTypeByName(words[0]);
  return type == nullptr ? message : NoSuchField(*type, words[1]);
}

bool IsWordCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// The last whole word `word` in `text` before `end`; npos: none.
size_t FindWordBefore(const std::string& text, const std::string& word, size_t end) {
  const auto is_word = [&](size_t at) { return at < text.size() && IsWordCharacter(text[at]); };
  size_t at = text.rfind(word, end);
  while (at != std::string::npos && (is_word(at - 1) || is_word(at + word.size()))) {
    at = at == 0 ? std::string::npos : text.rfind(word, at - 1);
  }
  return at;
}

size_t OffsetOf(const std::string& text, Position position) {
  size_t start = 0;
  for (int line = 0; line < position.line; ++line) {
    start = std::min(text.find('\n', start), text.size()) + 1;
  }
  return std::min(text.size(), start + position.column);
}

// The first enum field called `name` in `root` or below it; nullptr: none.
const FieldDescriptor* FindEnumField(const Descriptor& root, const std::string& name) {
  std::vector<const Descriptor*> open = {&root};
  for (size_t i = 0; i < open.size(); ++i) {
    const FieldDescriptor* field = open[i]->FindFieldByName(name);
    if (field != nullptr && field->enum_type() != nullptr) return field;
    for (int f = 0; f < open[i]->field_count(); ++f) {
      const Descriptor* inner = open[i]->field(f)->message_type();
      if (inner != nullptr) open.push_back(inner);
    }
  }
  return nullptr;
}

// Returns true for a line with "field: 0,5" or "field: 50,000".
bool HasNumberWithComma(absl::string_view line) {
  const auto is_digit = [&](size_t at) {
    return at < line.size() && absl::ascii_isdigit(line[at]);
  };
  for (size_t comma = line.find(','); comma < line.size(); comma = line.find(',', comma + 1)) {
    if (!is_digit(comma - 1) || !is_digit(comma + 1)) continue;
    const size_t before = line.find_last_not_of("+-.0123456789 ", comma - 1);
    if (before < line.size() && line[before] == ':') return true;
  }
  return false;
}

// Blanks out the line of a malformed value, if the line is a whole field and nothing else. False:
// it is not, so nothing behind the error can be read.
bool BlankOutLine(Position position, std::string* text) {
  const size_t start = OffsetOf(*text, {position.line, 0});
  const size_t end = std::min(text->find('\n', start), text->size());
  const std::string line = text->substr(start, end - start);
  const std::string before = line.substr(0, position.column);
  const bool whole_field =
      before.find(':') != std::string::npos && line.find_first_of("{}<>[]") == std::string::npos;
  if (whole_field) std::fill(text->begin() + start, text->begin() + end, ' ');
  return whole_field;
}

// Replaces the dashes in names of fields by underscores; strings and comments stay as they are.
std::string WithUnderscores(std::string text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '\'') {
      for (++at; at < text.size() && text[at] != c; ++at) {
        if (text[at] == '\\') ++at;
      }
    } else if (absl::ascii_isalnum(c) || c == '_') {
      size_t end = at;
      while (end < text.size() && (IsWordCharacter(text[end]) || text[end] == '-')) ++end;
      const size_t next = text.find_first_not_of(" \t", end);
      const bool is_name = next != std::string::npos && (text[next] == ':' || text[next] == '{');
      if (is_name) std::replace(text.begin() + at, text.begin() + end, '-', '_');
      at = end - 1;
    }
  }
  return text;
}

// Says an error our way and repairs `text` behind it; false: nothing after it can be read. An
// unknown enum value, which stands before protobuf's `position`, becomes a number of one digit.
bool HandleError(const Descriptor& root, Position position, const std::string& message,
                 std::map<Position, std::string>* found, std::string* text) {
  const std::vector<std::string> words = QuotedWords(message);
  if (absl::StartsWith(message, "Unknown enumeration value") && words.size() == 2) {
    const std::string& value = words[0];
    const FieldDescriptor* field = FindEnumField(root, words[1]);
    const size_t at = FindWordBefore(*text, value, OffsetOf(*text, position));
    if (field != nullptr && at != std::string::npos) {
      const std::optional<int> known = OtherSpelling(*field, value);
      const int line = static_cast<int>(std::count(text->begin(), text->begin() + at, '\n'));
      if (!known.has_value()) (*found)[{line, 0}] = NoSuchValue(*field, value);
      text->replace(at, value.size(),
                    absl::StrCat(known.value_or(0)) + std::string(value.size() - 1, ' '));
      return true;
    }
  }
  const size_t line = OffsetOf(*text, {position.line, 0});
  const bool comma = HasNumberWithComma(
      absl::string_view(*text).substr(line, std::min(text->find('\n', line), text->size()) - line));
  (*found)[position] = comma ? "a number has a decimal point, and no comma: 0.5, 1000" : message;
  return BlankOutLine(position, text);
}

// Parses `*text` into `message` and repairs it on the way. Returns the mistakes by position; empty:
// it is parsed, and `*text` means the same to protobuf's own parser.
std::map<Position, std::string> ParseText(std::string* text, Message* message) {
  *text = WithUnderscores(std::move(*text));
  constexpr int kMaxErrors = 50;
  std::map<Position, std::string> found;
  for (int attempt = 0; attempt < kMaxErrors; ++attempt) {
    Complaints complaints;
    const bool parsed =
        ParseTextProto(*text, message, {.skips_unknown_fields = true, .errors = &complaints});
    for (const auto& [position, warning] : complaints.warnings) {
      found.try_emplace(position, ReadableWarning(warning));
    }
    if (parsed || complaints.errors.empty()) break;
    const auto& [position, error] = *complaints.errors.begin();
    if (!HandleError(*message->GetDescriptor(), position, error, &found, text)) break;
  }
  return found;
}

// Clears in `target` every repeated field that is not empty in `source`: lists are replaced.
void ClearReplacedLists(const Message& source, Message* target) {
  std::vector<const FieldDescriptor*> fields;
  source.GetReflection()->ListFields(source, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) {
      target->GetReflection()->ClearField(target, field);
    } else if (field->message_type() != nullptr) {
      ClearReplacedLists(source.GetReflection()->GetMessage(source, field),
                         target->GetReflection()->MutableMessage(target, field));
    }
  }
}

// Merges `text` into `target` unless it has mistakes, which are returned by position.
std::map<Position, std::string> MergeText(std::string text, Message* target) {
  const std::unique_ptr<Message> fresh(target->New());
  std::map<Position, std::string> mistakes = ParseText(&text, fresh.get());
  if (!mistakes.empty()) return mistakes;
  ClearReplacedLists(*fresh, target);
  // From the text again, not from `fresh`: a 0 that is written must replace what was there.
  ParseTextProto(text, target, {.merges = true});
  return {};
}

// ---- JSON ----

// The walk over a JSON tree: its mistakes, and its values that are written in protobuf's spelling.
struct JsonCheck {
  std::vector<std::string> mistakes;
  bool respelt = false;
};

void CheckJsonObject(google::protobuf::Struct* object, const Descriptor& type,
                     const std::string& path, JsonCheck* check);

// Checks `*value` as one element of `field`.
void CheckJsonValue(google::protobuf::Value* json, const FieldDescriptor& field,
                    const std::string& path, JsonCheck* check) {
  const google::protobuf::Value& value = *json;
  using google::protobuf::Value;
  double number = value.number_value();
  const bool is_number =
      value.kind_case() == Value::kNumberValue ||
      (value.kind_case() == Value::kStringValue && absl::SimpleAtod(value.string_value(), &number));
  const auto require = [&](bool good, const char* needed) {
    if (!good) check->mistakes.push_back(absl::StrCat(path, ": ", needed, " is needed"));
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      require(value.has_struct_value(), "an object");
      if (!value.has_struct_value()) return;
      CheckJsonObject(json->mutable_struct_value(), *field.message_type(), path, check);
      return;
    case FieldDescriptor::CPPTYPE_ENUM: {
      if (value.kind_case() == Value::kNumberValue) return;
      const std::string name = value.string_value();
      if (field.enum_type()->FindValueByName(name) != nullptr) return;
      if (const std::optional<int> known = OtherSpelling(field, name); known.has_value()) {
        json->set_string_value(field.enum_type()->FindValueByNumber(*known)->name());
        check->respelt = true;
        return;
      }
      check->mistakes.push_back(absl::StrCat(path, ": ", NoSuchValue(field, name)));
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return require(value.kind_case() == Value::kStringValue, "a string");
    case FieldDescriptor::CPPTYPE_BOOL:
      return require(value.kind_case() == Value::kBoolValue, "true or false");
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return require(is_number, "a number");
    default:
      return require(is_number && number == std::floor(number), "a whole number");
  }
}

void CheckJsonObject(google::protobuf::Struct* object, const Descriptor& type,
                     const std::string& path, JsonCheck* check) {
  std::map<std::string, google::protobuf::Value*> sorted;
  for (auto& [key, value] : *object->mutable_fields()) sorted[key] = &value;
  for (const auto& [key, value] : sorted) {
    const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
    const FieldDescriptor* field = type.FindFieldByName(key);
    if (field == nullptr) field = type.FindFieldByCamelcaseName(key);
    if (field == nullptr) {
      check->mistakes.push_back(absl::StrCat(key_path, ": ", NoSuchField(type, key)));
    } else if (value->has_null_value()) {
      continue;  // as if it were not there
    } else if (!field->is_repeated()) {
      CheckJsonValue(value, *field, key_path, check);
    } else if (!value->has_list_value()) {
      check->mistakes.push_back(absl::StrCat(key_path, ": a list is needed"));
    } else {
      for (auto& element : *value->mutable_list_value()->mutable_values()) {
        CheckJsonValue(&element, *field, key_path, check);
      }
    }
  }
}

// Merges `text` into `run` unless it has mistakes, which are returned.
std::vector<std::string> MergeJson(std::string text, RunSpec* run) {
  namespace util = google::protobuf::util;
  const auto first_line = [](const auto& status) {
    const std::string message(status.message().data(), status.message().size());
    return message.substr(0, message.find('\n'));
  };
  google::protobuf::Struct tree;
  if (const auto status = util::JsonStringToMessage(text, &tree); !status.ok()) {
    return {absl::StrCat("not JSON: ", first_line(status))};
  }
  JsonCheck check;
  CheckJsonObject(&tree, *RunSpec::descriptor(), "", &check);
  if (!check.mistakes.empty()) return check.mistakes;
  if (check.respelt) {
    text.clear();
    if (const auto status = util::MessageToJsonString(tree, &text); !status.ok()) {
      return {first_line(status)};
    }
  }

  const std::unique_ptr<util::TypeResolver> resolver(util::NewTypeResolverForDescriptorPool(
      "type.googleapis.com", DescriptorPool::generated_pool()));
  std::string wire;
  const auto status = util::JsonToBinaryString(
      resolver.get(), "type.googleapis.com/" + RunSpec::descriptor()->full_name(), text, &wire);
  RunSpec fresh;
  if (!status.ok()) return {first_line(status)};
  if (!fresh.ParseFromString(wire)) return {"cannot be read as a RunSpec"};
  ClearReplacedLists(fresh, run);
  run->MergeFromString(wire);  // from the wire, not from `fresh`: a 0 that is written counts
  return {};
}

// ---- --set ----

// One scalar or enum value as a textproto writes it.
std::string ScalarText(const FieldDescriptor& field, const std::string& value) {
  const bool quoted = value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
                      value.back() == value.front();
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING || quoted) return value;
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\"", "\\\""}, {"\\", "\\\\"}}), "\"");
}

// "field: value" or "field { value }" for a value as a person types it.
std::string FieldText(const FieldDescriptor& field, std::string value) {
  const bool bracketed = absl::StartsWith(value, "[") && absl::EndsWith(value, "]");
  if (field.message_type() != nullptr) {
    if (bracketed) return absl::StrCat(field.name(), ": ", value);
    if (absl::StartsWith(value, "{")) return absl::StrCat(field.name(), " ", value);
    return absl::StrCat(field.name(), " { ", value, " }");
  }
  if (!field.is_repeated()) return absl::StrCat(field.name(), ": ", ScalarText(field, value));
  if (bracketed) value = value.substr(1, value.size() - 2);
  std::vector<std::string> elements;
  for (const auto& element : absl::StrSplit(value, ',')) {
    elements.push_back(ScalarText(field, std::string(absl::StripAsciiWhitespace(element))));
  }
  return absl::StrCat(field.name(), ": [", absl::StrJoin(elements, ", "), "]");
}

// Applies one "path=value" to `run`. Returns what is wrong with it; empty: nothing.
std::string ApplySet(const std::string& set, RunSpec* run) {
  const std::vector<std::string> sides = absl::StrSplit(set, absl::MaxSplits('=', 1));
  if (sides.size() != 2) return "needs the form FIELD=VALUE";
  std::vector<std::string> path = absl::StrSplit(sides[0], '.');
  for (std::string& name : path) {
    name.erase(0, name.find_first_not_of('-'));
    std::replace(name.begin(), name.end(), '-', '_');
  }
  const std::string value(absl::StripAsciiWhitespace(sides[1]));
  Message* message = run;
  for (size_t i = 0;; ++i) {
    const Descriptor& type = *message->GetDescriptor();
    const FieldDescriptor* field = type.FindFieldByName(path[i]);
    if (field == nullptr) return NoSuchField(type, path[i]);
    const Reflection& reflection = *message->GetReflection();
    if (i + 1 < path.size()) {
      if (field->message_type() == nullptr || field->is_repeated()) {
        return absl::StrCat("'", field->name(), "' has no fields of its own");
      }
      message = reflection.MutableMessage(message, field);
      continue;
    }
    if (value.empty()) {
      reflection.ClearField(message, field);
      return "";
    }
    // Parsing into a parent of the field keeps protobuf's own rules for numbers and names.
    const auto mistakes = MergeText(FieldText(*field, value), message);
    if (mistakes.empty()) return "";
    const std::string& mistake = mistakes.begin()->second;
    return absl::StartsWith(mistake, "Expected \"{\"") ? "one value is needed" : mistake;
  }
}

// ---- sources ----

void MergeFile(const std::string& root, const std::string& file, RunSpec* run,
               std::vector<std::string>* mistakes) {
  const auto add = [&](const auto&... words) { mistakes->push_back(absl::StrCat(file, words...)); };
  const auto text = ReadFileOrPipe(std::filesystem::path(root) / file, kMaxConfigBytes);
  if (!text.ok()) {
    add(": cannot be read: ", text.status().message());
  } else if (HasUtf16Mark(*text)) {
    add(": UTF-16, convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  } else if (absl::StartsWith(*text, "\xef\xbb\xbf")) {
    add(": begins with a byte order mark: save it as UTF-8 without one");
  } else if (absl::EndsWith(file, ".json")) {
    for (const std::string& mistake : MergeJson(*text, run)) add(": ", mistake);
  } else {
    for (const auto& [position, mistake] : MergeText(*text, run)) {
      add(":", position.line + 1, ": ", mistake);
    }
  }
}

}  // namespace

absl::StatusOr<RunSpec> ReadRunSpec(const SpecSources& sources, RunSpec base) {
  std::vector<std::string> mistakes;
  for (const std::string& file : sources.files) MergeFile(sources.root, file, &base, &mistakes);
  for (const std::string& set : sources.sets) {
    const std::string mistake = ApplySet(set, &base);
    if (!mistake.empty()) mistakes.push_back(absl::StrCat("--set ", set, ": ", mistake));
  }
  RETURN_IF_ERROR(BadConfig(mistakes));
  if (base.name().empty() && !sources.files.empty()) {
    base.set_name(EscapedUtf8(std::filesystem::path(sources.files.back()).stem().string()));
  }
  return base;
}

}  // namespace deepnet
