#include "trainer/probe/quantities.h"

#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/probe/experiment.h"
#include "trainer/probe/panel_plots.h"

namespace deepnet {
namespace {

LabCell Scored(const std::string& direction) {
  LabCell cell;
  EvalRecord& test = *cell.mutable_test();
  test.add_directions()->set_direction(direction);
  test.set_bleu(31.1);
  test.set_bleu_to_english(33.2);
  test.set_bleu_from_english(29.0);
  return cell;
}

TEST(Quantities, BothSidesOfEnglishAreReadOffTheTest) {
  EXPECT_EQ(CellScore(Scored("de-en"), Quantity::kTestBleuToEnglish, 0), 33.2);
  EXPECT_EQ(CellScore(Scored("en-de"), Quantity::kTestBleuFromEnglish, 0), 29.0);
}

TEST(Quantities, ASideWithoutADirectionHasNoScore) {
  EXPECT_EQ(CellScore(Scored("en-de"), Quantity::kTestBleuToEnglish, 0), std::nullopt);
  EXPECT_EQ(CellScore(Scored("de-en"), Quantity::kTestBleuFromEnglish, 0), std::nullopt);
  EXPECT_EQ(CellScore(LabCell(), Quantity::kTestBleuToEnglish, 0), std::nullopt);
}

TEST(Quantities, TableTwoShowsTheColumnsOfThePaper) {
  const auto experiment = MakeExperiment("table2", {.size = LabSize::kPaper});
  ASSERT_TRUE(experiment.ok());
  std::set<Quantity> shown;
  for (const Panel& panel : experiment->panels) shown.insert(panel.quantity);
  EXPECT_THAT(shown, ::testing::IsSupersetOf({Quantity::kTestBleu, Quantity::kTestBleuToEnglish,
                                              Quantity::kTestBleuFromEnglish}));
}

TEST(Quantities, OfLossesTheLowOnesAreGoodAndOfNothingElse) {
  for (const Quantity quantity : {Quantity::kTestNll, Quantity::kTrainNll, Quantity::kDevNll}) {
    EXPECT_TRUE(IsLoss(quantity));
    EXPECT_FALSE(IsTestBleu(quantity));
  }
  EXPECT_TRUE(IsTestBleu(Quantity::kTestBleuToEnglish));
  EXPECT_FALSE(IsLoss(Quantity::kModelUpdate));
}

TEST(Quantities, ALossThatNothingLearnsAtIsACrossAndNoScaleOfThePlot) {
  const auto experiment = MakeExperiment("ablation", {});
  ASSERT_TRUE(experiment.ok());
  LabResult result;
  for (const auto& [series, nll] : {std::pair("deepnet", 5.29), std::pair("neither", 1.4e7)}) {
    LabCell& cell = *result.add_cells();
    cell.set_status(CELL_DONE);
    cell.set_series(series);
    cell.set_x(18);
    cell.mutable_test()->add_directions()->set_direction("es-en");
    cell.mutable_test()->set_nll(nll);
  }
  const std::string svg = DrawPanel(result, experiment->panels[0], "id");
  EXPECT_THAT(svg, ::testing::HasSubstr("✕ neither"));
  EXPECT_THAT(svg, ::testing::Not(::testing::HasSubstr("00,000")));
  EXPECT_EQ(QuantityText(Quantity::kTestNll, 1.4e7), "14,000,000");
  EXPECT_EQ(QuantityText(Quantity::kTestNll, 5.29), "5.29");
}

}  // namespace
}  // namespace deepnet
