// The flags of `rehearse`, and what they mean together.
#pragma once

#include <vector>

#include "absl/status/status.h"

#include "launch/commands/command.h"
#include "parallel/exec/rehearsal.h"
#include "proto/plan.pb.h"

namespace deepnet {

std::vector<Flag> RehearseFlags();

// Every mistake at once, InvalidArgument with ExitCode::kBadConfig naming the flags.
absl::Status CheckRehearseFlags(const ParsedFlags& flags);

// `parallel` says how long a message may take.
RehearsalOptions MakeRehearsalOptions(const ParsedFlags& flags, const ParallelSpec& parallel);

}  // namespace deepnet
