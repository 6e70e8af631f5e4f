#include "trainer/probe/published.h"

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/probe/experiment.h"
#include "trainer/probe/methods.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PublishedSettings SettingsOf(const std::string& name) {
  const auto experiment = MakeExperiment(name, {});
  EXPECT_TRUE(experiment.ok()) << experiment.status();
  return experiment->paper;
}

TEST(Published, FiguresOfTheCauseHaveTheirOwnSettings) {
  EXPECT_THAT(SettingsOf("fig3").depth, HasSubstr("18"));
  EXPECT_EQ(SettingsOf("fig4").depth, "18");
  EXPECT_EQ(SettingsOf("fig4").steps, "30 are shown");
  EXPECT_EQ(SettingsOf("fig5").depth, "6 to 100");
  EXPECT_EQ(SettingsOf("fig5").width, "64 / 128 / 2");
  EXPECT_EQ(SettingsOf("fig5").steps, "not published");
  for (const char* name : {"fig3", "fig4", "fig5"}) {
    EXPECT_THAT(SettingsOf(name).metric, Not(HasSubstr("BLEU"))) << name;
    EXPECT_NE(SettingsOf(name).steps, Iwslt14Settings().steps) << name;
  }
  EXPECT_THAT(SettingsOf("fig6").metric, HasSubstr("BLEU"));
}

TEST(Published, FigureSevensRatesAreThere) {
  EXPECT_THAT(Wmt17Settings().rate, AllOf(HasSubstr("figure 7c: 5e-4"), HasSubstr("1.5e-3")));
}

TEST(Published, WhatThePaperDoesNotSayIsCalledInferred) {
  for (const std::string& text :
       {Iwslt14Settings().corpus, Wmt17Settings().corpus, Opus100Settings().vocabulary,
        Opus100Settings().steps, Languages102Settings().vocabulary}) {
    EXPECT_THAT(text, HasSubstr("(inferred)"));
  }
}

TEST(Published, DeepPostLnOfFigureFiveIsARange) {
  const LinePlot plot = PublishedFigure5()[0];
  ASSERT_EQ(plot.bands.size(), 1u);
  EXPECT_EQ(plot.bands[0].left, 60);
  EXPECT_EQ(plot.bands[0].right, 100);
  EXPECT_EQ(plot.bands[0].low, 0.1);
  EXPECT_EQ(plot.bands[0].high, 0.47);
  EXPECT_THAT(DrawLinePlot(plot),
              AllOf(HasSubstr("class=\"band m-post-ln\""), HasSubstr("between 0.1 and 0.47")));
}

TEST(Methods, NoTwoLookAlike) {
  std::set<std::tuple<std::string, std::string>> light, dark;
  for (const Method& method : Methods()) {
    EXPECT_TRUE(light.insert({method.light, method.dash}).second) << method.key;
    EXPECT_TRUE(dark.insert({method.dark, method.dash}).second) << method.key;
  }
}

TEST(Methods, ThePapersTenAllExist) {
  EXPECT_EQ(PaperMethods().size(), 10u);
  for (const std::string& key : PaperMethods()) EXPECT_STRNE(FindMethod(key).residual, "") << key;
}

// The first depth of table 1 at which a method has no score; 0: it has one everywhere.
int FirstFailure(const PlotLine& line) {
  for (const PlotPoint& point : line.points) {
    if (point.diverged) return static_cast<int>(point.x);
  }
  return 0;
}

TEST(Published, ResidualsMdSaysWhatTableOneSaysOfWhoFailsWhere) {
  std::map<int, std::string> documented;  // depth, and its row's methods
  std::ifstream file("docs/design/residuals.md");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    inside = inside ? !line.empty() : line == "| diverged at | schemes |";
    const size_t bar = line.find('|', 1);
    if (!inside || bar == std::string::npos) continue;
    documented[std::atoi(line.c_str() + 1)] = line.substr(bar);
  }
  ASSERT_EQ(documented.size(), 4u);  // 18, 50, 100, and never
  const std::vector<LinePlot> published = PublishedTable1();
  for (const PlotLine& line : published[0].lines) {
    const std::string scheme = FindMethod(line.method).residual;
    for (const auto& [depth, schemes] : documented) {
      EXPECT_EQ(schemes.find(scheme) != std::string::npos, depth == FirstFailure(line))
          << scheme << " at " << depth;
    }
  }
}

}  // namespace
}  // namespace deepnet
