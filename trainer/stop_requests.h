// What a run is asked for from outside: by signals, and by the clock.
#pragma once

#include <atomic>
#include <limits>

namespace deepnet {

// Bits of TrainOptions::request. Handlers of signals add bits; the run takes them.
inline constexpr int kStopRequest = 1;  // save and end with ExitCode::kSavedRunAgain
inline constexpr int kSaveRequest = 2;  // save and go on

// The requests to this rank. Ranks tell each other at the ends of steps; between these, IsStopping
// says whether it is worth going on with something long.
class StopRequests {
 public:
  // `bits` may be null. `deadline`, SecondsNow(): when this process must have ended; infinity: no
  // limit.
  StopRequests(std::atomic<int>* bits, double deadline) : bits_(bits), deadline_(deadline) {}

  // Bits that came since the last call. A stop, once asked for, comes again every time.
  int Take();

  // Whether a stop has been asked for or time is up, taken or not.
  bool IsStopping() const;

  // How long a step and a save take, as far as known: the last save begins that much before the
  // deadline, twice the save (one may be under way) and some seconds for leaving.
  void Expect(double step_seconds, double save_seconds);

 private:
  bool TimeIsUp() const;

  std::atomic<int>* const bits_;
  const double deadline_;
  double lead_seconds_ = 0.0;
  bool stopping_ = false;
};

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

}  // namespace deepnet
