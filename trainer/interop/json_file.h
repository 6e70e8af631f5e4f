// JSON files of other programs, read into messages of proto/interop.proto.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Memory that one byte of JSON comes to, at most, once it is read.
inline constexpr int64_t kJsonFactor = 16;

// Reads `json` into `message`; keys that it does not have are passed over. `under`: the field that
// takes the whole object, where keys are names; empty: the message itself. INVALID_ARGUMENT
// (ExitCode::kCheckpoint) names `file` and what is wrong.
absl::Status ParseJson(const std::string& json, const std::string& under, const std::string& file,
                       google::protobuf::Message* message);

// Reads the text of a JSON file. NOT_FOUND if there is none; ExitCode::kDoesNotFit if it needs more
// memory than `options` allow, once it is parsed; ExitCode::kCheckpoint for all else.
absl::StatusOr<std::string> ReadJsonText(FileSystem& fs, const std::string& path,
                                         const ToolOptions& options);

// ParseJson() of ReadJsonText().
absl::Status ReadJsonFile(FileSystem& fs, const std::string& path, const std::string& under,
                          const ToolOptions& options, google::protobuf::Message* message);

}  // namespace deepnet
