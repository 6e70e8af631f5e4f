#include "tests/support/run_ranks.h"

#include <thread>

#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"

namespace deepnet {

std::vector<absl::Status> RunRanks(int num_ranks,
                                   const std::function<absl::Status(Communicator& comm)>& body) {
  const auto comms = MakeThreadCommunicators(num_ranks);
  std::vector<absl::Status> statuses(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = body(*comms[rank]);
      if (!statuses[rank].ok()) comms[rank]->Abort(static_cast<int>(GetExitCode(statuses[rank])));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  absl::Status echo;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsAborted(status)) return status;
    if (echo.ok()) echo = status;
  }
  return echo;
}

}  // namespace deepnet
