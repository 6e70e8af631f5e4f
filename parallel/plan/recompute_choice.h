// How the layers of a rank or of a stack are computed again. An unset level is NONE, an unset
// segment 1.
#pragma once

#include "proto/plan.pb.h"

namespace deepnet {

struct RecomputeChoice {
  Recompute level = NONE;
  int segment = 1;  // LAYER: layers between two kept inputs

  friend bool operator==(const RecomputeChoice&, const RecomputeChoice&) = default;
};

}  // namespace deepnet
