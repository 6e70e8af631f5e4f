// Protobuf's text format, as every reader of the program parses it: bounded, and without words on
// stderr.
#pragma once

#include <string>

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>

namespace deepnet {

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
