// Time for measuring durations.
#pragma once

#include <chrono>
#include <vector>

namespace deepnet {

// Returns the seconds of a clock that only runs forward, from an arbitrary start. Thread-safe.
inline double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct TimedPhase {
  const char* name;  // a literal
  double seconds = 0.0;
};

// Times what follows one another.
class PhaseClock {
 public:
  // Ends the phase that began with this object or at the last call.
  void End(const char* name) {
    const double now = SecondsNow();
    phases_.push_back({name, now - began_});
    began_ = now;
  }
  const std::vector<TimedPhase>& phases() const { return phases_; }

 private:
  double began_ = SecondsNow();
  std::vector<TimedPhase> phases_;
};

}  // namespace deepnet
