// Every layout gives the bits of one rank: losses, norms and final weights of two steps with
// dropout, clipping and weight decay, ranks being threads. And every rank holds and sends what its
// plan says.
//
// The full product of stages x replicas (all up to 8 ranks, replicas 1, 2, 4, 8; R = 8), every
// schedule and placement there is for them, for tied and untied models in float32 and bfloat16; and
// between these four every layout with every level of recomputation.
//
// Environment: DEEPNET_EVERY_LAYOUT, each model runs all of these (long_layout_test).
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parity/layout_runs.h"

namespace deepnet {
namespace {

using testing::ExpectBytesAsPlanned;
using testing::ExpectExchangesAsPlanned;
using testing::ExpectSameBits;
using testing::ExpectWithinRounding;
using testing::LayoutCase;
using testing::ModelCase;
using testing::PlanFor;
using testing::RankOutcome;
using testing::RunAlone;
using testing::RunAsThreads;
using testing::SchedulesFor;
using testing::WithEveryRecompute;

constexpr int kMaxRanks = 8;

struct Degrees {
  int stages, replicas;
};

std::vector<Degrees> AllDegrees(int most_ranks, int virtual_replicas) {
  std::vector<Degrees> all;
  for (int stages = 1; stages <= most_ranks; ++stages) {
    for (int replicas = 1; stages * replicas <= most_ranks; ++replicas) {
      if (virtual_replicas % replicas == 0) all.push_back({stages, replicas});
    }
  }
  return all;
}

std::vector<LayoutCase> LayoutsOf(const ModelCase& model, int most_ranks) {
  std::vector<LayoutCase> all;
  for (const Degrees& degrees : AllDegrees(most_ranks, model.virtual_replicas)) {
    const auto more = SchedulesFor(model, degrees.stages, degrees.replicas);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void ExpectEqualsOneRank(const ModelCase& model, const LayoutCase& layout,
                         const RankOutcome& alone) {
  SCOPED_TRACE(model.ToText() + ": " + layout.ToText());
  const auto plan = PlanFor(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<RankOutcome> ranks = RunAsThreads(model, *plan);
  for (const RankOutcome& rank : ranks) {
    ExpectSameBits(rank, alone);
    ExpectBytesAsPlanned(rank, model, *plan);
  }
  ExpectExchangesAsPlanned(ranks, *plan);
}

void ExpectAllEqualOneRank(const ModelCase& model, const std::vector<LayoutCase>& layouts) {
  std::printf("%s: %zu layouts\n", model.ToText().c_str(), layouts.size());
  const RankOutcome alone = RunAlone(model);
  for (const LayoutCase& layout : layouts) {
    ExpectEqualsOneRank(model, layout, alone);
    if (::testing::Test::HasFailure()) return;  // one is enough to look at
  }
}

// Runs every fourth of the list that has each layout with its five levels of recomputation in a
// row; `turn`, 0 to 3, says which. Each time four layouts are over it goes on by one, for a
// schedule stands at a multiple of four in most stages and replicas: else it would meet one model
// only.
void ExpectEveryLayoutEqualsOneRank(const ModelCase& model, size_t turn) {
  const std::vector<LayoutCase> all = WithEveryRecompute(LayoutsOf(model, kMaxRanks));
  const bool every = std::getenv("DEEPNET_EVERY_LAYOUT") != nullptr;
  std::vector<LayoutCase> some;
  for (size_t i = 0; i < all.size(); ++i) {
    if (every || (i + i / 20) % 4 == turn) some.push_back(all[i]);
  }
  ExpectAllEqualOneRank(model, some);
}

TEST(Layout, EveryOneGivesTheBitsOfOneRankTiedInFloat32) {
  ExpectEveryLayoutEqualsOneRank({.tied = TIE_ALL, .dtype = FLOAT32}, 0);
}

TEST(Layout, EveryOneGivesTheBitsOfOneRankTiedInBfloat16) {
  ExpectEveryLayoutEqualsOneRank({.tied = TIE_ALL, .dtype = BFLOAT16}, 1);
}

TEST(Layout, EveryOneGivesTheBitsOfOneRankUntiedInFloat32) {
  ExpectEveryLayoutEqualsOneRank({.tied = TIE_NONE, .dtype = FLOAT32}, 2);
}

TEST(Layout, EveryOneGivesTheBitsOfOneRankUntiedInBfloat16) {
  ExpectEveryLayoutEqualsOneRank({.tied = TIE_NONE, .dtype = BFLOAT16}, 3);
}

// More chunks than the models above have layers.
TEST(Layout, UpToEightStagesOfThreeChunksGiveTheBitsOfOneRank) {
  const ModelCase deep{.encoder_layers = 12, .decoder_layers = 9};
  const ModelCase other;
  std::vector<LayoutCase> layouts = LayoutsOf(deep, kMaxRanks);
  std::erase_if(layouts, [&](const LayoutCase& layout) {
    return layout.stages * layout.virtual_pipeline_size <= other.NumLayers();
  });
  ExpectAllEqualOneRank(deep, layouts);
}

TEST(Layout, EveryOneOfAModelOfOneStackGivesTheBitsOfOneRank) {
  const ModelCase causal{.encoder_layers = 0, .decoder_layers = 5, .architecture = DECODER_ONLY};
  ExpectAllEqualOneRank(causal, WithEveryRecompute(LayoutsOf(causal, 4)));
  const ModelCase masked{.tied = TIE_NONE,
                         .dtype = BFLOAT16,
                         .encoder_layers = 5,
                         .decoder_layers = 0,
                         .architecture = ENCODER_ONLY};
  ExpectAllEqualOneRank(masked, WithEveryRecompute(LayoutsOf(masked, 4)));
}

// Ranks in order on pretended nodes, as mpirun places them.
TEST(Layout, SumsInsideNodesFirstGiveTheBitsOfOneRank) {
  const ModelCase model;
  const RankOutcome alone = RunAlone(model);
  struct Nodes {
    int stages, replicas, ranks_per_node, expected;  // replicas that share a node
  };
  for (const Nodes& nodes : {Nodes{1, 4, 2, 2}, Nodes{1, 8, 4, 4}, Nodes{2, 4, 4, 2},
                             Nodes{1, 8, 2, 2}, Nodes{2, 4, 2, 0}, Nodes{1, 4, 4, 0}}) {
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      const LayoutCase layout{nodes.stages, nodes.replicas, schedule};
      SCOPED_TRACE(layout.ToText());
      const auto plan = PlanFor(model, layout);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const std::vector<RankOutcome> ranks = RunAsThreads(model, *plan, [&](int rank) {
        return "node " + std::to_string(rank / nodes.ranks_per_node);
      });
      for (const RankOutcome& rank : ranks) {
        EXPECT_EQ(rank.replicas_per_node, nodes.expected);
        ExpectSameBits(rank, alone);
        ExpectBytesAsPlanned(rank, model, *plan);
      }
      ExpectExchangesAsPlanned(ranks, *plan);
    }
  }
}

// Three replicas have 3, 3 and 2 of 8 microbatches, so their ranks follow different schedules.
TEST(Layout, ReplicasThatDoNotDivideTheVirtualOnesStayWithinRounding) {
  for (const ModelCase& model : {ModelCase{}, ModelCase{.tied = TIE_NONE, .virtual_replicas = 2}}) {
    const RankOutcome alone = RunAlone(model);
    for (const Degrees& degrees : {Degrees{1, 3}, Degrees{2, 3}, Degrees{1, 5}, Degrees{1, 7}}) {
      for (LayoutCase layout : SchedulesFor(model, degrees.stages, degrees.replicas)) {
        if (layout.schedule.find(':') != std::string::npos) continue;  // for even shares only
        SCOPED_TRACE(model.ToText() + ": " + layout.ToText());
        const auto plan = PlanFor(model, layout);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const std::vector<RankOutcome> ranks = RunAsThreads(model, *plan);
        for (const RankOutcome& rank : ranks) {
          ExpectWithinRounding(rank, alone, ranks[rank.stage]);
        }
        if (HasFailure()) return;
      }
    }
  }
}

// Several microbatches to a virtual replica, so that weight gradients wait as long as they may.
TEST(Layout, WeightGradientsThatWaitAddUpInTheSameOrder) {
  for (const ModelCase& model : {ModelCase{.microbatches = 12, .virtual_replicas = 1},
                                 ModelCase{.tied = TIE_DECODER, .virtual_replicas = 2}}) {
    ExpectAllEqualOneRank(model, LayoutsOf(model, 4));
  }
}

}  // namespace
}  // namespace deepnet
