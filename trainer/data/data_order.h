// Decides which pairs a step trains on: a pure function of seed, step, DataSpec and the corpus's
// statistics.
//
// Steps come in windows. In a window each direction gives the next few pairs of its own shuffled
// epoch; they are packed together into all the window's microbatches, whose random order decides
// which step owns which. The design, with the figures behind the constants: docs/design/data.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/philox.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "trainer/data/batcher.h"
#include "trainer/data/pair_index.h"
#include "trainer/data/sampling.h"

namespace deepnet {

// Fills in every default of `spec`, with max_source_tokens such that both sides fill evenly by the
// statistics of `index`; for a model of one stack it stays 0. `spec` is valid (launch/validate.h):
// max_target_tokens hold the longest sentence, temperatures are 1 or more. Fails naming what the
// corpus makes impossible: an unknown direction, NO_TAGS, no pairs at all.
absl::Status ResolveDataSpec(const PairIndex& index, DataSpec* spec,
                             Architecture architecture = ENCODER_DECODER);

// Returns whether data.directions of `spec` names the direction, or nothing.
bool IsSelected(const Direction& direction, const DataSpec& spec);

// Returns the names of directions that `spec`, resolved, selects and that give nothing: each of
// their pairs has a side above max_sentence_tokens.
std::vector<std::string> DirectionsOfLongPairs(const PairIndex& index, const DataSpec& spec);

// Returns the positions that a pair of so many pieces takes (trainer/data/encoded_pair.h).
PairSize SizeOf(const PairLengths& pieces, TagStyle tags,
                Architecture architecture = ENCODER_DECODER);

// A pair of a window.
struct PairRef {
  int32_t direction = 0;  // index into PairIndex::directions()
  int64_t pair = 0;       // index into the direction
  PairSize size;          // positions, with room for another segmentation (subword_sampler.h)
  int64_t draw = 0;       // number in the direction's sequence of epochs

  friend bool operator==(const PairRef&, const PairRef&) = default;
};

struct WindowShape {
  int64_t steps = 0;
  int64_t pairs = 0;  // drawn, up to rounding
};

// The directions in use: those that a spec selects and that have pairs.
struct SelectedDirections {
  std::vector<int> indices;  // into PairIndex::directions()
  std::vector<int64_t> num_pairs;
  std::vector<double> factors;  // of their shares: data.weights
};

// Immutable; safe from several threads.
class DataOrder {
 public:
  // `spec` is resolved; `index` outlives the order.
  static absl::StatusOr<DataOrder> Make(const DataSpec& spec, uint64_t seed, const PairIndex* index,
                                        Architecture architecture = ENCODER_DECODER);

  // The pairs of a window's microbatches. Step s of the window owns microbatches
  // [s * global_microbatches, (s + 1) * global_microbatches).
  using Window = std::vector<std::vector<PairRef>>;

  // Takes O(pairs of a window) time and memory.
  Window MakeWindow(int64_t window) const;

  // Returns the positions that a window keeps for a pair of so many pieces.
  PairSize Reserved(const PairLengths& lengths) const;

  int64_t steps_per_window() const { return window_.steps; }
  int64_t pairs_per_window() const { return window_.pairs; }
  // The steps that draw as many pairs as the directions in use have together.
  double steps_per_epoch() const;
  int64_t global_microbatches() const { return spec_.global_microbatches(); }
  const Capacity& capacity() const { return capacity_; }
  const DataSpec& spec() const { return spec_; }
  Architecture architecture() const { return architecture_; }

  // Returns how many pairs `direction` has given before `window`; pair number n of a direction
  // belongs to epoch n / num_pairs.
  int64_t NumDrawn(int direction, int64_t window) const;

 private:
  DataOrder(const DataSpec& spec, uint64_t seed, const PairIndex* index, Architecture architecture,
            const WindowShape& window);

  std::vector<PairRef> Draw(int64_t window) const;

  const PairIndex* index_;
  DataSpec spec_;
  PhiloxKey key_;
  Architecture architecture_;
  int32_t subword_room_;  // pieces a side
  Capacity capacity_;
  WindowShape window_;
  SelectedDirections selected_;
  SamplingPlan sampling_;  // over selected_
};

}  // namespace deepnet
