// Protobuf messages as bytes, for files and for other ranks. Bytes with a string that is not UTF-8
// cannot be parsed, and names of files, hosts and jobs may hold anything: so nothing is serialized
// past ToBytes(), and what cannot be read is a status.
#pragma once

#include <string>

#include "absl/status/status.h"
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

}  // namespace deepnet
