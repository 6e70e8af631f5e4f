// The code between the command line and trainer/decode that `translate`, `score` and `evaluate`
// share: the flags, what they mean, and the two streams themselves. Takes a model as interfaces, so
// that all of it is tested without one.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "launch/flags.h"
#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

// --checkpoint, once or, of an ensemble, several times.
Flag CheckpointFlag();

// --checkpoint, --from, --to: all required.
std::vector<Flag> ModelFlags();

// The flags that change RunSpec.decode: --beam-size, --length-penalty, --nbest, --greedy, --sample,
// --top-k, --top-p, --epsilon, --seed, --batch-tokens.
std::vector<Flag> SearchFlags();

// Checks SearchFlags: flags that contradict each other, values out of range. INVALID_ARGUMENT with
// ExitCode::kBadConfig lists the mistakes, a line each; so do the functions below.
absl::Status CheckSearchFlags(const ParsedFlags& flags);

// Returns `decode` changed by SearchFlags.
DecodeSpec WithSearchFlags(DecodeSpec decode, const ParsedFlags& flags);

// Returns the compute fields that --config and --set of this command line name; all others are
// unset.
absl::StatusOr<ComputeSpec> ComputeOverrides(const CommandLine& line);

// Returns a checkpoint's RunSpec changed by --config, --set and SearchFlags (if the command has
// them). Refuses changes of `model` and `data`: weights and vocabulary are what they are.
absl::StatusOr<RunSpec> DecodingRunSpec(const CommandLine& line, const RunSpec& of_checkpoint);

// Holds what `translate` and `score` work with besides the model. The streams of `line` are rank
// 0's.
struct DecodingJob {
  const CommandLine& line;
  const RunSpec& run;  // DecodingRunSpec's
  const Vocabulary& vocabulary;
  Communicator& world;
};

// Runs `translate` with everything loaded: standard input to standard output, a summary to standard
// error. Collective over `job.world`; so is ScoreLines. Every rank gets the same error.
absl::Status TranslateLines(const DecodingJob& job, const BatchLimits& limits, Scorer& scorer);

// Runs `score` with everything loaded: the two files among the positional words, or TSV on standard
// input; to standard output, a summary to standard error.
absl::Status ScoreLines(const DecodingJob& job, PairScorer& scorer);

}  // namespace deepnet
