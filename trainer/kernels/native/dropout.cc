#include "trainer/kernels/native/dropout.h"

#include <algorithm>
#include <cmath>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/native/check_elements.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {

float KeepScale(double rate) { return static_cast<float>(1.0 / (1.0 - rate)); }

DropoutStream MakeDropoutStream(const DropoutSite& key) {
  DEEPNET_CHECK(key.rate >= 0.0 && key.rate < 1.0) << "dropout rate " << key.rate;
  DEEPNET_CHECK(key.step >= 0 && key.step < (int64_t{1} << 36)) << "step " << key.step;
  DEEPNET_CHECK(key.stack == 0 || key.stack == 1) << "stack " << key.stack;
  DEEPNET_CHECK(key.layer >= 0 && key.layer < (1 << 13)) << "layer " << key.layer;
  DEEPNET_CHECK(key.site >= 0 && key.site < (1 << 8)) << "site " << key.site;
  const PhiloxKey philox_key = MakeKey(key.seed, RandomPurpose::kDropout);
  const uint64_t step = static_cast<uint64_t>(key.step);
  // A rate that would round to 65536 still keeps one value in 65536.
  const long threshold = std::min(std::lround(key.rate * 65536.0), 65535L);
  return {
      .key0 = philox_key.k0,
      .key1 = philox_key.k1,
      .counter0 = static_cast<uint32_t>(step),
      .counter2 = static_cast<uint32_t>(key.site) << 20 | static_cast<uint32_t>(step >> 32) << 28,
      .counter3 = static_cast<uint32_t>(key.layer) << 18 | static_cast<uint32_t>(key.stack) << 31,
      .threshold = static_cast<uint32_t>(threshold),
      .scale = KeepScale(key.rate)};
}

void DropoutForward(Cpu& cpu, const DropoutSite& key, const PackedRows& ids, Matrix x,
                    uint8_t* mask) {
  DEEPNET_CHECK_LE(x.cols, kMaxDropoutFeatures);
  CheckElements(x);
  const DropoutStream stream = MakeDropoutStream(key);
  if (!stream.active()) return;
  const int64_t num_blocks = MaskBytes(x.cols);
  ForBlocks(cpu.pool, x.rows, kRowsPerBlock, [&](int64_t begin, int64_t end, int) {
    cpu.kernels.keep_bits(stream, ids.pairs + begin, ids.positions + begin, end - begin, 0,
                          num_blocks, mask + begin * num_blocks, num_blocks);
    cpu.kernels.apply_mask(x, mask, stream.scale, begin, end);
  });
}

void DropoutBackward(Cpu& cpu, double rate, const uint8_t* mask, Matrix dx) {
  CheckElements(dx);
  if (rate == 0.0) return;
  RunBlocks(cpu, dx.rows, kRowsPerBlock, cpu.kernels.apply_mask, dx, mask, KeepScale(rate));
}

}  // namespace deepnet::native
