#include "parallel/plan/shard.h"

#include <algorithm>
#include <set>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

// The layers of `whole` that use each parameter, in the order of the chain.
std::vector<std::vector<int>> LayersOfParameters(const Inventory& whole) {
  std::vector<std::vector<int>> layers(whole.parameters.size());
  for (int l = 0; l < static_cast<int>(whole.layers.size()); ++l) {
    for (const int p : whole.layers[l].parameters) layers[p].push_back(l);
  }
  return layers;
}

std::vector<GradientUse> ListUses(const Inventory& whole, const Inventory& held) {
  const std::vector<std::vector<int>> layers_of = LayersOfParameters(whole);
  std::set<int> seen;
  std::vector<GradientUse> uses;
  int64_t gradient = 0;
  for (const Layer& layer : held.layers) {
    DEEPNET_CHECK(layer.position < static_cast<int>(whole.layers.size()) &&
                  whole.layers[layer.position].name == layer.name)
        << layer.name << " is no layer of the model";
    const std::vector<int>& indices = whole.layers[layer.position].parameters;
    DEEPNET_CHECK_EQ(indices.size(), layer.parameters.size()) << layer.name;
    for (size_t i = 0; i < indices.size(); ++i) {
      const Parameter& here = held.parameters[layer.parameters[i]];
      const Parameter& there = whole.parameters[indices[i]];
      DEEPNET_CHECK(here.name == there.name) << here.name << " is not in the model";
      uses.push_back({.layer = layer.position,
                      .parameter = indices[i],
                      .gradient = gradient,
                      .weight = here.offset,
                      .whole = there.offset,
                      .count = here.NumElements(),
                      .tied = layers_of[indices[i]].size() > 1,
                      .first_here = seen.insert(indices[i]).second,
                      .first_in_chain = layers_of[indices[i]].front() == layer.position});
      gradient += here.NumElements();
    }
  }
  return uses;
}

// Returns true if `next` begins where `run` ends, in every order of parameters.
bool Continues(const GradientUse& run, const GradientUse& next) {
  return !run.tied && !next.tied && run.gradient + run.count == next.gradient &&
         run.weight + run.count == next.weight && run.whole + run.count == next.whole;
}

// The uses of a bucket, adjacent ones joined.
std::vector<GradientUse> RunsOf(const GradientBucket& bucket, std::span<const GradientUse> uses) {
  const int64_t end = bucket.begin + bucket.count;
  int64_t covered = bucket.begin;
  std::vector<GradientUse> runs;
  for (const GradientUse& use : uses) {
    if (use.gradient < bucket.begin || use.gradient >= end) continue;
    DEEPNET_CHECK_EQ(use.gradient, covered) << "a bucket cuts a parameter";
    covered += use.count;
    if (!runs.empty() && Continues(runs.back(), use)) {
      runs.back().count += use.count;
    } else {
      runs.push_back(use);
    }
  }
  DEEPNET_CHECK_EQ(covered, end) << "a bucket cuts a parameter";
  return runs;
}

// Deals blocks to replicas so that all have about the same number of elements after every piece:
// who has had less gets more of the next.
class Dealer {
 public:
  explicit Dealer(int num_replicas) : dealt_(num_replicas) {}

  // Shares of the blocks between adjacent `borders`, relative to the first.
  std::vector<int64_t> Deal(std::span<const int64_t> borders) {
    const int64_t num_replicas = static_cast<int64_t>(dealt_.size());
    total_ += borders.back() - borders.front();
    std::vector<int64_t> cuts = {0};
    int64_t wanted = 0;  // by the replicas so far
    for (int64_t& dealt : dealt_) {
      wanted += std::max<int64_t>(0, total_ / num_replicas - dealt);
      const bool last = &dealt == &dealt_.back();
      const int64_t place = last ? borders.back() : Nearest(borders, borders.front() + wanted);
      cuts.push_back(std::max(cuts.back(), place - borders.front()));
      dealt += cuts.back() - cuts[cuts.size() - 2];
    }
    return cuts;
  }

 private:
  static int64_t Nearest(std::span<const int64_t> borders, int64_t place) {
    const auto above = std::lower_bound(borders.begin(), borders.end(), place);
    if (above == borders.end()) return borders.back();
    if (above == borders.begin()) return *above;
    return *above - place < place - *(above - 1) ? *above : *(above - 1);
  }

  std::vector<int64_t> dealt_;  // elements of each replica
  int64_t total_ = 0;
};

// `run` as pieces of at most options.piece_elements, or of one block.
void CutRun(const GradientUse& run, std::span<const int64_t> borders, const ShardOptions& options,
            Dealer& dealer, std::vector<GradientPiece>& pieces) {
  const auto first = std::lower_bound(borders.begin(), borders.end(), run.whole);
  const auto last = std::lower_bound(first, borders.end(), run.whole + run.count);
  DEEPNET_CHECK(*first == run.whole && *last == run.whole + run.count) << "a run cuts a block";
  for (auto begin = first; begin != last;) {
    const auto beyond = std::upper_bound(begin + 1, last + 1, *begin + options.piece_elements);
    const auto end = std::max(begin + 1, beyond - 1);
    GradientPiece piece{.of = run, .cuts = dealer.Deal({begin, end + 1})};
    const int64_t skipped = *begin - run.whole;
    piece.of.gradient += skipped;
    piece.of.weight += skipped;
    piece.of.whole += skipped;
    piece.of.count = *end - *begin;
    pieces.push_back(std::move(piece));
    begin = end;
  }
}

// Those that are first on their nodes come first, then those that are second, ..: what they get
// from their nodes is one run, which they share.
int PlaceOf(const ShardOptions& options) {
  const int local = options.replicas_per_node;
  if (local == 0) return options.replica;
  DEEPNET_CHECK_EQ(options.num_replicas % local, 0) << "nodes have different numbers of replicas";
  return options.replica % local * (options.num_replicas / local) + options.replica / local;
}

// Returns the replica's share of each piece whose sum over uses is made there.
std::vector<Extent> ListExtents(const ShardLayout& layout) {
  std::vector<Extent> extents;
  for (const std::vector<GradientPiece>& bucket : layout.pieces) {
    for (const GradientPiece& piece : bucket) {
      const int64_t begin = piece.cuts[layout.place];
      const int64_t count = piece.cuts[layout.place + 1] - begin;
      if (!piece.of.first_here || count == 0) continue;
      extents.push_back({.gradient = piece.of.gradient + begin,
                         .weight = piece.of.weight + begin,
                         .whole = piece.of.whole + begin,
                         .count = count,
                         .first_in_chain = piece.of.first_in_chain});
    }
  }
  std::ranges::sort(extents, {}, &Extent::weight);
  int64_t state = 0;
  for (Extent& extent : extents) {
    extent.state = state;
    state += extent.count;
  }
  return extents;
}

std::vector<TiedTensor> ListTied(const Inventory& whole, const ShardLayout& layout,
                                 const ShardOptions& options) {
  const std::vector<std::vector<int>> layers_of = LayersOfParameters(whole);
  std::vector<TiedTensor> tied;
  for (const GradientUse& first : layout.uses) {
    if (!first.tied || !first.first_here) continue;
    TiedTensor& tensor = tied.emplace_back();
    tensor.parameter = first.parameter;
    for (const int layer : layers_of[first.parameter]) {
      TiedTensor::Use& use = tensor.uses.emplace_back();
      if (!options.stage_of_layer.empty()) use.stage = options.stage_of_layer[layer];
      for (const GradientUse& here : layout.uses) {
        if (here.layer == layer && here.parameter == first.parameter) use.gradient = here.gradient;
      }
    }
    for (const Extent& extent : layout.extents) {
      const int64_t begin = extent.whole - first.whole;
      if (begin < 0 || begin >= first.count) continue;
      tensor.shares.push_back({begin, extent.count});
    }
  }
  std::ranges::sort(tied, {}, &TiedTensor::parameter);
  return tied;
}

}  // namespace

int64_t ShardLayout::StateElements() const {
  return extents.empty() ? 0 : extents.back().state + extents.back().count;
}

std::vector<int64_t> SumBlockBorders(const Inventory& whole) {
  const std::vector<std::vector<int>> layers_of = LayersOfParameters(whole);
  std::vector<int64_t> borders = {0};
  for (size_t p = 0; p < whole.parameters.size(); ++p) {
    const Parameter& parameter = whole.parameters[p];
    const int64_t end = parameter.offset + parameter.NumElements();
    while (borders.back() + kSumBlock < end) borders.push_back(borders.back() + kSumBlock);
    const bool last = p + 1 == whole.parameters.size();
    const bool restart = last || layers_of[p].front() != layers_of[p + 1].front() ||
                         layers_of[p].size() > 1 || layers_of[p + 1].size() > 1;
    if (restart && borders.back() != end) borders.push_back(end);
  }
  return borders;
}

ShardLayout MakeShardLayout(const Inventory& whole, const Inventory& held,
                            std::span<const GradientBucket> buckets, const ShardOptions& options) {
  ShardLayout layout{.num_replicas = options.num_replicas,
                     .replica = options.replica,
                     .place = PlaceOf(options),
                     .uses = ListUses(whole, held),
                     .buckets = {buckets.begin(), buckets.end()}};
  const std::vector<int64_t> borders = SumBlockBorders(whole);
  Dealer dealer(options.num_replicas);
  int64_t covered = 0;
  for (const GradientBucket& bucket : buckets) {
    std::vector<GradientPiece>& pieces = layout.pieces.emplace_back();
    for (const GradientUse& run : RunsOf(bucket, layout.uses)) {
      Dealer of_tied(options.num_replicas);  // every stage that holds the tensor deals alike
      CutRun(run, borders, options, run.tied ? of_tied : dealer, pieces);
    }
    covered += bucket.count;
  }
  const int64_t elements =
      layout.uses.empty() ? 0 : layout.uses.back().gradient + layout.uses.back().count;
  DEEPNET_CHECK_EQ(covered, elements) << "buckets do not cover the gradient";
  layout.extents = ListExtents(layout);
  layout.tied = ListTied(whole, layout, options);
  return layout;
}

std::vector<int> LayerGroupEnds(const Inventory& whole) {
  int64_t total = 0;
  for (const Layer& layer : whole.layers) total += GradientElements(whole, layer);
  const int64_t most = std::min(kGroupElements, total / kLeastGroups);
  std::vector<int> ends;
  int64_t filled = 0;
  for (int l = 0; l < static_cast<int>(whole.layers.size()); ++l) {
    const int64_t elements = GradientElements(whole, whole.layers[l]);
    if (l > 0 && filled + elements > most) {
      ends.push_back(l);
      filled = 0;
    }
    filled += elements;
  }
  if (!whole.layers.empty()) ends.push_back(static_cast<int>(whole.layers.size()));
  return ends;
}

MicrobatchRange MicrobatchesOf(int microbatches, int replicas, int replica) {
  const int each = microbatches / replicas, more = microbatches % replicas;
  const int first = replica * each + std::min(replica, more);
  return {first, first + each + (replica < more ? 1 : 0)};
}

int LocalVirtualReplicas(int virtual_replicas, int replicas) {
  return virtual_replicas % replicas == 0 ? std::max(1, virtual_replicas / replicas) : 1;
}

int DefaultVirtualReplicas(int microbatches, int replicas) {
  constexpr int kMaxReplicas = 8;  // one machine's GPUs; each doubling keeps one more gradient
  int virtual_replicas = 1;
  while (2 * virtual_replicas <= std::max(kMaxReplicas, replicas) &&
         microbatches % (2 * virtual_replicas) == 0) {
    virtual_replicas *= 2;
  }
  return virtual_replicas;
}

}  // namespace deepnet
