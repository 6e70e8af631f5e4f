#include "trainer/schedule_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/plan/schedule_generators.h"

namespace deepnet {

absl::Status ReadScheduleFile(const std::string& root, ParallelSpec* parallel) {
  const std::string& name = parallel->schedule();
  if (name.empty() || name.find(':') != std::string::npos || FindScheduleKind(name) != nullptr) {
    return absl::OkStatus();
  }
  const std::filesystem::path path = std::filesystem::path(root) / name;
  std::ostringstream text;
  if (std::filesystem::is_regular_file(path)) {
    std::ifstream file(path);
    text << file.rdbuf();
    if (file && !text.str().empty()) {
      parallel->set_schedule(text.str());
      return absl::OkStatus();
    }
  }
  return WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(UnknownSchedule(name), ", or a file, but ",
                                              path.string(), " is not one that can be read")),
      ExitCode::kBadConfig);
}

}  // namespace deepnet
