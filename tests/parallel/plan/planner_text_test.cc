#include "parallel/plan/planner_text.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// F, I and W take a second of each rank.
Simulation Simulated(std::string_view name, const PipelineShape& shape) {
  const Placement placement = *MakeNamedPlacement(name, shape);
  const double seconds = 1.0 / shape.virtual_pipeline_size;
  const std::vector<ChunkCost> costs(
      placement.NumChunks(),
      {.forward = seconds, .backward_input = seconds, .backward_weight = seconds});
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

// The pictures of docs/design/pipeline.md. One that differs is written anew to the folder for
// temporary files, to be looked at and copied.
void ExpectPicture(const std::string& name, const std::string& svg) {
  std::ifstream file("docs/design/pictures/" + name);
  std::stringstream have;
  have << file.rdbuf();
  if (have.str() == svg) return;
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << svg;
  ADD_FAILURE() << "docs/design/pictures/" << name << " is not what the program draws: " << path;
}

TEST(ScheduleDrawing, PicturesOfTheDocumentsAreWhatTheProgramDraws) {
  ExpectPicture("1f1b.svg", DrawSvg(Simulated("1f1b", {4, 8, 1}), "1f1b"));
  ExpectPicture("interleaved.svg", DrawSvg(Simulated("interleaved", {4, 8, 2}), "interleaved"));
  ExpectPicture("zb-h1.svg", DrawSvg(Simulated("zb-h1", {4, 8, 1}), "zb-h1"));
  ExpectPicture("zb-v.svg", DrawSvg(Simulated("zb-v", {4, 8, 2}), "zb-v"));
}

// 500-500, d = 512, 250,002 rows, 8 ranks, 32 microbatches of 4,096 + 4,096 positions, with the
// seconds and the cut that `plan` has for H100s in bfloat16 (docs/design/roofline.md).
TEST(ScheduleDrawing, PicturesOfTheThousandLayersAreWhatTheProgramDraws) {
  const auto chunk = [](int encoder_layers, int decoder_layers, double output = 0) {
    return ChunkCost{.forward = encoder_layers * 99.2e-6 + decoder_layers * 157.6e-6 + output,
                     .backward_input = encoder_layers * 228.8e-6 + decoder_layers * 395.9e-6,
                     .backward_weight = encoder_layers * 82.3e-6 + decoder_layers * 136.8e-6};
  };
  constexpr double kOutput = 9.66e-3;
  std::vector<ChunkCost> costs(4, chunk(125, 0));
  costs.resize(7, chunk(0, 125));
  costs.push_back(chunk(0, 125, kOutput));
  ExpectPicture("500-500_halves.svg",
                DrawSvg(*Simulate(*MakeNamedSchedule("1f1b", {8, 32, 1}), MakeLooped(8, 1), costs),
                        "500-500 on H100s, predicted: equal numbers of layers, 1f1b"));
  costs.clear();
  for (const int layers : {85, 87, 85, 85, 85}) costs.push_back(chunk(layers, 0));
  costs.push_back(chunk(73, 8));
  for (const int layers : {50, 50, 51, 51, 50, 51, 51, 51, 50}) costs.push_back(chunk(0, layers));
  costs.push_back(chunk(0, 37, kOutput));
  ExpectPicture("500-500_zb-v.svg", DrawSvg(*Simulate(*MakeNamedSchedule("zb-v", {8, 32, 2}, costs),
                                                      MakeV(8, 2), costs),
                                            "500-500 on H100s, predicted: cut by cost, zb-v"));
}

}  // namespace
}  // namespace deepnet
