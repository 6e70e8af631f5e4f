#include "parallel/base/exit_code.h"

#include "absl/strings/cord.h"

namespace deepnet {
namespace {

constexpr char kPayload[] = "deepnet.exit_code";

}  // namespace

bool HasExitCode(const absl::Status& status) { return status.GetPayload(kPayload).has_value(); }

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  if (!status.ok() && !HasExitCode(status)) {
    status.SetPayload(kPayload, absl::Cord(std::to_string(static_cast<int>(code))));
  }
  return status;
}

ExitCode GetExitCode(const absl::Status& status) {
  if (status.ok()) return ExitCode::kDone;
  const auto payload = status.GetPayload(kPayload);
  if (payload.has_value()) return static_cast<ExitCode>(std::stoi(std::string(*payload)));
  switch (status.code()) {
    case absl::StatusCode::kInternal:
      return ExitCode::kInternal;
    case absl::StatusCode::kInvalidArgument:
      return ExitCode::kBadConfig;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kHang;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return ExitCode::kPeerLost;
    default:
      return ExitCode::kData;
  }
}

absl::Status WithPrefix(std::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), absl::StrCat(std::string(prefix), ": ", status.message()));
  status.ForEachPayload(
      [&](auto url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

}  // namespace deepnet
