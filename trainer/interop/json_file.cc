#include "trainer/interop/json_file.h"

#include "absl/strings/str_cat.h"
#include <google/protobuf/util/json_util.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

absl::Status ParseJson(const std::string& json, const std::string& under, const std::string& file,
                       google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const std::string wrapped = under.empty() ? "" : absl::StrCat("{\"", under, "\":", json, "}");
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(under.empty() ? json : wrapped), message, options);
  if (status.ok()) return absl::OkStatus();
  return WithExitCode(
      absl::InvalidArgumentError(absl::StrCat("'", file, "': ", std::string(status.message()))),
      ExitCode::kCheckpoint);
}

absl::Status ReadJsonFile(FileSystem& fs, const std::string& path, const std::string& under,
                          const ToolOptions& options, google::protobuf::Message* message) {
  const auto read = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t bytes, fs.Size(path));
    RETURN_IF_ERROR(CheckMemory(kToolFixedBytes + kJsonFactor * bytes, options,
                                absl::StrCat("reading '", path, "'")));
    ASSIGN_OR_RETURN(const std::string json, ReadWholeFile(fs, path, bytes));
    return ParseJson(json, under, path, message);
  };
  return WithExitCode(read(), ExitCode::kCheckpoint);
}

}  // namespace deepnet
