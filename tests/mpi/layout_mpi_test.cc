// The runs of tests/parity/layout_test.cc, whose ranks are threads, as processes under mpirun. Each
// rank computes the lone twin itself.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/mpi/mpi_main.h"
#include "tests/parity/layout_runs.h"

namespace deepnet {
namespace {

using testing::ExpectBytesAsPlanned;
using testing::ExpectSameBits;
using testing::LayoutCase;
using testing::ModelCase;
using testing::PlanFor;
using testing::RankOutcome;
using testing::RunAlone;
using testing::RunOnRank;
using testing::SchedulesFor;
using testing::WithEveryRecompute;

void ExpectEqualsOneRank(const ModelCase& model, const LayoutCase& layout, const RankOutcome& alone,
                         Communicator& world) {
  SCOPED_TRACE(model.ToText() + ": " + layout.ToText());
  const auto plan = PlanFor(model, layout);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto rank = RunOnRank(model, *plan, world);
  ASSERT_TRUE(rank.ok()) << rank.status();
  ExpectSameBits(*rank, alone);
  ExpectBytesAsPlanned(*rank, model, *plan);
}

// Every pair of (schedule, recomputation), (schedule, arithmetic), (schedule, replicas) and so on
// occurs: schedules and levels in full, the others in turns.
void RunPairs(Communicator& world) {
  std::vector<ModelCase> models;
  std::vector<RankOutcome> twins;
  for (const TiedEmbeddings tied : {TIE_ALL, TIE_NONE}) {
    for (const DataType dtype : {FLOAT32, BFLOAT16}) {
      models.push_back({.tied = tied, .dtype = dtype});
      twins.push_back(RunAlone(models.back()));
    }
  }
  std::vector<int> replicas;
  for (int r = 1; r <= world.size(); r *= 2) replicas.push_back(r);
  const size_t schedules = SchedulesFor(models[0], 2, 1).size(), levels = 5;
  for (size_t s = 0; s < schedules; ++s) {
    for (size_t level = 0; level < levels; ++level) {
      const size_t m = (s + level) % models.size();
      const int r = replicas[(s + 2 * level) % replicas.size()];
      const auto layouts = WithEveryRecompute(SchedulesFor(models[m], world.size() / r, r));
      ExpectEqualsOneRank(models[m], layouts[(s * levels + level) % layouts.size()], twins[m],
                          world);
    }
  }
}

void RunDeep(Communicator& world) {
  const ModelCase model{.encoder_layers = 50,
                        .decoder_layers = 50,
                        .width = 32,
                        .microbatches = 4,
                        .virtual_replicas = 4};
  const RankOutcome alone = RunAlone(model);
  const int half = world.size() / 2;
  const std::vector<LayoutCase> layouts = {
      {.stages = world.size(), .schedule = "zb-v", .virtual_pipeline_size = 2},
      {.stages = 2, .replicas = half, .schedule = "interleaved", .virtual_pipeline_size = 4},
      {.stages = half, .replicas = 2, .schedule = "1f1b", .recompute = FULL, .segment = 2},
  };
  for (const LayoutCase& layout : layouts) ExpectEqualsOneRank(model, layout, alone, world);
}

}  // namespace

void AddMpiTests(Communicator& world) {
  AddMpiTest("Layout", "PairsOfChoicesGiveTheBitsOfOneRank", [&world] { RunPairs(world); });
  AddMpiTest("Layout", "AHundredLayersGiveTheBitsOfOneRank", [&world] { RunDeep(world); });
}

}  // namespace deepnet
