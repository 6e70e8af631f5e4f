#include "trainer/stage_part.h"

#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"

namespace deepnet {

StagePart::InFlight& StagePart::Claim(int microbatch, ChunkPools& pools,
                                      const ChunkWorkspace& work) {
  for (InFlight& slot : in_flight) {
    if (slot.microbatch >= 0) continue;
    slot.microbatch = microbatch;
    chunk->TakeLayers(pools, work, slot.kept);
    return slot;
  }
  InFlight slot{microbatch, chunk->MakeKeptFrom(pools, work), {}, {}};
  return in_flight.emplace_back(std::move(slot));
}

StagePart::InFlight& StagePart::Find(int microbatch) {
  for (InFlight& slot : in_flight) {
    if (slot.microbatch == microbatch) return slot;
  }
  DEEPNET_CHECK(false) << "chunk " << number << ": microbatch " << microbatch
                       << " has no forward pass";
  return in_flight.front();
}

void StagePart::Free(InFlight& slot, ChunkPools& pools) {
  chunk->GiveLayers(pools, slot.kept);
  slot.memory_RD = slot.dhidden_RD = at::Tensor();
  slot.microbatch = -1;
}

void StagePart::Clear(ChunkPools& pools) {
  last_backward = -1;
  deferred.clear();
  early.clear();
  for (InFlight& slot : in_flight) {
    if (slot.microbatch >= 0) Free(slot, pools);
  }
}

std::vector<StagePart> MakeStageParts(const Transformer& model, const std::vector<int>& numbers,
                                      int num_chunks, const CutBuffers& cuts) {
  DEEPNET_CHECK_EQ(numbers.size(), model.chunks().size());
  const int count = static_cast<int>(numbers.size());
  std::vector<StagePart> parts(numbers.size());
  bool read_behind = false;  // whether a later chunk of the rank reads the memory
  for (int i = count - 1; i >= 0; --i) {
    StagePart& part = parts[i];
    part.chunk = &model.chunks()[i];
    part.number = numbers[i];
    part.sent = part.chunk->outputs();
    const bool here = i + 1 < count && numbers[i + 1] == part.number + 1;
    if (!here && part.number + 1 < num_chunks) {
      part.sent = cuts.Restrict({CutBuffers::Way::kForward, part.number + 1, 0}, part.sent);
    }
    part.keeps_memory =
        part.chunk->reads_memory() ||
        (read_behind && (part.chunk->inputs().memory || part.chunk->ends_encoder()));
    read_behind |= part.chunk->inputs().memory;
  }
  return parts;
}

}  // namespace deepnet
