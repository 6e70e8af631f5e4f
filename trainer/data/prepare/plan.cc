#include "trainer/data/prepare/plan.h"

#include <algorithm>
#include <vector>

#include "trainer/data/prepare/parts.h"

namespace deepnet {
namespace {

// Bytes of training text that one core gets done in a second of CPU time, measured on 131 MB of
// English with Spanish, French, Italian and Dutch: docs/benchmarks/prepare_2026-11-24.md.
constexpr double kScanRate = 44e6;
constexpr double kEncodeRate = 7.0e6;
constexpr double kAssembleRate = 160e6;

constexpr double kShardBytesPerTextByte = 0.58;  // vocabularies up to 65,536

}  // namespace

PreparePlan PlanPreparation(std::span<const int64_t> pair_bytes, int num_ranks,
                            int threads_per_rank) {
  const std::vector<int> owners = Deal(pair_bytes, num_ranks);
  std::vector<double> loads(static_cast<size_t>(num_ranks), 0.0);
  PreparePlan plan;
  for (size_t i = 0; i < pair_bytes.size(); ++i) {
    const auto bytes = static_cast<double>(pair_bytes[i]);
    loads[static_cast<size_t>(owners[i])] += bytes;
    plan.text_bytes += bytes;
  }
  const double most = *std::max_element(loads.begin(), loads.end());
  plan.shard_bytes = plan.text_bytes * kShardBytesPerTextByte;
  plan.scan_seconds = most / kScanRate;
  plan.encode_seconds = plan.text_bytes / (kEncodeRate * num_ranks * threads_per_rank);
  plan.assemble_seconds = most / kAssembleRate;
  return plan;
}

}  // namespace deepnet
