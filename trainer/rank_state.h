// Checkpoints of a run that is spread over ranks: every rank writes what it updates and reads what
// it holds.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/plan/inventory.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/rank_part.h"

namespace deepnet {

// What one rank writes into a checkpoint: weights and both moments of the elements that it updates,
// 12 bytes each. The ranks of a job make a whole checkpoint.
class RankSnapshot {
 public:
  // `part` outlives this. With `copies`, memory for them is reserved now, once.
  RankSnapshot(const RankPart& part, bool copies);

  // Takes the pages of that memory, which takes a second a GB and longer; by any thread, beside
  // what comes before the first Look. Without it, the first Copy does it.
  void TakeMemory();

  // As they are now: views of the weights and moments themselves where they are on the host.
  void Look();
  // Moves what Look saw into the copies, if there are any; nobody may change weights and moments
  // until then. By any thread.
  void Copy();

  // Of the last Look or Copy.
  std::span<const NamedTensor> tensors() const { return tensors_; }
  // Of what it copies, or would.
  int64_t bytes() const;

 private:
  const RankPart& part_;
  std::unique_ptr<float[]> memory_;  // of all copies, where there are some
  std::vector<at::Tensor> held_;     // what views look at
  std::vector<NamedTensor> tensors_;
};

// Loads what this rank holds, whatever the layout of those that saved it.
absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankPart& part);

// WeightsHash of the whole model, the same for every layout. Collective over part.world.
absl::StatusOr<std::string> HashRankWeights(const RankPart& part, const Inventory& whole);

}  // namespace deepnet
