#include "parallel/base/start_thread.h"

#include <future>
#include <system_error>
#include <utility>
#include <vector>

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

absl::Status TryThreads(int count) {
  std::promise<void> go;
  const std::shared_future<void> gone(go.get_future());
  std::vector<std::thread> threads;
  absl::Status status;
  for (int running = 1; status.ok() && running < count; ++running) {
    absl::StatusOr<std::thread> thread = StartThread([gone] { gone.wait(); });
    status = WithPrefix(absl::StrCat(running, " of ", count, " threads run"), thread.status());
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  go.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace deepnet
