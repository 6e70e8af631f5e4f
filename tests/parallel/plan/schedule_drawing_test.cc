#include "parallel/plan/schedule_drawing.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Simulation Simulated(std::string_view name, const PipelineShape& shape) {
  const Placement placement = *MakeNamedPlacement(name, shape);
  const std::vector<ChunkCost> costs(placement.NumChunks(),
                                     {.forward = 1, .backward_input = 1, .backward_weight = 1});
  return *Simulate(*MakeNamedSchedule(name, shape, costs), placement, costs);
}

TEST(ScheduleDrawing, GridShowsWhatEachRankDoesWhen) {
  EXPECT_EQ(DrawGrid(Simulated("1f1b", {2, 3, 1}), 12),
            "rank 0 |FF..BBFBB.BB\n"
            "rank 1 |.FBBFBBFBB..\n");
}

TEST(ScheduleDrawing, GridWritesEverySecondChunkInLowerCase) {
  EXPECT_EQ(DrawGrid(Simulated("zb-v", {2, 3, 2}), 19),
            "rank 0 |FFFfiwfiwIWfiwIWIW.\n"
            "rank 1 |.FfFfiwFIWfiwIiIWwW\n");
}

TEST(ScheduleDrawing, GridAlignsRanks) {
  const std::string grid = DrawGrid(Simulated("1f1b", {11, 1, 1}), 33);
  EXPECT_THAT(grid, HasSubstr("rank  9 |"));
  EXPECT_THAT(grid, HasSubstr("rank 10 |"));
}

TEST(ScheduleDrawing, SvgHasARowPerRankALegendAndTheBubble) {
  const std::string svg = DrawSvg(Simulated("zb-v", {3, 5, 2}), "a < b & c");
  EXPECT_THAT(svg, HasSubstr("<svg xmlns="));
  for (const char* part : {"rank 0<", "rank 2<", "F, chunk 1<", "W, chunk 2<", "bubble 6.2 %",
                           "a &lt; b &amp; c", "</svg>\n"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
  EXPECT_THAT(svg, Not(HasSubstr("chunk 3")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace deepnet
