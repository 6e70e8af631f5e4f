// 500 + 500 layers of width 64 with FULL recomputation on 1, 2, 4 and 8 ranks: what each rank
// holds, beside its plan and beside its share of what one rank holds. Prints the table of
// docs/benchmarks/memory_2026-11-21.md.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/memory_rig.h"

namespace deepnet {
namespace {

using testing::MeasureRanks;
using testing::RankBytes;
using testing::ThousandLayers;

constexpr double kTolerance = 0.05;         // of planned bytes, and of a rank's share
constexpr double kBoundedTolerance = 0.02;  // peaks of steps of different length

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void Print(const RankBytes& bytes, int ranks, size_t rank, double share) {
  std::printf("| %d | %zu | %.1f | %.3f | %.1f | %.1f | %.1f | %.1f | %+.1f %% |\n", ranks, rank,
              MiB(bytes.state), share, MiB(bytes.planned.activations()),
              MiB(bytes.planned.activations() + bytes.planned.boundary() + bytes.planned.logits()),
              MiB(bytes.activations), MiB(bytes.measured), 100 * bytes.Difference());
}

TEST(Memory, OfAThousandLayersFallsWithTheNumberOfRanks) {
  std::printf(
      "| p | rank | state | x p / state at p = 1 | activations, simulated | with boundary "
      "and logits | measured | all, measured | against the plan |\n");
  int64_t alone = 0;
  for (const int p : {1, 2, 4, 8}) {
    const std::vector<RankBytes> ranks = MeasureRanks(ThousandLayers(p, 8));
    if (p == 1) alone = ranks[0].state;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const double share = static_cast<double>(ranks[r].state * p) / static_cast<double>(alone);
      Print(ranks[r], p, r, share);
      EXPECT_LE(std::abs(ranks[r].Difference()), kTolerance) << ranks[r].ToText();
      // The first rank and the last own the embedding.
      const bool owner = r == 0 || r + 1 == ranks.size();
      EXPECT_TRUE(owner || share <= 1 + kTolerance) << "rank " << r << " of " << p << ": " << share;
    }
  }
}

TEST(Memory, OfAThousandLayersDoesNotGrowWithTheStep) {
  const std::vector<RankBytes> few = MeasureRanks(ThousandLayers(4, 8)),
                               many = MeasureRanks(ThousandLayers(4, 64));
  for (size_t r = 0; r < few.size(); ++r) {
    const double ratio =
        static_cast<double>(many[r].measured) / static_cast<double>(few[r].measured);
    std::printf("rank %zu: 8 microbatches %.1f MiB, 64 microbatches %.1f MiB\n", r,
                MiB(few[r].measured), MiB(many[r].measured));
    EXPECT_NEAR(ratio, 1.0, kBoundedTolerance) << "rank " << r;
  }
}

}  // namespace
}  // namespace deepnet
