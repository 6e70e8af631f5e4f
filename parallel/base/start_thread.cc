#include "parallel/base/start_thread.h"

#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"

namespace deepnet {

absl::StatusOr<std::thread> StartThread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return WithExitCode(absl::ResourceExhaustedError(absl::StrCat(
                            "the system refuses another thread (", error.code().message(),
                            "): its limits of processes (ulimit -u) and memory decide")),
                        ExitCode::kDoesNotFit);
  }
}

}  // namespace deepnet
