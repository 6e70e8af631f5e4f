#include "parallel/plan/inventory.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kSourceRows = 3, kTargetRows = 5, kWidth = 2;

BoundaryTensor Hidden(int64_t rows) {
  return {std::string(kHidden), {rows, kWidth}, "float32", true};
}
BoundaryTensor Memory() { return {"encoder_output", {kSourceRows, kWidth}, "float32", true}; }

// Layers: source embedding, encoder layers, target embedding, decoder layers, output.
Inventory MakeInventory(int encoders, int decoders) {
  Inventory inventory;
  const auto add = [&](std::vector<BoundaryTensor> inputs) {
    inventory.layers.emplace_back().inputs = std::move(inputs);
  };
  add({});
  for (int i = 0; i < encoders; ++i) add({Hidden(kSourceRows)});
  add({Memory()});
  for (int i = 0; i < decoders; ++i) add({Memory(), Hidden(kTargetRows)});
  add({Hidden(kTargetRows)});
  return inventory;
}

// Per chunk "names forward / names backward".
std::vector<std::string> Names(const std::vector<StageMessages>& messages) {
  std::vector<std::string> names;
  const auto join = [](const std::vector<BoundaryTensor>& tensors) {
    return absl::StrJoin(tensors, "+", [](std::string* out, const BoundaryTensor& t) {
      absl::StrAppend(out, t.name);
    });
  };
  for (const StageMessages& c : messages) {
    names.push_back(absl::StrCat(join(c.forward), "/", join(c.backward)));
  }
  return names;
}

TEST(Select, APartHasItsParametersInARowAndWhatAllLayersShare) {
  Inventory whole;
  whole.parameters = {{.name = "a", .shape = {2}},
                      {.name = "b", .shape = {3}, .offset = 2},
                      {.name = "c", .shape = {4, 5}, .offset = 5}};
  whole.layers = {{.name = "first", .parameters = {0}},
                  {.name = "second", .parameters = {1, 2}},
                  {.name = "third", .parameters = {2}}};
  whole.batch_bytes = 7;
  const Inventory part = Select(whole, std::vector<LayerSpan>{{1, 3}});
  ASSERT_EQ(part.parameters.size(), 2u);
  EXPECT_EQ(part.parameters[0].offset, 0);
  EXPECT_EQ(part.parameters[1].offset, 3);
  EXPECT_THAT(part.layers.at(0).parameters, ElementsAre(0, 1));
  EXPECT_THAT(part.layers.at(1).parameters, ElementsAre(1));
  EXPECT_EQ(part.batch_bytes, 7);
}

TEST(StageMessages, EncoderCutsCarryTheHiddenStreamAndDecoderCutsTheMemoryToo) {
  // embedding encoder | encoder target decoder | decoder output
  EXPECT_THAT(
      Names(MakeStageMessages(MakeInventory(2, 2), std::vector<int>{2, 5, 7}, MakeLooped(3, 1))),
      ElementsAre("/", "hidden/hidden", "encoder_output+hidden/encoder_output+hidden"));
}

TEST(StageMessages, TheMemoryTravelsOncePerRankButItsGradientOverEveryDecoderCut) {
  // One layer a chunk, 2 ranks: chunk 3 (target embedding) is rank 1's first to need the encoder's
  // output; rank 0 made it in chunk 2.
  EXPECT_THAT(Names(MakeStageMessages(MakeInventory(2, 3), std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8},
                                      MakeLooped(2, 4))),
              ElementsAre("/", "hidden/hidden", "hidden/hidden", "encoder_output/encoder_output",
                          "hidden/encoder_output+hidden", "hidden/encoder_output+hidden",
                          "hidden/encoder_output+hidden", "hidden/hidden"));
}

TEST(StageMessages, ARankThatReceivedTheMemoryNeedsItNoMoreOnALaterLap) {
  EXPECT_THAT(
      Names(MakeStageMessages(MakeInventory(1, 6), std::vector<int>{2, 4, 5, 6, 7, 10},
                              MakeLooped(3, 2))),
      ElementsAre("/", "encoder_output/encoder_output",
                  "encoder_output+hidden/encoder_output+hidden", "hidden/encoder_output+hidden",
                  "hidden/encoder_output+hidden", "hidden/encoder_output+hidden"));
}

TEST(StageMessages, NothingCrossesWhereBothSidesAreOnOneRank) {
  EXPECT_THAT(
      Names(MakeStageMessages(MakeInventory(2, 2), std::vector<int>{1, 3, 5, 7}, MakeV(2, 2))),
      ElementsAre("/", "hidden/hidden", "/", "encoder_output+hidden/encoder_output+hidden"));
}

TEST(StageMessages, TheMemoryHasTheTypeOfOperandsAndGradientsAreFloat32) {
  const std::vector<StageMessages> messages =
      MakeStageMessages(MakeInventory(2, 2), std::vector<int>{4, 7}, MakeLooped(2, 1), "bfloat16");
  const StageMessages& cut = messages[1];
  EXPECT_EQ(cut.forward[0].dtype, "bfloat16");
  EXPECT_EQ(cut.forward[1].dtype, "float32");
  EXPECT_EQ(BytesOf(cut.forward), 2 * kSourceRows * kWidth + 4 * kTargetRows * kWidth);
  EXPECT_EQ(BytesOf(cut.backward), 4 * (kSourceRows + kTargetRows) * kWidth);
}

TEST(StageMessages, WhatNeedsNoGradientDoesNotTravelBack) {
  Inventory inventory = MakeInventory(1, 2);
  for (Layer& layer : inventory.layers) {
    for (BoundaryTensor& input : layer.inputs) input.needs_gradient = input.name == kHidden;
  }
  EXPECT_THAT(Names(MakeStageMessages(inventory, std::vector<int>{4, 6}, MakeLooped(2, 1))),
              ElementsAre("/", "encoder_output+hidden/hidden"));
}

}  // namespace

}  // namespace deepnet
