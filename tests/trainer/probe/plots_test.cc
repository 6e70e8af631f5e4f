#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/probe/axis.h"
#include "trainer/probe/heat_map.h"
#include "trainer/probe/line_plot.h"
#include "trainer/probe/markup.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Axis, PlacesEqualFactorsEquallyFarApartOnALogarithmicScale) {
  const Axis axis{.scale = Scale::kLog, .low = 1, .high = 100, .from = 0, .to = 10};
  EXPECT_DOUBLE_EQ(axis.Place(1), 0);
  EXPECT_DOUBLE_EQ(axis.Place(10), 5);
  EXPECT_DOUBLE_EQ(axis.Place(100), 10);
}

TEST(Axis, LeavesOutWhatItCannotShow) {
  const Axis axis = MakeAxis(Scale::kLog, {-1, 0, std::nan(""), 1, 100}, 0, 1);
  EXPECT_GT(axis.low, 0.5);
  EXPECT_LT(axis.high, 200);
}

TEST(Axis, TicksAreRoundAndInside) {
  EXPECT_THAT(Ticks({.low = 5.6, .high = 6.3}, 4),
              ElementsAre(DoubleEq(5.6), DoubleEq(5.8), DoubleEq(6.0), DoubleEq(6.2)));
  EXPECT_THAT(Ticks({.scale = Scale::kLog, .low = 0.0005, .high = 2000}, 8),
              ElementsAre(0.001, 0.01, 0.1, 1, 10, 100, 1000));
}

TEST(Axis, NumbersAreShort) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(28.94), "28.9");
  EXPECT_EQ(ShortNumber(0.0005), "5e-4");
  EXPECT_EQ(ShortNumber(1000), "1,000");
  EXPECT_EQ(ShortNumber(530.4, 2), "530");
  EXPECT_EQ(ShortNumber(std::nan("")), "not a number");
  EXPECT_EQ(ShortNumber(Rounded(1772152, 2)), "1,800,000");
}

TEST(LinePlot, NamesNeverTouch) {
  const std::vector<double> at = SpreadLabels({10, 11, 12, 90, 91}, 10, 0, 100);
  for (size_t i = 1; i < at.size(); ++i) EXPECT_GE(at[i] - at[i - 1], 10 - 1e-9);
  EXPECT_LE(at.back(), 100);
  EXPECT_THAT(SpreadLabels({50}, 10, 0, 100), ElementsAre(50));
}

LinePlot TwoLines() {
  return {
      .id = "p",
      .title = "a < b",
      .x_label = "layers",
      .y_label = "BLEU",
      .lines = {{.method = "deepnet", .points = {{.x = 6, .y = 27}, {.x = 18, .y = 28}}},
                {.method = "post-ln", .points = {{.x = 6, .y = 28}, {.x = 18, .diverged = true}}}}};
}

TEST(LinePlot, ADivergedCellHasACrossInARowOfItsMethodAndNoPoint) {
  const std::string svg = DrawLinePlot(TwoLines());
  EXPECT_EQ(Count(svg, "class=\"cross m-post-ln\""), 1);
  EXPECT_EQ(Count(svg, "class=\"cross m-deepnet\""), 0);
  EXPECT_EQ(Count(svg, "class=\"mark m-post-ln\""), 1);
  EXPECT_EQ(Count(svg, "class=\"mark m-deepnet\""), 2);
  EXPECT_THAT(svg, HasSubstr("\u2715 Post-LN"));
}

TEST(LinePlot, WhatIsNoNumberIsNotDrawn) {
  LinePlot plot = TwoLines();
  plot.lines[0].points[1].y = std::nan("");
  const std::string svg = DrawLinePlot(plot);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(Count(svg, "class=\"mark m-deepnet\""), 1);
}

TEST(LinePlot, NumbersBelowTheAxisDoNotTouch) {
  LinePlot plot = TwoLines();
  plot.x_ticks = {6, 6.2, 18};
  const std::string svg = DrawLinePlot(plot);
  EXPECT_THAT(svg, AllOf(HasSubstr("\">6</text>"), HasSubstr("\">18</text>")));
  EXPECT_THAT(svg, Not(HasSubstr("\">6.2</text>")));
}

TEST(LinePlot, ABandIsInsideTheAxesAndSaysWhatItIs) {
  LinePlot plot = TwoLines();
  plot.bands = {
      {.method = "post-ln", .label = "somewhere", .left = 12, .right = 24, .low = 30, .high = 40}};
  const std::string svg = DrawLinePlot(plot);
  EXPECT_THAT(svg, AllOf(HasSubstr("class=\"band m-post-ln\""), HasSubstr("somewhere")));
  EXPECT_THAT(svg, Not(HasSubstr("height=\"-")));
}

TEST(LinePlot, WithoutAPointItSaysSo) {
  EXPECT_THAT(DrawLinePlot({.id = "empty", .lines = {{.method = "deepnet"}}}),
              HasSubstr("nothing measured yet"));
}

TEST(LinePlot, TextIsEscaped) {
  EXPECT_THAT(DrawLinePlot(TwoLines()), HasSubstr("aria-label=\"a &lt; b\""));
  EXPECT_EQ(Escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
}

TEST(HeatMap, TheGoodEndHasTheStrongColour) {
  HeatMap map{
      .id = "h", .columns = {"a", "b"}, .rows = {"r"}, .values = {{5.0, 6.0}}, .low_is_good = true};
  const std::string low = DrawHeatMap(map);
  EXPECT_LT(low.find("fill-opacity=\"1\""), low.find("fill-opacity=\"0.06\""));
  map.low_is_good = false;
  const std::string high = DrawHeatMap(map);
  EXPECT_GT(high.find("fill-opacity=\"1\""), high.find("fill-opacity=\"0.06\""));
}

TEST(HeatMap, MissingValuesAreBlankOrSayWhy) {
  const std::string svg = DrawHeatMap({.id = "h",
                                       .columns = {"a", "b"},
                                       .rows = {"r"},
                                       .values = {{std::nullopt, 1.0}},
                                       .words = {{"diverged", ""}}});
  EXPECT_EQ(Count(svg, "class=\"blank\""), 1);
  EXPECT_THAT(svg, HasSubstr("r, a: diverged</title>"));
  EXPECT_THAT(svg, HasSubstr(">\u2715</text>"));
}

TEST(HeatMap, OfManyNamesOnlyAsManyAreWrittenAsThereIsRoomFor) {
  HeatMap map{.id = "h", .rows = {"r"}, .values = {std::vector<std::optional<double>>(100, 1.0)}};
  for (int i = 0; i < 100; ++i) map.columns.push_back("x" + std::to_string(10 + i));
  const std::string svg = DrawHeatMap(map);
  EXPECT_EQ(Count(svg, "class=\"heat\""), 100);
  EXPECT_LE(Count(svg, "class=\"tick mid\""), 10);  // each 40 units wide, of 370
  EXPECT_GE(Count(svg, "class=\"tick mid\""), 8);
}

}  // namespace
}  // namespace deepnet
