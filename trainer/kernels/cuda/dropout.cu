// A thread draws the eight decisions of one block of random bits, stores their byte and applies it
// to its eight columns.
#include "parallel/base/check.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/row_chunks.h"

namespace deepnet::cuda {
namespace {

struct DrawMask {
  DropoutStream stream;
  const uint32_t* pairs;
  const uint32_t* positions;
  uint8_t* mask;
  int64_t mask_stride;
  MatrixView x;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int64_t block = c / kChunkColumns;
    const uint32_t keep =
        KeepByte(stream, pairs[row], positions[row], static_cast<uint32_t>(block));
    mask[row * mask_stride + block] = static_cast<uint8_t>(keep);
    Chunk values = LoadChunk(x, row, c, n);
    ApplyKeepByte(keep, stream.scale, values);
    StoreChunk(x, row, c, n, values);
  }
};

}  // namespace

void DropoutForward(GpuStream& gpu, DropoutSite key, const PackedRows& ids, native::Matrix x,
                    uint8_t* mask) {
  DEEPNET_CHECK_LE(x.cols, native::kMaxDropoutFeatures);
  const DropoutStream stream = DropoutStreamOf(gpu, key);
  if (!stream.active()) return;
  ForRowChunks(
      gpu, "DropoutForward", x.rows, x.cols,
      DrawMask{stream, ids.pairs, ids.positions, mask, native::MaskBytes(x.cols), ViewOf(x)});
}

void DropoutBackward(GpuStream& gpu, double rate, const uint8_t* mask, native::Matrix dx) {
  if (rate == 0.0) return;
  ForRowChunks(
      gpu, "DropoutBackward", dx.rows, dx.cols,
      ApplyMask{ViewOf(dx), ViewOf(dx), mask, native::MaskBytes(dx.cols), native::KeepScale(rate)});
}

}  // namespace deepnet::cuda
