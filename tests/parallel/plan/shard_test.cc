#include "parallel/plan/shard.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/one_bucket.h"

namespace deepnet {
namespace {

// Embedding and positions, `num_layers` layers of a matrix and a bias, an output layer that uses
// the embedding again and has a bias of its own. With `target`, the middle layer uses it too.
Inventory Model(int64_t embedding, int num_layers, bool target = false) {
  Inventory model;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, int64_t elements) {
    model.parameters.push_back({.name = name, .shape = {elements}, .offset = offset});
    offset += elements;
    return static_cast<int>(model.parameters.size()) - 1;
  };
  const auto layer = [&](const std::string& name, std::vector<int> parameters) {
    model.layers.push_back({.name = name,
                            .position = static_cast<int>(model.layers.size()),
                            .parameters = std::move(parameters)});
  };
  layer("source", {add("embedding", embedding), add("positions", 5000)});
  for (int l = 0; l < num_layers; ++l) {
    const std::string name = "layers." + std::to_string(l);
    std::vector<int> parameters = {add(name + ".weight", 10'000 + 17 * l), add(name + ".bias", 33)};
    if (target && l == num_layers / 2) parameters.push_back(0);
    layer(name, parameters);
  }
  layer("output", {0, add("output.bias", 100)});
  return model;
}

std::vector<GradientBucket> BucketPerLayer(const Inventory& held) {
  std::vector<GradientBucket> buckets;
  int64_t begin = 0;
  for (const Layer& layer : held.layers) {
    int64_t count = 0;
    for (const int p : layer.parameters) count += held.parameters[p].NumElements();
    buckets.push_back({.begin = begin, .count = count});
    begin += count;
  }
  return buckets;
}

TEST(SumBlockBorders, StartAnewAtLayersAndAtBothEndsOfATiedTensor) {
  const Inventory model = Model(4096 + 10, 1);
  const int64_t positions = 4106, layer = positions + 5000, output = layer + 10'033;
  EXPECT_EQ(SumBlockBorders(model),
            (std::vector<int64_t>{0, 4096, positions, positions + 4096, layer, layer + 4096,
                                  layer + 8192, output, output + 100}));
}

TEST(SumBlockBorders, DoNotMoveWhenOtherLayersGrow) {
  const std::vector<int64_t> short_model = SumBlockBorders(Model(8192, 2));
  const std::vector<int64_t> long_model = SumBlockBorders(Model(8192, 3));
  EXPECT_TRUE(std::equal(short_model.begin(), short_model.end() - 1, long_model.begin()));
}

// Every element of weights has one owner, whatever the number of replicas, pieces and buckets.
TEST(ShardLayout, CoversEveryWeightExactlyOnce) {
  const Inventory model = Model(50'000, 5, /*target=*/true);
  for (const int replicas : {1, 2, 3, 4, 5, 8, 64}) {
    for (const int64_t piece : {1, 4096, 20'000, 1 << 24}) {
      std::vector<int> owners(model.NumElements());
      for (int r = 0; r < replicas; ++r) {
        std::vector<GradientBucket> buckets = BucketPerLayer(model);
        std::ranges::reverse(buckets);  // as backward passes complete them
        const ShardLayout layout =
            MakeShardLayout(model, model, buckets,
                            {.num_replicas = replicas, .replica = r, .piece_elements = piece});
        int64_t state = 0, weight = 0;
        for (const Extent& e : layout.extents) {
          EXPECT_GE(e.weight, std::exchange(weight, e.weight + e.count));
          EXPECT_EQ(e.state, state);
          EXPECT_EQ(e.weight, e.whole);
          state += e.count;
          for (int64_t i = 0; i < e.count; ++i) ++owners[e.weight + i];
        }
        EXPECT_EQ(layout.StateElements(), state);
      }
      EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << replicas << " " << piece;
    }
  }
}

TEST(ShardLayout, EndsSharesAtBordersOfBlocksAndSharesEvenly) {
  const Inventory model = Model(50'000, 40);
  const std::vector<int64_t> borders = SumBlockBorders(model);
  for (const int replicas : {2, 3, 7}) {
    int64_t least = model.NumElements(), most = 0;
    for (int r = 0; r < replicas; ++r) {
      const ShardLayout layout = MakeShardLayout(model, model, BucketPerLayer(model),
                                                 {.num_replicas = replicas, .replica = r});
      for (const Extent& e : layout.extents) {
        EXPECT_TRUE(std::binary_search(borders.begin(), borders.end(), e.whole));
        EXPECT_TRUE(std::binary_search(borders.begin(), borders.end(), e.whole + e.count));
      }
      least = std::min(least, layout.StateElements());
      most = std::max(most, layout.StateElements());
    }
    EXPECT_LE(most - least, 3 * kSumBlock) << replicas;
  }
}

TEST(ShardLayout, OfOneReplicaIsOneExtentForAllUntiedWeights) {
  Inventory model = Model(50'000, 5);
  model.layers.back().parameters = {static_cast<int>(model.parameters.size()) - 1};
  const ShardLayout layout = MakeShardLayout(model, model, testing::OneBucket(model), {});
  ASSERT_EQ(layout.extents.size(), 1u);
  EXPECT_EQ(layout.extents[0], (Extent{.count = model.NumElements(), .first_in_chain = true}));
  EXPECT_TRUE(layout.tied.empty());
}

TEST(ShardLayout, KeepsPiecesSmall) {
  const Inventory model = Model(50'000, 5);
  const ShardLayout layout = MakeShardLayout(model, model, testing::OneBucket(model),
                                             {.num_replicas = 2, .piece_elements = 3 * kSumBlock});
  int64_t elements = 0;
  for (const GradientPiece& piece : layout.pieces[0]) {
    EXPECT_LE(piece.of.count, 3 * kSumBlock);
    EXPECT_EQ(piece.cuts.front(), 0);
    EXPECT_EQ(piece.cuts.back(), piece.of.count);
    EXPECT_EQ(piece.of.gradient, elements) << "pieces follow each other";
    elements += piece.of.count;
  }
  EXPECT_EQ(elements, layout.buckets[0].count);
}

// Stage 0: source layer and layers 0, 1. Stage 1: layer 2. Stage 2: layers 3, 4 and the output.
std::vector<Inventory> ThreeStages(const Inventory& model) {
  return {Select(model, std::vector<LayerSpan>{{0, 3}}),
          Select(model, std::vector<LayerSpan>{{3, 4}}),
          Select(model, std::vector<LayerSpan>{{4, 7}})};
}

TEST(ShardLayout, CutsATiedTensorAlikeOnEveryStageThatHasIt) {
  const Inventory model = Model(50'000, 5, /*target=*/true);
  const std::vector<Inventory> stages = ThreeStages(model);
  for (int r = 0; r < 3; ++r) {
    std::vector<ShardLayout> layouts;
    for (const Inventory& held : stages) {
      layouts.push_back(MakeShardLayout(model, held, BucketPerLayer(held),
                                        {.num_replicas = 3,
                                         .replica = r,
                                         .piece_elements = 16'384,
                                         .stage_of_layer = {0, 0, 0, 1, 2, 2, 2}}));
    }
    for (int stage = 0; stage < 3; ++stage) {
      ASSERT_EQ(layouts[stage].tied.size(), 1u);
      const TiedTensor& tied = layouts[stage].tied[0];
      EXPECT_EQ(tied.shares, layouts[0].tied[0].shares);
      EXPECT_GE(tied.shares.size(), 3u) << "pieces of 16,384 of 50,000";
      ASSERT_EQ(tied.uses.size(), 3u);
      for (int use = 0; use < 3; ++use) {
        EXPECT_EQ(tied.uses[use].stage, use);
        EXPECT_EQ(tied.uses[use].gradient >= 0, use == stage);
      }
    }
  }
}

TEST(ShardLayout, CountsEveryElementOfTheModelOnceInTheNorm) {
  const Inventory model = Model(50'000, 5, /*target=*/true);
  std::vector<int> counted(model.NumElements());
  for (const Inventory& held : ThreeStages(model)) {
    for (int r = 0; r < 2; ++r) {
      const ShardLayout layout =
          MakeShardLayout(model, held, BucketPerLayer(held), {.num_replicas = 2, .replica = r});
      for (const Extent& e : layout.extents) {
        EXPECT_TRUE(e.first_in_chain || held.layers.front().position > 0);
        for (int64_t i = 0; e.first_in_chain && i < e.count; ++i) ++counted[e.whole + i];
      }
    }
  }
  EXPECT_EQ(counted, std::vector<int>(counted.size(), 1));
}

TEST(ShardLayout, SharesOfATiedTensorBeginWithIt) {
  Inventory model;
  model.parameters = {{.name = "first", .shape = {10}},
                      {.name = "tied", .shape = {20}, .offset = 10}};
  model.layers = {{.name = "a", .position = 0, .parameters = {0, 1}},
                  {.name = "b", .position = 1, .parameters = {1}}};
  const ShardLayout layout = MakeShardLayout(model, model, testing::OneBucket(model), {});
  ASSERT_EQ(layout.tied.size(), 1u);
  EXPECT_EQ(layout.tied[0].shares, (std::vector<TiedTensor::Share>{{.begin = 0, .count = 20}}));
}

// A chain of layers with one vector each.
Inventory Chain(const std::vector<int64_t>& elements) {
  Inventory whole;
  for (const int64_t count : elements) {
    const int index = static_cast<int>(whole.parameters.size());
    whole.parameters.push_back({.name = std::to_string(index), .shape = {count}});
    whole.layers.push_back({.name = std::to_string(index), .parameters = {index}});
  }
  return whole;
}

TEST(LayerGroups, HoldAtMostTwentyFiveMebibytesOfGradient) {
  const int64_t quarter = kGroupElements / 4;
  const std::vector<int> ends = LayerGroupEnds(Chain(std::vector<int64_t>(200, quarter)));
  ASSERT_EQ(ends.size(), 50u);
  for (size_t i = 0; i < ends.size(); ++i) EXPECT_EQ(ends[i], 4 * static_cast<int>(i + 1));
}

TEST(LayerGroups, OfASmallModelAreAboutSixteen) {
  const std::vector<int> ends = LayerGroupEnds(Chain(std::vector<int64_t>(100, 1000)));
  EXPECT_EQ(ends.front(), 6);
  EXPECT_EQ(ends.back(), 100);
  EXPECT_EQ(ends.size(), 17u);
}

TEST(LayerGroups, ALargeLayerIsOneAlone) {
  std::vector<int64_t> sizes(40, 1000);
  sizes[0] = sizes[20] = 2 * kGroupElements;
  const std::vector<int> ends = LayerGroupEnds(Chain(sizes));
  EXPECT_EQ(ends, (std::vector<int>{1, 20, 21, 40}));
}

// Each use of a tied tensor has an accumulator of its own.
TEST(LayerGroups, CountEveryUseOfATiedTensor) {
  Inventory whole = Chain(std::vector<int64_t>(32, 1));
  whole.parameters[0].shape = {100};
  for (Layer& layer : whole.layers) layer.parameters = {0};
  const std::vector<int> ends = LayerGroupEnds(whole);
  ASSERT_EQ(ends.size(), 16u);
  EXPECT_EQ(ends.front(), 2);
}

TEST(LayerGroups, OfNoLayersAreNone) { EXPECT_TRUE(LayerGroupEnds(Inventory()).empty()); }

TEST(Dealing, GivesEveryMicrobatchToOneReplicaAndTheFirstOnesMore) {
  for (int microbatches = 1; microbatches <= 12; ++microbatches) {
    for (int replicas = 1; replicas <= microbatches; ++replicas) {
      int reached = 0, before = microbatches;
      for (int r = 0; r < replicas; ++r) {
        const MicrobatchRange range = MicrobatchesOf(microbatches, replicas, r);
        EXPECT_EQ(range.first, reached);
        EXPECT_LE(range.Count(), before);
        EXPECT_GE(range.Count(), microbatches / replicas);
        reached = range.end;
        before = range.Count();
      }
      EXPECT_EQ(reached, microbatches);
      EXPECT_LE(MicrobatchesOf(microbatches, replicas, 0).Count() - before, 1);
    }
  }
}

TEST(Dealing, ARankHasItsShareOfVirtualReplicasOrIsOne) {
  EXPECT_EQ(LocalVirtualReplicas(8, 1), 8);
  EXPECT_EQ(LocalVirtualReplicas(8, 4), 2);
  EXPECT_EQ(LocalVirtualReplicas(8, 3), 1);
  EXPECT_EQ(LocalVirtualReplicas(2, 4), 1);
  EXPECT_EQ(LocalVirtualReplicas(0, 2), 1);  // left open
}

TEST(Dealing, VirtualReplicasLeftOpenAreEightOrWhatDividesTheMicrobatches) {
  EXPECT_EQ(DefaultVirtualReplicas(32, 0), 8);
  EXPECT_EQ(DefaultVirtualReplicas(8, 4), 8);
  EXPECT_EQ(DefaultVirtualReplicas(12, 0), 4);
  EXPECT_EQ(DefaultVirtualReplicas(6, 3), 2);
  EXPECT_EQ(DefaultVirtualReplicas(7, 5), 1);
  EXPECT_EQ(DefaultVirtualReplicas(64, 16), 16);
  EXPECT_EQ(DefaultVirtualReplicas(48, 32), 16);
}

}  // namespace

}  // namespace deepnet
