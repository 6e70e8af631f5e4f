// A trained model, ready to translate and to score, from a run or checkpoint folder alone.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "proto/run.pb.h"
#include "trainer/data/vocabulary.h"
#include "trainer/decode/scorer.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/transformer.h"

namespace deepnet {

struct LoadedModel {
  RunSpec run;         // as stored with the checkpoint; run.compute is what is used here
  std::string folder;  // of the checkpoint
  int64_t step = 0;    // of the checkpoint
  std::unique_ptr<Vocabulary> vocabulary;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<Scorer> scorer;
  std::unique_ptr<PairScorer> pair_scorer;
};

// `run_or_checkpoint`: a run folder (its newest checkpoint), a checkpoint folder or a pointer file
// such as runs/a/best-bleu. The run's arithmetic is used with `overrides` on top; where this host
// does not have it, or the checkpoint names none (an import), float32 on a CPU with the best
// instructions that it has. Errors carry ExitCode::kCheckpoint.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& run_or_checkpoint,
                                                       const ComputeSpec& overrides);

}  // namespace deepnet
