// Protobuf messages as bytes, for files and for other ranks, and as text, of people.
//
// Bytes with a string that is not UTF-8 cannot be parsed, and names of files, hosts and jobs may
// hold anything: so nothing is serialized past ToBytes(), and what cannot be read is a status.
// Every reader of text parses it by ParseTextProto: bounded, and without words on stderr.
#pragma once

#include <string>

#include "absl/status/status.h"
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>

namespace deepnet {

// Returns `message` serialized, with what EscapedUtf8() makes of every string anywhere in it.
std::string ToBytes(const google::protobuf::Message& message);

// Returns `message`, which holds no Any, as indented JSON with all of its fields and the
// same strings.
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

}  // namespace deepnet
