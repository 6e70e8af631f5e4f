// Some steps of a tiny model, on the layout of a run and on one rank, by CUDA graphs and without.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "proto/doctor.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// Trains a model of a few features, with as many layers as the layout has chunks, on all ranks of
// `world` with the stages, replicas, schedule and recomputation of `run`.parallel, every one of
// which is decided, and with the arithmetic of `run`.compute; then each rank trains all of it
// alone. Losses, gradient norms and the rank's weights must be equal to the bit: gradients are
// summed in STRICT order. The error of the check is the number of values that differ. Collective.
absl::StatusOr<DoctorCheck> CheckLayout(const RunSpec& run, Communicator& world);

// The same model on this rank's GPU alone, with compute.cuda_graphs and with every kernel launched
// and waited for by itself, from the same padded microbatches. The error of the check is the number
// of values that differ; a graph that is not used because its bits were wrong is a failure.
absl::StatusOr<DoctorCheck> CheckGraphs(const RunSpec& run);

// "2 stages x 2 replicas, 1f1b".
std::string LayoutText(const ParallelSpec& parallel);

}  // namespace deepnet
