// One of the chunks of a rank, with the microbatches that are in flight in it.
#pragma once

#include <map>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/cut_buffers.h"
#include "trainer/model/transformer.h"

namespace deepnet {

struct StagePart {
  // What one microbatch keeps from its forward to its backward pass.
  struct InFlight {
    int microbatch = -1;    // -1: free
    Chunk::Kept kept;       // free: without its layers' part
    at::Tensor memory_RD;   // operand; where this chunk or a later one of the rank reads it
    at::Tensor dhidden_RD;  // stream; what the loss left
  };

  const Chunk* chunk = nullptr;
  int number = 0;   // along the chain
  CutTensors sent;  // forward, to the chunk behind
  bool keeps_memory = false;
  int last_backward = -1;                   // microbatch
  std::vector<InFlight> in_flight;          // grows to the most that a schedule keeps alive
  std::map<int, DeferredWeights> deferred;  // by microbatch: behind its BackwardInput
  std::set<int> early;                      // microbatches whose BackwardWeight is done already

  // A slot for `microbatch`, with buffers out of `pools` (Chunk::MakeKeptFrom).
  InFlight& Claim(int microbatch, ChunkPools& pools, const ChunkWorkspace& work);
  // That of `microbatch`. DEEPNET_CHECKs that it is in flight.
  InFlight& Find(int microbatch);
  void Free(InFlight& slot, ChunkPools& pools);
  // Drops what a step left behind that an error ended.
  void Clear(ChunkPools& pools);
};

// The chunks of `model`, whose numbers along a chain of `num_chunks` are `numbers`.
std::vector<StagePart> MakeStageParts(const Transformer& model, const std::vector<int>& numbers,
                                      int num_chunks, const CutBuffers& cuts);

}  // namespace deepnet
