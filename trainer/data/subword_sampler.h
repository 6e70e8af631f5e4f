// Subword regularization (Kudo, 2018, arXiv:1804.10959): a sentence is cut anew each time it is
// drawn, into a segmentation x of the n best with probability proportional to P(x)^alpha. Which one
// is a function of (seed, direction, number of the draw) and of the room there is
// (docs/design/random.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/philox.h"
#include "proto/data.pb.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

// Returns the pieces that are reserved on each side of a pair beyond those of its best
// segmentation: what one of the n best has more on average, a third of log2 n rounded up.
int32_t SubwordRoom(const DataSpec& spec);

// Identifies one side of a draw.
struct SubwordKey {
  std::string_view direction;  // "de-en"
  int64_t draw = 0;            // number in the direction's sequence of epochs
  int side = 0;                // 0 source, 1 target
};

// Immutable; safe from several threads.
class SubwordSampler {
 public:
  // `spec` has a data.subword_alpha above 0; `vocabulary` outlives the sampler. Fails naming the
  // field where the tokenizer has no n best segmentations: only unigram models have.
  static absl::StatusOr<SubwordSampler> Make(const DataSpec& spec, uint64_t seed,
                                             const Vocabulary* vocabulary);

  // Returns the sentence of the pieces `stored` in at most `most` >= stored.size() pieces. Tags in
  // front stay. A sentence that cannot be read back from its pieces comes back as it is.
  std::vector<int32_t> Cut(std::span<const int32_t> stored, size_t most,
                           const SubwordKey& key) const;

 private:
  SubwordSampler(const DataSpec& spec, uint64_t seed, const Vocabulary* vocabulary)
      : alpha_(spec.subword_alpha()),
        nbest_(spec.subword_nbest()),
        key_(MakeKey(seed, RandomPurpose::kSubwords)),
        vocabulary_(vocabulary) {}

  double alpha_;
  int nbest_;
  PhiloxKey key_;
  const Vocabulary* vocabulary_;
};

}  // namespace deepnet
