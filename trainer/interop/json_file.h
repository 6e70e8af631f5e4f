// Reads JSON files of other programs into messages of proto/interop.proto.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Bytes of memory for a byte of JSON, at most, once it is parsed.
inline constexpr int64_t kJsonFactor = 16;

// Reads `json` into `message`; keys that it does not have are skipped. `under` is the field that
// takes the object, for objects whose keys are names; if empty, the message itself takes it. Fails
// with INVALID_ARGUMENT (ExitCode::kCheckpoint), naming `file` and what is wrong.
absl::Status ParseJson(const std::string& json, const std::string& under, const std::string& file,
                       google::protobuf::Message* message);

// ParseJson() of a file. NOT_FOUND if there is none; ExitCode::kDoesNotFit if it needs more memory
// than `options` allow, once it is parsed; ExitCode::kCheckpoint for all else.
absl::Status ReadJsonFile(FileSystem& fs, const std::string& path, const std::string& under,
                          const ToolOptions& options, google::protobuf::Message* message);

}  // namespace deepnet
