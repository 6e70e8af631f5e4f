#include "trainer/data/batcher.h"

#include <algorithm>
#include <numeric>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

struct Load {
  int64_t source = 0;
  int64_t target = 0;
  int64_t sentences = 0;

  bool HasRoom(const PairSize& pair, const Capacity& capacity) const {
    return source + pair.source <= capacity.source && target + pair.target <= capacity.target &&
           sentences < capacity.sentences;
  }
  void Add(const PairSize& pair) {
    source += pair.source;
    target += pair.target;
    sentences += 1;
  }
};

// Order of placement: by the larger relative size, then by index.
std::vector<int> LongestFirst(std::span<const PairSize> pairs, const Capacity& capacity) {
  // Cross-multiplied, so that relative sizes compare as integers.
  const auto size = [&](int i) {
    return std::max(static_cast<int64_t>(pairs[i].source) * capacity.target,
                    static_cast<int64_t>(pairs[i].target) * std::max(1, capacity.source));
  };
  std::vector<int> order(pairs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size(a) > size(b); });
  return order;
}

// Returns the number of microbatches below which the pairs cannot fit, however they are packed.
int LeastMicrobatches(std::span<const PairSize> pairs, const Capacity& capacity) {
  Load all;
  for (const PairSize& pair : pairs) all.Add(pair);
  const auto rounded_up = [](int64_t load, int64_t room) {
    return room > 0 ? (load + room - 1) / room : 0;
  };
  return static_cast<int>(std::max({int64_t{1}, rounded_up(all.source, capacity.source),
                                    rounded_up(all.target, capacity.target),
                                    rounded_up(all.sentences, capacity.sentences)}));
}

// Closes a sentence of which the tokens were appended.
void EndSentence(uint32_t ordinal, PackedSide* side, std::vector<uint32_t>* pairs) {
  const auto end = static_cast<int32_t>(side->tokens.size());
  for (int32_t i = side->offsets.back(); i < end; ++i) {
    side->positions.push_back(static_cast<uint32_t>(i - side->offsets.back()));
  }
  side->offsets.push_back(end);
  pairs->resize(side->tokens.size(), ordinal);
}

void Pad(int32_t capacity, int32_t sentences, PackedSide* side) {
  side->tokens.resize(static_cast<size_t>(capacity), kPad);
  side->positions.resize(static_cast<size_t>(capacity), 0);
  side->offsets.resize(static_cast<size_t>(sentences) + 1, side->offsets.back());
}

}  // namespace

Packing PackBalanced(std::span<const PairSize> pairs, int num_microbatches,
                     const Capacity& capacity) {
  Packing packing;
  packing.microbatches.resize(num_microbatches);
  std::vector<Load> loads(num_microbatches);
  const double per_source = capacity.source > 0 ? 1.0 / capacity.source : 0.0;
  const double per_target = 1.0 / capacity.target;
  const double per_sentence = 1.0 / capacity.sentences;
  for (const int i : LongestFirst(pairs, capacity)) {
    int best = -1;
    double best_load = 0.0;
    for (int m = 0; m < num_microbatches; ++m) {
      const Load& load = loads[m];
      if (!load.HasRoom(pairs[i], capacity)) continue;
      const double after =
          std::max({static_cast<double>(load.source + pairs[i].source) * per_source,
                    static_cast<double>(load.target + pairs[i].target) * per_target,
                    static_cast<double>(load.sentences + 1) * per_sentence});
      if (best >= 0 && after >= best_load) continue;
      best = m;
      best_load = after;
    }
    if (best < 0) {
      packing.left.push_back(i);
      continue;
    }
    loads[best].Add(pairs[i]);
    packing.microbatches[best].push_back(i);
  }
  std::sort(packing.left.begin(), packing.left.end());
  return packing;
}

void PackFirstFit(std::span<const PairSize> sizes, std::span<const int> more,
                  const Capacity& capacity, Packing* packing) {
  std::vector<Load> loads(packing->microbatches.size());
  for (size_t m = 0; m < loads.size(); ++m) {
    for (const int i : packing->microbatches[m]) loads[m].Add(sizes[i]);
  }
  for (const int i : more) {
    const auto room = std::find_if(loads.begin(), loads.end(), [&](const Load& load) {
      return load.HasRoom(sizes[i], capacity);
    });
    if (room == loads.end()) continue;
    room->Add(sizes[i]);
    packing->microbatches[room - loads.begin()].push_back(i);
  }
}

MicrobatchBuilder::MicrobatchBuilder(const Capacity& capacity) : capacity_(capacity) {
  batch_.source.offsets.push_back(0);
  batch_.target.offsets.push_back(0);
}

bool MicrobatchBuilder::HasRoom(const EncodedPair& pair) const {
  return batch_.source.tokens.size() + pair.source.size() <=
             static_cast<size_t>(capacity_.source) &&
         batch_.target.tokens.size() + pair.labels.size() <=
             static_cast<size_t>(capacity_.target) &&
         batch_.num_sentences < capacity_.sentences;
}

void MicrobatchBuilder::Add(uint32_t ordinal, const EncodedPair& pair) {
  DEEPNET_CHECK(HasRoom(pair)) << "pair " << ordinal << " of " << pair.source.size() << " + "
                               << pair.labels.size() << " positions";
  PackedSide& source = batch_.source;
  source.tokens.insert(source.tokens.end(), pair.source.begin(), pair.source.end());
  EndSentence(ordinal, &source, &batch_.source_pairs);

  PackedSide& target = batch_.target;
  if (pair.input.empty()) {
    target.tokens.push_back(kEos);
    target.tokens.insert(target.tokens.end(), pair.labels.begin(), pair.labels.end() - 1);
  } else {
    DEEPNET_CHECK_EQ(pair.input.size(), pair.labels.size());
    target.tokens.insert(target.tokens.end(), pair.input.begin(), pair.input.end());
  }
  EndSentence(ordinal, &target, &batch_.target_pairs);
  batch_.labels.insert(batch_.labels.end(), pair.labels.begin(), pair.labels.end());
  ++batch_.num_sentences;
}

Microbatch MicrobatchBuilder::Build() && {
  batch_.num_source_tokens = static_cast<int64_t>(batch_.source.tokens.size());
  batch_.num_target_tokens = std::count_if(batch_.labels.begin(), batch_.labels.end(),
                                           [](int32_t label) { return label >= 0; });
  Pad(capacity_.source, capacity_.sentences, &batch_.source);
  Pad(capacity_.target, capacity_.sentences, &batch_.target);
  batch_.labels.resize(static_cast<size_t>(capacity_.target), -1);
  batch_.source_pairs.resize(static_cast<size_t>(capacity_.source), 0);
  batch_.target_pairs.resize(static_cast<size_t>(capacity_.target), 0);
  return std::move(batch_);
}

std::vector<Microbatch> MakeBenchMicrobatches(std::span<const std::pair<int, int>> lengths,
                                              const Capacity& capacity, int32_t vocabulary_size,
                                              uint64_t seed) {
  std::vector<PairSize> sizes;
  for (const auto& [source, target] : lengths) sizes.push_back({source, target});
  // Fewer cannot hold them: to try from 1 on would take the square of the microbatches.
  Packing packing;
  for (int number = LeastMicrobatches(sizes, capacity);; ++number) {
    packing = PackBalanced(sizes, number, capacity);
    if (packing.left.empty()) break;
  }

  const PhiloxKey key = MakeKey(seed, RandomPurpose::kDataOrder);
  const auto num_pieces = static_cast<uint32_t>(vocabulary_size - kFirstPiece);
  const auto sentence = [&](uint32_t ordinal, uint32_t side, int length) {
    std::vector<int32_t> ids;
    for (int i = 0; i + 1 < length; ++i) {
      const uint32_t bits = Philox(key, {static_cast<uint32_t>(i), ordinal, side, 0})[0];
      ids.push_back(kFirstPiece + static_cast<int32_t>(bits % num_pieces));
    }
    ids.push_back(kEos);
    return ids;
  };
  std::vector<Microbatch> batches;
  uint32_t ordinal = 0;
  for (const std::vector<int>& members : packing.microbatches) {
    MicrobatchBuilder builder(capacity);
    for (const int i : members) {
      builder.Add(ordinal,
                  {sentence(ordinal, 0, sizes[i].source), sentence(ordinal, 1, sizes[i].target)});
      ++ordinal;
    }
    batches.push_back(std::move(builder).Build());
  }
  return batches;
}

}  // namespace deepnet
