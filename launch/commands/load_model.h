// The model of `translate`, `score` and `evaluate` on all ranks of a job: each has a copy, on a
// device or a share of the cores of its own.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/model_loader.h"

namespace deepnet {

struct DecodingModel {
  RunSpec run;  // DecodingRunSpec of this command line; max_positions is the least of an ensemble
  std::unique_ptr<LoadedModel> loaded;
};

// Loads the model of --checkpoint, or the ensemble of all of them, after `check` has accepted the
// RunSpec of the first. Collective over `world`;
// every rank gets the same error (IsAgreed), also FailedPrecondition (ExitCode::kPreflight) where
// ranks differ in program, checkpoint or arithmetic.
absl::StatusOr<DecodingModel> LoadDecodingModel(
    const CommandLine& line, Communicator& world,
    const std::function<absl::Status(const RunSpec& run)>& check);

// Returns how many sentences `model` searches together: on GPUs as many as the one with the least
// free memory has room for. Collective over `world`; every rank gets the same limits, or the same
// error (ExitCode::kDoesNotFit).
absl::StatusOr<BatchLimits> AgreeOnLimits(const DecodingModel& model, Communicator& world);

}  // namespace deepnet
