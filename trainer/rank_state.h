// Checkpoints of a run that is spread over ranks: every rank writes what it updates and reads what
// it holds.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/plan/inventory.h"
#include "proto/checkpoint.pb.h"
#include "trainer/rank_part.h"

namespace deepnet {

// Saves weights and both moments as the checkpoint of manifest.step(), a file per rank. Collective
// over part.world; returns on every rank when the checkpoint is durable, or the first error.
absl::Status SaveRankState(FileSystem& fs, const std::string& run_folder, const Manifest& manifest,
                           const RankPart& part);

// Loads what this rank holds, whatever the layout of those that saved it.
absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankPart& part);

// WeightsHash of the whole model, the same for every layout. Collective over part.world.
absl::StatusOr<std::string> HashRankWeights(const RankPart& part, const Inventory& whole);

}  // namespace deepnet
