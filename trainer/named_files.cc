#include "trainer/named_files.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/device_model.h"
#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{64} << 20;

bool IsText(const std::string& value) { return value.find(':') != std::string::npos; }

// The text of the file; `unknown` says why `name` is nothing else.
absl::StatusOr<std::string> ReadFile(const std::string& root, const std::string& name,
                                     const std::string& unknown) {
  const std::filesystem::path path = std::filesystem::path(root) / name;
  auto text = ReadWholeFile(*MakePosixFileSystem(), path, kMaxTextBytes);
  if (text.ok() && !text->empty()) return text;
  return ConfigError(unknown, ", or a file, but ", path.string(), " is not one that can be read",
                     text.ok() ? "" : absl::StrCat(": ", text.status().message()));
}

}  // namespace

absl::Status ReadNamedFiles(const std::string& root, RunSpec* run) {
  const std::string& schedule = run->parallel().schedule();
  if (!schedule.empty() && !IsText(schedule) && FindScheduleKind(schedule) == nullptr) {
    ASSIGN_OR_RETURN(*run->mutable_parallel()->mutable_schedule(),
                     ReadFile(root, schedule, UnknownSchedule(schedule)));
  }
  const std::string& device = run->cluster().device_model();
  if (!device.empty() && !IsText(device) && !FindDeviceModel(device).ok()) {
    ASSIGN_OR_RETURN(
        *run->mutable_cluster()->mutable_device_model(),
        ReadFile(root, device, absl::StrCat("cluster.device_model: ", UnknownDeviceModel(device))));
  }
  return absl::OkStatus();
}

}  // namespace deepnet
