#include "launch/stop_signals.h"

#include <csignal>

#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

// Handlers take no argument, so that they can reach nothing else.
std::atomic<int> g_requests{0};          // NOLINT
std::atomic<bool> g_interrupted{false};  // NOLINT
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void HandleStop(int) { g_requests.fetch_or(kStopRequest); }
extern "C" void HandleSave(int) { g_requests.fetch_or(kSaveRequest); }
extern "C" void HandleInterrupt(int signal) {
  g_requests.fetch_or(kStopRequest);
  if (!g_interrupted.exchange(true)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void ListenToSignals() {
  std::signal(SIGTERM, HandleStop);
  std::signal(SIGUSR1, HandleStop);
  std::signal(SIGUSR2, HandleSave);
  std::signal(SIGINT, HandleInterrupt);
}

std::atomic<int>& SignalRequests() { return g_requests; }

}  // namespace deepnet
