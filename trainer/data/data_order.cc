// Window w takes from direction i the numbers [NumDrawn(i, w), NumDrawn(i, w + 1)) of its endless
// sequence of shuffled epochs. How many pairs a window draws is fixed by the corpus's moments: mean
// + kSigmas deviations of their sizes fill kUsable of the window's capacity. Rare windows that
// still overflow hand their last pairs to the next window's free space; which these are follows
// from the overflowing window alone.
#include "trainer/data/data_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/subword_sampler.h"

namespace deepnet {
namespace {

// The least number of pairs in a window, so that its sums are near their means.
constexpr double kMinWindowPairs = 8192;
constexpr int64_t kMaxStepsPerWindow = 1 << 14;
constexpr double kSigmas = 3.5;
constexpr double kUsable = 0.99;
constexpr int32_t kDefaultMaxTokens = 250;

// Holds mean and variance of the positions that one draw adds to a window, on both sides; a skipped
// pair adds 0. The variances are within directions, since each has a fixed number of draws.
struct DrawMoments {
  MeanAndVariance source, target, sentences;
};

void AddMoments(double share, double kept, MeanAndVariance of_kept, MeanAndVariance* sum) {
  const double mean = of_kept.mean, mean_of_draw = kept * mean;
  sum->mean += share * mean_of_draw;
  sum->variance += share * (kept * (of_kept.variance + mean * mean) - mean_of_draw * mean_of_draw);
}

// Returns the draws that fill `capacity`: the largest n with n mean + kSigmas sqrt(n variance) <=
// kUsable capacity.
double DrawsThatFit(const MeanAndVariance& moments, double capacity) {
  if (moments.mean <= 0.0) return std::numeric_limits<double>::infinity();
  const double spread = kSigmas * std::sqrt(moments.variance);
  const double root =
      (std::sqrt(spread * spread + 4.0 * moments.mean * kUsable * capacity) - spread) /
      (2.0 * moments.mean);
  return root * root;
}

Capacity CapacityOf(const MicrobatchSpec& microbatch) {
  return {microbatch.max_source_tokens(), microbatch.max_target_tokens(),
          microbatch.max_sentences()};
}

SelectedDirections Select(const PairIndex& index, const DataSpec& spec) {
  SelectedDirections selected;
  for (int i = 0; i < static_cast<int>(index.directions().size()); ++i) {
    const Direction& direction = index.directions()[i];
    if (!IsSelected(direction, spec) || direction.num_pairs == 0) continue;
    selected.indices.push_back(i);
    selected.num_pairs.push_back(direction.num_pairs);
    selected.factors.push_back(1.0);
    for (const DirectionWeight& weight : spec.weights()) {
      if (direction.Matches(weight.direction())) selected.factors.back() = weight.weight();
    }
  }
  return selected;
}

std::vector<SamplingPhase> PhasesOf(const DataSpec& spec, int64_t steps_per_window) {
  std::vector<SamplingPhase> phases;
  for (const TemperaturePoint& point : spec.temperature()) {
    const int64_t window = (point.from_step() + steps_per_window - 1) / steps_per_window;
    if (!phases.empty() && phases.back().first_window == window) phases.pop_back();
    phases.push_back({window, point.temperature()});
  }
  if (phases.empty()) phases.push_back({0, 1.0});
  return phases;
}

// Returns the moments of a draw at each temperature of the run.
std::vector<DrawMoments> MomentsByPhase(const PairIndex& index, const DataSpec& spec,
                                        Architecture architecture) {
  const SelectedDirections selected = Select(index, spec);
  const int32_t room = SubwordRoom(spec);
  const PairSize extra = SizeOf({room, room}, spec.tags(), architecture);
  const std::vector<SamplingPhase> phases = PhasesOf(spec, /*steps_per_window=*/1);
  const SamplingPlan plan(selected.num_pairs, phases, 1, selected.factors);
  std::vector<DrawMoments> moments(phases.size());
  for (int k = 0; k < static_cast<int>(phases.size()); ++k) {
    for (int i = 0; i < static_cast<int>(selected.indices.size()); ++i) {
      LengthMoments lengths = index.Moments(selected.indices[i], spec.max_sentence_tokens());
      const double share = plan.Share(i, k);
      const double kept =
          static_cast<double>(lengths.num_pairs) / static_cast<double>(selected.num_pairs[i]);
      MeanAndVariance& labelled = architecture == ENCODER_ONLY ? lengths.source : lengths.target;
      labelled.mean += extra.target;
      AddMoments(share, kept, labelled, &moments[k].target);
      if (architecture == ENCODER_DECODER) {
        lengths.source.mean += extra.source;
        AddMoments(share, kept, lengths.source, &moments[k].source);
      }
      AddMoments(share, kept, {1.0, 0.0}, &moments[k].sentences);
    }
  }
  return moments;
}

// Returns steps and draws of a window. With capacity.source == 0 the source is unlimited.
WindowShape ShapeOfWindow(std::span<const DrawMoments> phases, const Capacity& capacity,
                          int64_t global_microbatches) {
  const auto draws_of = [&](double microbatches) {
    double draws = std::numeric_limits<double>::infinity();
    for (const DrawMoments& m : phases) {
      if (capacity.source > 0) {
        draws = std::min(draws, DrawsThatFit(m.source, capacity.source * microbatches));
      }
      draws = std::min(draws, DrawsThatFit(m.target, capacity.target * microbatches));
      draws = std::min(draws, DrawsThatFit(m.sentences, capacity.sentences * microbatches));
    }
    return draws;
  };
  WindowShape shape;
  shape.steps = 1;
  while (shape.steps < kMaxStepsPerWindow &&
         draws_of(static_cast<double>(shape.steps * global_microbatches)) < kMinWindowPairs) {
    shape.steps *= 2;
  }
  shape.pairs = std::max<int64_t>(
      1, static_cast<int64_t>(draws_of(static_cast<double>(shape.steps * global_microbatches))));
  return shape;
}

// Returns the source capacity with which both sides of a window fill alike.
int32_t EvenSourceCapacity(std::span<const DrawMoments> phases, const Capacity& capacity,
                           int64_t global_microbatches) {
  const WindowShape shape = ShapeOfWindow(phases, capacity, global_microbatches);
  const auto draws = static_cast<double>(shape.pairs);
  double needed = 0.0;
  for (const DrawMoments& m : phases) {
    needed =
        std::max(needed, draws * m.source.mean + kSigmas * std::sqrt(draws * m.source.variance));
  }
  const double microbatches = static_cast<double>(shape.steps * global_microbatches);
  return static_cast<int32_t>(std::ceil(needed / kUsable / microbatches / 8.0)) * 8;
}

absl::Status CheckKnown(const PairIndex& index, const std::string& field,
                        const std::string& pattern) {
  const std::vector<Direction>& all = index.directions();
  const bool known = std::ranges::any_of(
      all, [&](const Direction& d) { return d.Matches(pattern) && d.num_pairs > 0; });
  if (known) return absl::OkStatus();
  constexpr size_t kMaxNames = 40;
  std::string names;
  for (size_t i = 0; i < std::min(all.size(), kMaxNames); ++i) {
    absl::StrAppend(&names, " ", all[i].Name());
  }
  if (all.size() > kMaxNames) {
    absl::StrAppend(&names, " and ", all.size() - kMaxNames, " more directions");
  }
  return InvalidArgument(field, ": no training pairs of \"", pattern, "\"; the corpus has", names);
}

absl::Status CheckDirections(const PairIndex& index, const DataSpec& spec,
                             Architecture architecture) {
  for (const std::string& pattern : spec.directions()) {
    RETURN_IF_ERROR(CheckKnown(index, "data.directions", pattern));
  }
  for (const DirectionWeight& weight : spec.weights()) {
    RETURN_IF_ERROR(CheckKnown(index, "data.weights", weight.direction()));
  }
  const std::vector<int> selected = Select(index, spec).indices;
  if (selected.empty()) {
    return absl::InvalidArgumentError("data.folder: the corpus has no training pairs");
  }
  if (spec.tags() != NO_TAGS || architecture == ENCODER_ONLY) return absl::OkStatus();
  const std::string& target = index.directions()[selected[0]].target;
  for (const int direction : selected) {
    const std::string& other = index.directions()[direction].target;
    if (other == target) continue;
    return InvalidArgument("data.tags: NO_TAGS, but the directions are into ", target, " and ",
                           other, ": nothing would tell the model which");
  }
  return absl::OkStatus();
}

std::vector<PairSize> Sizes(std::span<const PairRef> pairs) {
  std::vector<PairSize> sizes;
  for (const PairRef& pair : pairs) sizes.push_back(pair.size);
  return sizes;
}

}  // namespace

bool IsSelected(const Direction& direction, const DataSpec& spec) {
  return spec.directions().empty() ||
         std::ranges::any_of(spec.directions(), [&](const std::string& pattern) {
           return direction.Matches(pattern);
         });
}

PairSize SizeOf(const PairLengths& pieces, TagStyle tags, Architecture architecture) {
  const PairSize both = {pieces.source + (tags == NO_TAGS ? 1 : 2),
                         pieces.target + (tags == M2M ? 2 : 1)};
  if (architecture == ENCODER_DECODER) return both;
  return {0, architecture == ENCODER_ONLY ? both.source : both.target};
}

absl::Status ResolveDataSpec(const PairIndex& index, DataSpec* spec, Architecture architecture) {
  RETURN_IF_ERROR(CheckDirections(index, *spec, architecture));
  if (spec->max_sentence_tokens() == 0) spec->set_max_sentence_tokens(kDefaultMaxTokens);
  if (spec->global_microbatches() == 0) spec->set_global_microbatches(1);
  MicrobatchSpec& microbatch = *spec->mutable_microbatch();
  if (microbatch.max_sentences() == 0) {
    microbatch.set_max_sentences(std::max(1, microbatch.max_target_tokens() / 4));
  }
  const PairSize longest = SizeOf({spec->max_sentence_tokens(), spec->max_sentence_tokens()},
                                  spec->tags(), architecture);
  if (microbatch.max_source_tokens() == 0 && longest.source > 0) {
    const Capacity capacity = {0, microbatch.max_target_tokens(), microbatch.max_sentences()};
    const std::vector<DrawMoments> phases = MomentsByPhase(index, *spec, architecture);
    microbatch.set_max_source_tokens(std::max(
        longest.source, EvenSourceCapacity(phases, capacity, spec->global_microbatches())));
  }
  return absl::OkStatus();
}

std::vector<std::string> DirectionsOfLongPairs(const PairIndex& index, const DataSpec& spec) {
  std::vector<std::string> names;
  for (const int i : Select(index, spec).indices) {
    if (index.Moments(i, spec.max_sentence_tokens()).num_pairs > 0) continue;
    names.push_back(index.directions()[i].Name());
  }
  return names;
}

absl::StatusOr<DataOrder> DataOrder::Make(const DataSpec& spec, uint64_t seed,
                                          const PairIndex* index, Architecture architecture) {
  DataSpec resolved = spec;
  RETURN_IF_ERROR(ResolveDataSpec(*index, &resolved, architecture));
  const std::vector<DrawMoments> phases = MomentsByPhase(*index, resolved, architecture);
  if (std::ranges::all_of(phases, [](const auto& m) { return m.sentences.mean <= 0.0; })) {
    return InvalidArgument("data.max_sentence_tokens: every pair has a side of more than ",
                           resolved.max_sentence_tokens(), " pieces");
  }
  return DataOrder(
      resolved, seed, index, architecture,
      ShapeOfWindow(phases, CapacityOf(resolved.microbatch()), resolved.global_microbatches()));
}

DataOrder::DataOrder(const DataSpec& spec, uint64_t seed, const PairIndex* index,
                     Architecture architecture, const WindowShape& window)
    : index_(index),
      spec_(spec),
      key_(MakeKey(seed, RandomPurpose::kDataOrder)),
      architecture_(architecture),
      subword_room_(SubwordRoom(spec)),
      capacity_(CapacityOf(spec.microbatch())),
      window_(window),
      selected_(Select(*index, spec)),
      sampling_(selected_.num_pairs, PhasesOf(spec, window.steps), window.pairs,
                selected_.factors) {}

double DataOrder::steps_per_epoch() const {
  double pairs = 0.0;
  for (const int64_t count : selected_.num_pairs) pairs += static_cast<double>(count);
  return pairs / static_cast<double>(window_.pairs) * static_cast<double>(window_.steps);
}

int64_t DataOrder::NumDrawn(int direction, int64_t window) const {
  const auto found = std::ranges::find(selected_.indices, direction);
  if (found == selected_.indices.end()) return 0;
  return sampling_.NumDrawn(static_cast<int>(found - selected_.indices.begin()), window);
}

PairSize DataOrder::Reserved(const PairLengths& lengths) const {
  return SizeOf({std::min(lengths.source + subword_room_, spec_.max_sentence_tokens()),
                 std::min(lengths.target + subword_room_, spec_.max_sentence_tokens())},
                spec_.tags(), architecture_);
}

// Returns the pairs of a window but for those with a side of more than max_tokens pieces.
std::vector<PairRef> DataOrder::Draw(int64_t window) const {
  std::vector<PairRef> pairs;
  pairs.reserve(static_cast<size_t>(window_.pairs) + selected_.indices.size());
  for (int i = 0; i < static_cast<int>(selected_.indices.size()); ++i) {
    const int direction = selected_.indices[i];
    const Direction& facts = index_->directions()[direction];
    PermutationKey key = {key_, HashName(facts.Name()), 0};
    const int64_t end = sampling_.NumDrawn(i, window + 1);
    for (int64_t n = sampling_.NumDrawn(i, window); n < end; ++n) {
      key.epoch = static_cast<uint32_t>(n / facts.num_pairs);
      const int64_t pair = Permute(key, facts.num_pairs, n % facts.num_pairs);
      const PairLengths lengths = index_->Lengths(direction, pair);
      if (std::max(lengths.source, lengths.target) > spec_.max_sentence_tokens()) continue;
      pairs.push_back({direction, pair, Reserved(lengths), n});
    }
  }
  return pairs;
}

DataOrder::Window DataOrder::MakeWindow(int64_t window) const {
  DEEPNET_CHECK(window >= 0) << "window " << window;
  const auto num_microbatches = static_cast<int>(window_.steps * global_microbatches());
  std::vector<PairRef> pairs = Draw(window);
  Packing packing = PackBalanced(Sizes(pairs), num_microbatches, capacity_);
  if (window > 0) {
    const std::vector<PairRef> before = Draw(window - 1);
    std::vector<int> carried;
    for (const int i : PackBalanced(Sizes(before), num_microbatches, capacity_).left) {
      carried.push_back(static_cast<int>(pairs.size()));
      pairs.push_back(before[i]);
    }
    PackFirstFit(Sizes(pairs), carried, capacity_, &packing);
  }
  Window result;
  for (const std::vector<int>& members : packing.microbatches) {
    std::vector<PairRef>& microbatch = result.emplace_back();
    for (const int i : members) microbatch.push_back(pairs[i]);
  }
  for (auto last = static_cast<uint32_t>(result.size() - 1); last > 0; --last) {
    std::swap(result[last],
              result[BoundedNumber(key_, static_cast<uint64_t>(window), last, last + 1)]);
  }
  return result;
}

}  // namespace deepnet
