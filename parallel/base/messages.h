// Protobuf messages as bytes, for files and for other ranks, and as text, of people; checks of
// their fields. Bytes with a string that is not UTF-8 cannot be parsed, and names of files, hosts
// and jobs may hold anything: so nothing is serialized past ToBytes(), and what cannot be read is a
// status. Every reader of text parses it by ParseTextProto: bounded, and without words on stderr.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>

namespace deepnet {

// Returns `message` serialized, with what EscapedUtf8() makes of every string anywhere in it.
std::string ToBytes(const google::protobuf::Message& message);

// Returns `message`, which holds no Any, as indented JSON with all of its fields and such strings.
std::string ToIndentedJson(const google::protobuf::Message& message);

// Parses `bytes`, which another rank serialized, into `message`. Fails with Internal naming the
// type if they are no such message.
absl::Status ParseSent(const std::string& bytes, google::protobuf::Message& message);

// Messages inside messages, known or not, and lists of such. A deeper text is a mistake: the parser
// recurses, and a small file could end the program by its depth.
inline constexpr int kMaxTextProtoDepth = 100;

struct TextProtoOptions {
  bool skips_unknown_fields = false;  // else one is a mistake
  // Keeps what the message holds; a singular field may come several times, and the last one counts.
  bool merges = false;
  // Takes the mistake that ended the parse, and warnings of fields that were skipped; lines and
  // columns from 0. Borrowed; nullptr: nobody is told.
  google::protobuf::io::ErrorCollector* errors = nullptr;
};

// Reads `text` into `message`. Returns false at the first mistake. Numbers with a leading 0 are
// one: the format means octal ones, their writer does not.
bool ParseTextProto(const std::string& text, google::protobuf::Message* message,
                    const TextProtoOptions& options = {});

// Lines "field: value: text".
using Mistakes = std::vector<std::string>;

// Checks the fields of one message, which are looked up by name.
//   Mistakes mistakes;
//   const Fields fields(data, "data.", &mistakes);
//   fields.AtLeast(1, "global_microbatches");  // "data.global_microbatches: 0: must be at least 1"
class Fields {
 public:
  // `path` stands before the names of fields: "prepare.", or nothing. Borrows all it is given.
  Fields(const google::protobuf::Message& message, std::string path, Mistakes* mistakes)
      : message_(message), path_(std::move(path)), mistakes_(*mistakes) {}

  // Adds a mistake unless `good`, with `value` in place of the field's own. Returns `good`.
  bool Require(bool good, const std::string& name, const std::string& value,
               const std::string& text) const {
    if (!good) mistakes_.push_back(absl::StrCat(path_, name, ": ", value, ": ", text));
    return good;
  }

  // The same with the field's value. Looks the name up even where `good`, so that a misspelt name
  // fails with every message and not only with a wrong one.
  bool Require(bool good, const std::string& name, const std::string& text) const {
    const google::protobuf::FieldDescriptor& field = Find(name);
    return good || Require(false, name, ValueText(field), text);
  }

  bool Given(const std::string& name, const std::string& text) const {
    return Require(!message_.GetReflection()->GetString(message_, &Find(name)).empty(), name, text);
  }

  // Refuses a number that would take memory or time before anything else could refuse it.
  bool AtMost(double most, const std::string& name) const {
    return Require(Number(name) <= most, name,
                   absl::StrCat("must be at most ", static_cast<int64_t>(most)));
  }

  bool AtLeast(double least, const std::string& name, const std::string& text = "") const {
    return Require(Number(name) >= least, name,
                   text.empty() ? absl::StrCat("must be at least ", least) : text);
  }

  bool Is0(const std::string& name, const std::string& text) const {
    return Require(Number(name) == 0, name, text);
  }

  bool Above0(const std::string& name, const std::string& text = "must be above 0") const {
    return Require(Number(name) > 0, name, text);
  }

  bool Within(double least, double most, const std::string& name, const std::string& text) const {
    return Require(Number(name) >= least && Number(name) <= most, name, text);
  }

  bool Probability(const std::string& name) const {
    return Require(Number(name) >= 0 && Number(name) < 1, name, "must be at least 0 and below 1");
  }

  // Adds what the file formats let through anywhere below the message: numbers that are not finite,
  // enum values without a name, texts that are not UTF-8 and whole numbers that arithmetic could
  // not bear. Returns whether every whole number can be borne.
  bool CheckValues() const;

  static std::string Quoted(const std::string& text) { return absl::StrCat("'", text, "'"); }

 private:
  const google::protobuf::FieldDescriptor& Find(const std::string& name) const;
  double Number(const std::string& name) const;
  std::string ValueText(const google::protobuf::FieldDescriptor& field) const;

  const google::protobuf::Message& message_;
  const std::string path_;
  Mistakes& mistakes_;
};

}  // namespace deepnet
