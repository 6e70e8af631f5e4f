// Measures how soon a resumed run has its first batch, and how full microbatches are.
//
//   data_order_bench [pairs, default 100000000] [seconds allowed, default 1]
//
// A synthetic index of so many pairs over 16 language pairs, sizes spread by powers of two, both
// directions, T = 5. 20 times, at places from the start to many epochs later: from the bytes of a
// manifest, which says where the data order stands, to the step's microbatches, packed; each by a
// DataOrder that has seen nothing before. The pieces are made up, as many as the index says.
// Printed: the slowest, its parts, and the share of real positions. Exits with 1 where it takes
// longer than allowed.
//
//   data_order_bench corpus FOLDER ALPHA NBEST
//
// Pairs a second, and share of real positions, of 300 steps of the loader on a prepared corpus,
// with data.subword_alpha and data.subword_nbest.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "tests/trainer/data/synthetic_index.h"
#include "trainer/checkpoint/format.h"
#include "trainer/data/batcher.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"

namespace deepnet {
namespace {

constexpr int32_t kPiece = 10;  // every piece of a made-up sentence

std::vector<int64_t> SpreadCounts(int64_t num_pairs) {
  std::vector<int64_t> counts;
  for (int i = 0; i < 16; ++i) counts.push_back(std::max<int64_t>(1, num_pairs >> (i + 1)));
  return counts;
}

DataSpec Spec() {
  DataSpec spec;
  spec.mutable_microbatch()->set_max_target_tokens(4096);
  spec.set_global_microbatches(8);
  spec.add_temperature()->set_temperature(5.0);
  return spec;
}

// Returns the position that a checkpoint of `step` has.
std::string SavedAt(int64_t step) {
  Manifest manifest;
  manifest.set_format_version(kFormatVersion);
  manifest.set_block_bytes(kDefaultBlockBytes);
  manifest.set_step(step);
  manifest.mutable_data()->set_step(step);
  return SerializeManifest(manifest);
}

// Packs a step as CorpusBatchSource does, sentences aside.
StepBatch Pack(const DataOrder& order, int64_t step, const DataOrder::Window& window,
               const testing::SyntheticIndex& index) {
  StepBatch batch;
  uint32_t ordinal = 0;
  const int64_t begin = step % order.steps_per_window() * order.global_microbatches();
  for (int64_t m = begin; m < begin + order.global_microbatches(); ++m) {
    MicrobatchBuilder builder(order.capacity());
    for (const PairRef& pair : window[m]) {
      const PairLengths lengths = index.Lengths(pair.direction, pair.pair);
      const std::vector<int32_t> source(lengths.source, kPiece), target(lengths.target, kPiece);
      builder.Add(ordinal++, EncodePair({}, source, target));
    }
    batch.Add(std::move(builder).Build());
  }
  return batch;
}

struct Figures {
  double setup = 0.0, order = 0.0, first_batch = 0.0;  // seconds since the manifest was at hand
};

int Run(int64_t num_pairs, double allowed) {
  const testing::SyntheticIndex index(SpreadCounts(num_pairs));
  Figures slowest;
  double source = 0.0, target = 0.0, capacity_source = 0.0, capacity_target = 0.0;
  int64_t last_step = 0, drawn = 0;
  for (int64_t i = 0; i < 20; ++i) {
    const std::string saved = SavedAt(i * i * 7'919'111);
    Figures f;
    const double begin = SecondsNow();
    const absl::StatusOr<Manifest> manifest = ParseManifest(saved);
    DEEPNET_CHECK(manifest.ok()) << manifest.status();
    const absl::StatusOr<DataOrder> order = DataOrder::Make(Spec(), 1, &index);
    DEEPNET_CHECK(order.ok()) << order.status();
    f.setup = SecondsNow() - begin;
    last_step = manifest->data().step();
    const DataOrder::Window window = order->MakeWindow(last_step / order->steps_per_window());
    f.order = SecondsNow() - begin;
    const StepBatch batch = Pack(*order, last_step, window, index);
    f.first_batch = SecondsNow() - begin;
    if (f.first_batch > slowest.first_batch) slowest = f;
    drawn = 0;
    for (const auto& microbatch : window) drawn += std::ssize(microbatch);
    for (const Microbatch& microbatch : batch.microbatches) {
      source += static_cast<double>(microbatch.num_source_tokens);
      target += static_cast<double>(microbatch.num_target_tokens);
      capacity_source += order->capacity().source;
      capacity_target += order->capacity().target;
    }
  }
  std::printf(
      "pairs %lld  first batch %.4f s at the slowest of 20 places (set-up %.4f, order of %lld "
      "drawn pairs %.4f, packing %.4f), the last at step %lld  fill source %.4f target %.4f\n",
      static_cast<long long>(num_pairs), slowest.first_batch, slowest.setup,
      static_cast<long long>(drawn), slowest.order - slowest.setup,
      slowest.first_batch - slowest.order, static_cast<long long>(last_step),
      source / capacity_source, target / capacity_target);
  return slowest.first_batch <= allowed ? 0 : 1;
}

int RunCorpus(const std::string& folder, double alpha, int nbest) {
  const absl::StatusOr<Corpus> corpus = Corpus::Open(folder);
  DEEPNET_CHECK(corpus.ok()) << corpus.status();
  DataSpec spec;
  spec.set_max_sentence_tokens(120);
  spec.mutable_microbatch()->set_max_target_tokens(1000);
  spec.set_subword_alpha(alpha);
  spec.set_subword_nbest(nbest);
  DEEPNET_CHECK(ResolveDataSpec(*corpus, &spec).ok());
  const auto source = CorpusBatchSource::Make(spec, 1, &*corpus);
  DEEPNET_CHECK(source.ok()) << source.status();
  int64_t pairs = 0, tokens = 0, capacity = 0;
  double seconds = 0.0;
  for (int64_t step = 0; step < 301; ++step) {
    const double begin = SecondsNow();
    const absl::StatusOr<StepBatch> batch = (*source)->ForStep(step);
    DEEPNET_CHECK(batch.ok()) << batch.status();
    if (step == 0) continue;  // which makes the window
    seconds += SecondsNow() - begin;
    pairs += batch->microbatches[0].num_sentences;
    tokens += batch->num_source_tokens + batch->num_target_tokens;
    capacity += (*source)->order().capacity().source + (*source)->order().capacity().target;
  }
  std::printf("alpha %.2f nbest %d  %.0f pairs/s  fill %.4f\n", alpha, nbest,
              static_cast<double>(pairs) / seconds,
              static_cast<double>(tokens) / static_cast<double>(capacity));
  return 0;
}

}  // namespace
}  // namespace deepnet

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "corpus") {
    return deepnet::RunCorpus(argv[2], std::atof(argv[3]), std::atoi(argv[4]));
  }
  const int64_t num_pairs = argc > 1 ? std::atoll(argv[1]) : 100'000'000;
  const double allowed = argc > 2 ? std::atof(argv[2]) : 1.0;
  return deepnet::Run(num_pairs, allowed);
}
