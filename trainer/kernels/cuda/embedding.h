// Embeddings of trainer/kernels/native/embedding.h on a GPU: the same arguments, whose pointers are
// device memory. Ids and positions lie on the device, so that no call waits: that they are within
// their tables is checked where the batch is made and its rows are sorted (SortRows).
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/embedding.h"

namespace deepnet::cuda {

// One launch.
void EmbedForward(GpuStream& gpu, const native::EmbedArgs& args);

// The rows of a batch by index (native::SortRows), in device memory.
struct SortedRows {
  const int32_t* order = nullptr;    // rows, those of one index together and ascending
  const int32_t* starts = nullptr;   // [num_unique + 1] first place in `order` of each index
  const int32_t* indices = nullptr;  // [num_unique]
  int64_t num_unique = 0;
  int64_t longest = 0;  // rows of one index, at most
};

// More rows of an index than this are added in pieces of so many rows, from the first on, and then
// the pieces in order: a frequent token would keep a block at work when all others have ended.
inline constexpr int kEmbedPieceRows = 64;

// One launch, and one more where an index has more than a piece. `sorted` stands for
// args.rows.tokens, which are not read. The gradient of an index with one piece has the bits of the
// CPU.
void EmbedBackward(GpuStream& gpu, const native::EmbedGradArgs& args, const SortedRows& sorted);

}  // namespace deepnet::cuda
