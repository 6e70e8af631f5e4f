// How long the batch of a random step takes, and how full microbatches are.
//
//   data_order_bench [pairs, default 100000000] [seconds allowed, default 1]
//
// A synthetic index of so many pairs over 16 language pairs, sizes spread by powers of two, both
// directions, T = 5. Printed: set-up, the slowest of 20 steps at random places of a long run, each
// found by a DataOrder that has seen nothing before, and the share of real positions. Exits with 1
// where a step takes longer than allowed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "tests/trainer/data/synthetic_index.h"
#include "trainer/data/data_order.h"

namespace deepnet {
namespace {

std::vector<int64_t> SpreadCounts(int64_t num_pairs) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 16; ++i) counts.push_back(std::max<int64_t>(1, num_pairs >> (i + 1)));
  return counts;
}

int Run(int64_t num_pairs, double allowed) {
  const testing::SyntheticIndex index(SpreadCounts(num_pairs));
  DataSpec spec;
  spec.mutable_microbatch()->set_target_tokens(4096);
  spec.set_microbatches_per_step(8);
  spec.add_temperature()->set_temperature(5.0);
  double slowest = 0.0, setup = 0.0, source = 0.0, target = 0.0, count = 0.0;
  Capacity capacity;
  for (int64_t i = 0; i < 20; ++i) {
    const double begin = SecondsNow();
    const absl::StatusOr<DataOrder> order = DataOrder::Make(spec, 1, &index);
    DEEPNET_CHECK(order.ok()) << order.status();
    const double ready = SecondsNow();
    const int64_t step = i * i * 7'919'111;
    const DataOrder::Window window = order->MakeWindow(step / order->steps_per_window());
    const double end = SecondsNow();
    setup = std::max(setup, ready - begin);
    slowest = std::max(slowest, end - begin);
    capacity = order->capacity();
    for (const auto& microbatch : window.microbatches) {
      count += 1;
      for (const PairRef& pair : microbatch) {
        source += pair.size.source;
        target += pair.size.target;
      }
    }
  }
  std::printf("pairs %lld  set-up %.4f s  slowest step %.4f s  fill source %.4f target %.4f\n",
              static_cast<long long>(num_pairs), setup, slowest, source / count / capacity.source,
              target / count / capacity.target);
  return slowest <= allowed ? 0 : 1;
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  const int64_t num_pairs = argc > 1 ? std::atoll(argv[1]) : 100'000'000;
  const double allowed = argc > 2 ? std::atof(argv[2]) : 1.0;
  return deepnet::Run(num_pairs, allowed);
}
