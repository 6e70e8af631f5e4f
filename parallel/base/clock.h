// Time for measuring durations.
#pragma once

#include <chrono>

namespace deepnet {

// Returns the seconds of a clock that only runs forward, from an arbitrary start: only differences
// mean something. Any thread may call it; two calls in the same thread never go backwards.
inline double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace deepnet
