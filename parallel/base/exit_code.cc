#include "parallel/base/exit_code.h"

#include <string>

#include "absl/strings/cord.h"

namespace deepnet {
namespace {

constexpr char kPayload[] = "deepnet.exit_code";

}  // namespace

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  if (!status.ok() && !status.GetPayload(kPayload).has_value()) {
    status.SetPayload(kPayload, absl::Cord(std::to_string(static_cast<int>(code))));
  }
  return status;
}

ExitCode GetExitCode(const absl::Status& status) {
  if (status.ok()) return ExitCode::kDone;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return ExitCode::kInternal;
  return static_cast<ExitCode>(std::stoi(std::string(*payload)));
}

}  // namespace deepnet
