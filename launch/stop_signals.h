// Signals as requests to a run: SIGTERM, SIGUSR1 or one SIGINT: save and end; SIGUSR2: save and go
// on; a second SIGINT: end at once.
#pragma once

#include <atomic>

namespace deepnet {

// From now on, and as early as possible: a signal before that ends the process.
void ListenToSignals();

// Bits of trainer/stop_requests.h that handlers add; for TrainOptions::request.
std::atomic<int>& SignalRequests();

}  // namespace deepnet
