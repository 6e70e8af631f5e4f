// The settings of a run that a plan depends on.
#pragma once

#include "proto/data.pb.h"
#include "proto/instruments.pb.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Borrows them all: it is made in the call that reads it.
struct PlanSettings {
  const DataSpec& data;
  const OptimSpec& optim;
  const ComputeSpec& compute;
  const ClusterSpec& cluster;
  const ParallelSpec& parallel;
  const InstrumentsSpec& instruments = InstrumentsSpec::default_instance();
};

}  // namespace deepnet
