// Messages between ranks: protobuf messages, serialized.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <google/protobuf/message.h>

namespace deepnet {

// Parses `bytes`, which another rank serialized, into `message`. Fails with Internal naming the
// type if they are no such message.
inline absl::Status ParseSent(const std::string& bytes, google::protobuf::Message& message) {
  if (message.ParseFromString(bytes)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a ", message.GetDescriptor()->name(), " did not survive being sent"));
}

}  // namespace deepnet
