#include "trainer/probe/experiment.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/statistics.h"

namespace deepnet {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Experiment Make(const std::string& name, LabSize size = LabSize::kSmall) {
  auto experiment = MakeExperiment(name, {.size = size});
  EXPECT_TRUE(experiment.ok()) << experiment.status();
  return *experiment;
}

TEST(Experiment, EveryFigureAndTableOfTheLaboratoryIsThere) {
  EXPECT_THAT(ExperimentNames(),
              ::testing::ElementsAre("fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "table1",
                                     "table2", "table3", "ablation", "tuning"));
}

TEST(Experiment, CellsHaveNamesOfTheirOwnAndRecipesThatExist) {
  for (const std::string& name : ExperimentNames()) {
    for (const LabSize size : {LabSize::kSmall, LabSize::kPaper}) {
      if (name == "tuning" && size == LabSize::kPaper) continue;
      std::set<std::string> names;
      for (const CellSpec& cell : Make(name, size).cells) {
        EXPECT_TRUE(names.insert(cell.name).second) << cell.name;
        EXPECT_TRUE(std::ifstream("launch/recipes/" + cell.recipe).good()) << cell.recipe;
        EXPECT_THAT(cell.sets, Contains("seed=" + std::to_string(cell.seed)));
      }
      EXPECT_FALSE(names.empty()) << name;
    }
  }
}

TEST(Experiment, PanelsShowCellsThatExist) {
  for (const std::string& name : ExperimentNames()) {
    const Experiment experiment = Make(name);
    std::set<std::string> groups;
    std::set<double> xs;
    for (const CellSpec& cell : experiment.cells) {
      groups.insert(cell.group);
      xs.insert(cell.x);
    }
    for (const Panel& panel : experiment.panels) {
      EXPECT_TRUE(groups.contains(panel.group)) << name << ": " << panel.title;
      EXPECT_TRUE(panel.at_x == 0 || xs.contains(panel.at_x)) << name << ": " << panel.title;
    }
  }
}

TEST(Experiment, MoreSeedsAreMoreCellsOfTheSameNames) {
  const auto one = MakeExperiment("fig6", {.seeds = 1});
  const auto three = MakeExperiment("fig6", {.seeds = 3});
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_EQ(three->cells.size(), 3 * one->cells.size());
  EXPECT_EQ(one->cells[0].name, three->cells[0].name);
}

TEST(Experiment, OnlySomeSeries) {
  const auto some = MakeExperiment("table1", {.series = {"deepnet", "post-ln"}});
  ASSERT_TRUE(some.ok());
  for (const CellSpec& cell : some->cells) {
    EXPECT_TRUE(cell.series == "deepnet" || cell.series == "post-ln") << cell.name;
  }
  EXPECT_THAT(MakeExperiment("table1", {.series = {"no-such"}}).status().message(),
              HasSubstr("no series 'no-such', but deepnet, post-ln"));
  EXPECT_THAT(MakeExperiment("fig7", {.series = {"keel"}}).status().message(),
              HasSubstr("no series 'keel', but deepnet"));
}

TEST(Experiment, AnyMethodAtAnyDepthIsRunWithTheExperimentsSettings) {
  for (const std::string& name : ExperimentNames()) {
    const Experiment own = Make(name);
    if (own.depths == DepthAxis::kNone) continue;
    std::vector<std::string> keys;
    for (const Method& method : Methods()) keys.emplace_back(method.key);
    const auto all = MakeExperiment(name, {.seeds = 1, .series = keys, .xs = {14, 6, 14}});
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(all->cells.size(), 2 * keys.size()) << name;
    EXPECT_EQ(all->cells.front().x, 6) << name;
    const std::string layers = own.depths == DepthAxis::kBoth ? "=7" : "=14";
    EXPECT_THAT(all->cells.back().sets, Contains("model.encoder_layers" + layers)) << name;
    EXPECT_THAT(all->cells.back().sets, Contains("model.decoder_layers" + layers)) << name;
    EXPECT_EQ(all->cells.back().recipe, own.cells.front().recipe) << name;
  }
  const auto added = MakeExperiment("fig6", {.series = {"branch-norm", "deepnet"}, .xs = {100}});
  ASSERT_TRUE(added.ok()) << added.status();
  ASSERT_EQ(added->cells.size(), 2);
  EXPECT_EQ(added->cells[0].name, "deepnet-100-s1");  // the experiment's own first
  EXPECT_EQ(added->cells[1].name, "branch-norm-100-s1");
  EXPECT_THAT(added->cells[1].sets, Contains("model.residual=BRANCH_NORM"));
}

TEST(Experiment, WithoutAWarmUpMeansThatWhereverItIsAskedFor) {
  const auto cold = MakeExperiment("fig6", {.series = {"post-ln-cold"}, .xs = {6}});
  ASSERT_TRUE(cold.ok()) << cold.status();
  EXPECT_THAT(cold->cells[0].sets, Contains("optim.warmup_steps=0"));
}

TEST(Experiment, ReZeroIsTrainedWithoutHalfPrecision) {
  for (const CellSpec& cell : Make("table1", LabSize::kPaper).cells) {
    const bool full =
        std::find(cell.sets.begin(), cell.sets.end(), "compute.dtype=FLOAT32") != cell.sets.end();
    EXPECT_EQ(full, cell.series == "rezero") << cell.name;
  }
}

TEST(Experiment, TableThreeScoresTheWeightsItIsComparedWith) {
  const Experiment table = Make("table3", LabSize::kPaper);
  ASSERT_EQ(table.cells.size(), 2);
  EXPECT_EQ(table.cells[0].checkpoint, "");
  EXPECT_EQ(table.cells[1].series, "M2M-100");
  EXPECT_EQ(table.cells[1].checkpoint, "runs/m2m100_12b");
}

TEST(Experiment, OnlySomePlacesOfTheAxis) {
  const auto some = MakeExperiment("table1", {.seeds = 2, .series = {"deepnet"}, .xs = {6, 50}});
  ASSERT_TRUE(some.ok());
  std::set<std::string> names;
  for (const CellSpec& cell : some->cells) names.insert(cell.name);
  EXPECT_EQ(names, std::set<std::string>(
                       {"deepnet-6-s1", "deepnet-6-s2", "deepnet-50-s1", "deepnet-50-s2"}));
  EXPECT_THAT(MakeExperiment("fig7", {.xs = {7}}).status().message(),
              HasSubstr("no runs at '7', but "));
  for (const double depth : {0.0, -6.0, 6.5, 1e9}) {
    EXPECT_THAT(MakeExperiment("table1", {.xs = {depth}}).status().message(),
                HasSubstr("but at any number of layers a side"));
  }
  EXPECT_THAT(MakeExperiment("fig8", {.xs = {7}}).status().message(),
              HasSubstr("no runs at '7', but at any even number of layers"));
}

TEST(Experiment, UnknownNamesAndSizesAreErrors) {
  EXPECT_FALSE(MakeExperiment("fig2", {}).ok());
  EXPECT_FALSE(MakeExperiment("tuning", {.size = LabSize::kPaper}).ok());
}

TEST(Experiment, TuningWithFactorsOfOneIsThePapersOwnModel) {
  const Fields fields = ScaledDeepNorm(50, 1, 1);
  EXPECT_THAT(fields[0], HasSubstr("encoder_alpha=2.750"));  // table of 0.81 (N^4 M)^(1/16)
  EXPECT_THAT(fields[3], HasSubstr("decoder_beta=0.202"));
}

TEST(Published, TheLawOfDepthThroughThePapersPointsIsTheStatedOne) {
  const PlotLine line = PublishedFigure8()[0].lines[0];
  std::vector<double> x, y;
  for (const PlotPoint& point : line.points) {
    x.push_back(point.x);
    y.push_back(point.y);
  }
  const auto fit = FitLogarithm(x, y);
  ASSERT_TRUE(fit.has_value());
  EXPECT_NEAR(fit->slope, 3.66, 0.1);
  EXPECT_NEAR(fit->offset, 21.9, 0.3);
}

TEST(Published, TableOneMarksWhatDivergedAtAHundredLayers) {
  std::set<std::string> diverged;
  const LinePlot plot = PublishedTable1()[0];
  for (const PlotLine& line : plot.lines) {
    if (line.points.back().diverged) diverged.insert(FindMethod(line.method).label);
  }
  EXPECT_THAT(diverged, ::testing::UnorderedElementsAre("Post-LN", "DS-Init", "Admin", "ReZero",
                                                        "R-Fixup", "T-Fixup", "NormFormer"));
}

TEST(Methods, EachHasColoursAndAnUnknownOneKeepsItsName) {
  std::set<std::string> keys;
  for (const Method& method : Methods()) {
    EXPECT_TRUE(keys.insert(method.key).second) << method.key;
    EXPECT_EQ(method.light[0], '#');
    EXPECT_EQ(method.dark[0], '#');
  }
  EXPECT_STREQ(FindMethod("other").label, "other");
}

}  // namespace
}  // namespace deepnet
