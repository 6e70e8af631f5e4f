// Time for measuring durations.
#pragma once

namespace deepnet {

// Returns the seconds of a clock that only runs forward, from an arbitrary start: only differences
// mean something. Any thread may call it; two calls in the same thread never go backwards.
double SecondsNow();

}  // namespace deepnet
