// A RankSnapshot copies what one rank writes into a checkpoint; LoadRankState reads it back.
#pragma once

#include <cstdint>
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
#include "trainer/kernels/side_copies.h"
#include "trainer/rank_context.h"

namespace deepnet {

// The tensors that one rank writes into a checkpoint: weights and both moments of the elements that
// it updates, 12 bytes each, and with optim.ema_decay the weights' average, 4 more. The ranks of a
// job together make a whole checkpoint.
class RankSnapshot {
 public:
  // `context` outlives this. With `copies`, memory of the host is reserved once: here, or on a
  // device by Pin.
  RankSnapshot(const RankContext& context, bool copies);

  // Takes the memory of copies from a device, which is pinned; `threads` threads make its pages.
  // Call it before the first step: it may wait for the device. Fails with kDoesNotFit.
  absl::Status Pin(int threads);

  // Touches the pages of other memory, a second a GB or longer, before the first Copy does. May run
  // in any thread until the first Look.
  void TouchMemory();

  // Takes views of weights and moments as they are now. With copies, a device begins to copy what
  // the rank writes, and no more, beside its work; without, all that the rank holds is on the host
  // when this returns.
  void Look();
  // Lets updates that are put on the device's stream from now on wait there for what Look began.
  void HoldUpdate();
  // Copies what Look saw on the host, if this has copies; waits for a device's copy. Nobody may
  // change weights and moments on a host until then. May run in any thread. Fails if the device
  // does.
  absl::Status Copy();

  // The tensors of the last Look or Copy.
  std::span<const NamedTensor> tensors() const { return tensors_; }
  // The bytes of those tensors.
  int64_t bytes() const;
  bool on_device() const;

 private:
  void BeginCopy();

  const RankContext& context_;
  std::shared_ptr<float[]> memory_;   // of all copies; null without copies
  std::vector<at::Tensor> held_;      // keeps alive what views look at
  std::unique_ptr<SideCopies> side_;  // to memory_; null without copies or without a device
  std::vector<NamedTensor> tensors_;
};

// Loads the weights and moments that this rank holds, whatever the layout of the ranks that saved
// them.
absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankContext& context);

// Returns WeightsHash of the whole model, the same for every layout. Collective over context.world.
absl::StatusOr<std::string> HashRankWeights(const RankContext& context, const Inventory& whole);

}  // namespace deepnet
