// Training batches of a prepared corpus, and a thread that prefetches them.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/batcher.h"
#include "trainer/data/corpus.h"
#include "trainer/data/data_order.h"
#include "trainer/data/encoded_pair.h"
#include "trainer/data/microbatch.h"
#include "trainer/data/subword_sampler.h"

namespace deepnet {

// Returns the positions that none of `pairs` needs.
PairSize SpareOf(const Capacity& capacity, std::span<const PairRef> pairs);

// Keeps the window of the last step, so steps in order cost their own pairs only.
class CorpusBatchSource : public BatchSource {
 public:
  // `spec` is resolved (ResolveDataSpec); `corpus` outlives the source. `architecture`
  // decides what is read of a pair.
  static absl::StatusOr<std::unique_ptr<CorpusBatchSource>> Make(
      const DataSpec& spec, uint64_t seed, const Corpus* corpus,
      Architecture architecture = ENCODER_DECODER);

  absl::StatusOr<StepBatch> ForStep(int64_t step) override;

  const DataOrder& order() const { return order_; }

 private:
  CorpusBatchSource(DataOrder order, uint64_t seed, const Corpus* corpus,
                    std::optional<SubwordSampler> subwords);
  absl::StatusOr<Microbatch> Pack(std::span<const PairRef> pairs, uint32_t ordinal,
                                  int64_t step) const;
  EncodedPair Encode(const PairRef& pair, int64_t step, PairSize* spare) const;
  std::vector<int32_t> Pieces(const PairRef& pair, int side, std::vector<int32_t> pieces,
                              PairSize* spare) const;

  const DataOrder order_;
  std::vector<DirectionTags> tags_;  // by direction
  const Corpus* const corpus_;
  const uint64_t seed_;
  const MaskingRule masking_;                     // ENCODER_ONLY
  const std::optional<SubwordSampler> subwords_;  // data.subword_alpha above 0
  int64_t window_number_ = -1;                    // of window_
  DataOrder::Window window_;
};

// Returns another source's batches and prepares the following step's in a thread of its own.
// ForStep is called from one thread at a time.
class Prefetcher : public BatchSource {
 public:
  explicit Prefetcher(std::unique_ptr<BatchSource> source) : source_(std::move(source)) {}
  ~Prefetcher() override;

  absl::StatusOr<StepBatch> ForStep(int64_t step) override;

 private:
  const std::unique_ptr<BatchSource> source_;  // used by the thread while next_ is valid
  std::future<absl::StatusOr<StepBatch>> next_;
  int64_t next_step_ = -1;  // of next_
};

}  // namespace deepnet
