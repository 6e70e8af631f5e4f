#include "parallel/plan/layer_groups.h"

#include <string>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

// A chain of layers with one vector each.
Inventory Chain(const std::vector<int64_t>& elements) {
  Inventory whole;
  for (const int64_t count : elements) {
    const int index = static_cast<int>(whole.parameters.size());
    whole.parameters.push_back({.name = std::to_string(index), .shape = {count}});
    whole.layers.push_back(
        {.name = std::to_string(index), .kind = LayerKind::kEncoder, .parameters = {index}});
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

}  // namespace
}  // namespace deepnet
