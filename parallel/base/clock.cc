#include "parallel/base/clock.h"

#include <chrono>

namespace deepnet {

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace deepnet
