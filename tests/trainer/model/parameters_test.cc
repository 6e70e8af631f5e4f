// The parts of a model that ranks hold, and where their weights and gradients lie.
#include "trainer/model/parameters.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

Inventory Tiny(TiedEmbeddings tied, Residual residual = PRE_LN) {
  ModelSpec spec = testing::TinySpec();
  spec.set_tied_embeddings(tied);
  spec.set_residual(residual);
  spec.set_positions(LEARNED);
  return Describe(spec, testing::TinyCapacity());
}

int NumLayers(const Inventory& inventory) { return static_cast<int>(inventory.layers.size()); }

std::unique_ptr<Ops> MakeOps() { return MakeAtenOps(at::kDouble, at::kDouble); }

std::map<std::string, const Parameter*> ByName(const Inventory& inventory) {
  std::map<std::string, const Parameter*> all;
  for (const Parameter& p : inventory.parameters) all[p.name] = &p;
  return all;
}

// Every pair of disjoint spans of a chain of `layers`, the second one possibly empty.
std::vector<std::vector<LayerSpan>> PairsOfSpans(int layers) {
  std::vector<std::vector<LayerSpan>> pairs;
  for (int a = 0; a <= layers; ++a) {
    for (int b = a; b <= layers; ++b) {
      for (int c = b; c <= layers; ++c) pairs.push_back({{a, b}, {c, layers}});
    }
  }
  return pairs;
}

TEST(Select, OfEverythingIsTheInventory) {
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
    const Inventory whole = Tiny(tied);
    EXPECT_EQ(Select(whole, std::vector<LayerSpan>{{0, NumLayers(whole)}}), whole);
    EXPECT_EQ(Select(whole, std::vector<LayerSpan>{{0, 3}, {3, NumLayers(whole)}}), whole);
  }
}

TEST(Select, KeepsLayersInOrderWithTheirParametersAndPositions) {
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
    const Inventory whole = Tiny(tied);
    for (const std::vector<LayerSpan>& spans : PairsOfSpans(NumLayers(whole))) {
      const Inventory part = Select(whole, spans);
      ASSERT_EQ(NumLayers(part), spans[0].NumLayers() + spans[1].NumLayers());
      size_t at = 0;
      for (const LayerSpan& span : spans) {
        for (int l = span.first; l < span.end; ++l, ++at) {
          EXPECT_EQ(part.layers[at].name, whole.layers[l].name);
          EXPECT_EQ(part.layers[at].position, l);
          ASSERT_EQ(part.layers[at].parameters.size(), whole.layers[l].parameters.size());
          for (size_t i = 0; i < whole.layers[l].parameters.size(); ++i) {
            EXPECT_EQ(part.parameters[part.layers[at].parameters[i]].name,
                      whole.parameters[whole.layers[l].parameters[i]].name);
          }
        }
      }
    }
  }
}

TEST(Select, NumbersEachParameterOnceWithoutGaps) {
  const Inventory whole = Tiny(TIE_ALL);
  const auto all = ByName(whole);
  for (const std::vector<LayerSpan>& spans : PairsOfSpans(NumLayers(whole))) {
    const Inventory part = Select(whole, spans);
    EXPECT_EQ(ByName(part).size(), part.parameters.size());
    int64_t offset = 0;
    for (Parameter p : part.parameters) {
      EXPECT_EQ(p.offset, offset) << p.name;
      offset += p.NumElements();
      p.offset = all.at(p.name)->offset;
      EXPECT_EQ(p, *all.at(p.name));
    }
  }
}

TEST(SelectDeathTest, RefusesSpansThatOverlap) {
  EXPECT_DEATH(Select(Tiny(TIE_ALL), std::vector<LayerSpan>{{0, 3}, {2, 4}}), "after 3");
}

TEST(Parameters, GradientsStandInTheOrderOfLayersOneRangeEach) {
  const auto ops = MakeOps();
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_DECODER, TIE_NONE}) {
    const Inventory whole = Tiny(tied);
    for (const std::vector<LayerSpan>& spans : PairsOfSpans(NumLayers(whole))) {
      const Parameters parameters(Select(whole, spans), *ops, /*trainable=*/true);
      const Inventory& part = parameters.inventory();
      size_t use = 0;
      int64_t offset = 0;
      for (int l = 0; l < NumLayers(part); ++l) {
        const GradientSpan range = parameters.GradientRange(l, l + 1);
        EXPECT_EQ(range.begin, offset);
        for (const int i : part.layers[l].parameters) {
          const Parameter& p = part.parameters[i];
          EXPECT_EQ(parameters.uses()[use++], (Use{l, i, offset, p.offset, p.NumElements()}));
          offset += p.NumElements();
        }
        EXPECT_EQ(range.begin + range.count, offset);
        EXPECT_EQ(parameters.GradientRange(0, l + 1), (GradientSpan{0, offset}));
      }
      EXPECT_EQ(use, parameters.uses().size());
      EXPECT_EQ(parameters.gradient().numel(), offset);
    }
  }
}

TEST(Parameters, APartStartsAsTheWholeDoes) {
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  const Inventory whole = Tiny(TIE_ALL, DEEPNORM);
  Parameters all(whole, *ops, /*trainable=*/false);
  all.Initialize(3);
  for (const std::vector<LayerSpan>& spans : PairsOfSpans(NumLayers(whole))) {
    Parameters part(Select(whole, spans), *ops, /*trainable=*/false);
    part.Initialize(3);
    for (const Parameter& p : part.inventory().parameters) {
      EXPECT_TRUE(at::equal(part.Get(p.name), all.Get(p.name))) << p.name;
    }
  }
}

TEST(ParametersDeathTest, NamesWhatIsNotHere) {
  const auto ops = MakeOps();
  const Parameters parameters(Select(Tiny(TIE_ALL), std::vector<LayerSpan>{{0, 1}}), *ops, true);
  EXPECT_DEATH(parameters.Get("lm_head.weight"), "lm_head.weight");
  EXPECT_DEATH(parameters.EmbeddingGradient("shared.weight", LayerKind::kOutput),
               "shared.weight is not used so here");
}

}  // namespace
}  // namespace deepnet
