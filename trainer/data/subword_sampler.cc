#include "trainer/data/subword_sampler.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/check.h"
#include "trainer/data/sampling.h"

namespace deepnet {
namespace {

// Returns the index of the segmentation that `bits` draw among those of at most `most` pieces, each
// with probability proportional to exp(alpha * score); -1: there is none. The same on every host.
int ChooseSegmentation(std::span<const Segmentation> segmentations, double alpha, size_t most,
                       uint32_t bits) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(segmentations.size()); ++i) {
    if (segmentations[i].ids.size() > most) continue;
    if (best < 0 || segmentations[i].score > segmentations[best].score) best = i;
  }
  if (best < 0) return best;
  std::vector<double> sums(segmentations.size());  // of the weights up to each
  double sum = 0.0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (segmentations[i].ids.size() <= most) {
      const double below = static_cast<double>(segmentations[i].score) -
                           static_cast<double>(segmentations[best].score);
      sum += PortableExp(alpha * below);
    }
    sums[i] = sum;
  }
  const double drawn = (bits + 0.5) * 0x1p-32 * sum;  // strictly between 0 and the sum
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), drawn);
  return static_cast<int>(chosen - sums.begin());
}

}  // namespace

int32_t SubwordRoom(const DataSpec& spec) {
  if (spec.subword_alpha() == 0) return 0;
  return (static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(spec.subword_nbest() - 1))) +
          2) /
         3;
}

absl::StatusOr<SubwordSampler> SubwordSampler::Make(const DataSpec& spec, uint64_t seed,
                                                    const Vocabulary* vocabulary) {
  if (vocabulary->NBest("a", 1).empty()) {
    return absl::InvalidArgumentError(
        "data.subword_alpha: the corpus's tokenizer is not a unigram model, so it has no n best "
        "segmentations (prepare.tokenizer.type: 'unigram' makes one)");
  }
  return SubwordSampler(spec, seed, vocabulary);
}

std::vector<int32_t> SubwordSampler::Cut(std::span<const int32_t> stored, size_t most,
                                         const SubwordKey& key) const {
  DEEPNET_CHECK(stored.size() <= most) << stored.size() << " pieces in " << most;
  if (std::ranges::find(stored, kUnk) != stored.end()) return {stored.begin(), stored.end()};
  const auto text_begin = std::find_if(stored.begin(), stored.end(),
                                       [&](int32_t id) { return id < vocabulary_->first_tag(); });
  std::vector<int32_t> pieces(stored.begin(), text_begin);
  const std::string text = vocabulary_->Decode(stored);
  const std::vector<Segmentation> segmentations = vocabulary_->NBest(text, nbest_);
  const uint64_t direction = HashName(key.direction);
  const PhiloxBlock bits =
      Philox(key_, {static_cast<uint32_t>(key.draw), static_cast<uint32_t>(key.draw >> 32),
                    static_cast<uint32_t>(direction), static_cast<uint32_t>(direction >> 32)});
  const int chosen =
      ChooseSegmentation(segmentations, alpha_, most - pieces.size(), bits[key.side]);
  if (chosen < 0 || vocabulary_->Decode(segmentations[chosen].ids) != text) {
    return {stored.begin(), stored.end()};
  }
  const std::vector<int32_t>& ids = segmentations[chosen].ids;
  pieces.insert(pieces.end(), ids.begin(), ids.end());
  return pieces;
}

}  // namespace deepnet
