#include "trainer/probe/findings.h"

#include <limits>
#include <string>

#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/probe/sample_results.h"
#include "trainer/probe/report.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleResult;

// A corpus of whose words 6.15 nats are known, wherever one looks.
LabData Data(double frequencies = 6.15) {
  LabData data;
  data.set_word_frequency_nll(frequencies);
  data.set_word_frequency_dev_nll(frequencies);
  data.set_word_frequency_test_nll(frequencies);
  return data;
}

// A cell of 300 steps whose losses fall from 8.9 to `middle` and end at `last`.
LabCell Cell(double middle, double last) {
  LabCell cell;
  cell.set_status(CELL_DONE);
  for (int step = 10; step <= 300; step += 10) {
    StepRecord& record = *cell.add_steps();
    record.set_step(step);
    record.set_nll(step < 50 ? 8.9 : step < 200 ? middle : last);
  }
  return cell;
}

TEST(Verdict, FollowsFromTheLosses) {
  EXPECT_EQ(Judge(Cell(6.5, 5.8), Data()), Verdict::kLearned);
  EXPECT_EQ(Judge(Cell(6.5, 6.14), Data()), Verdict::kWordFrequencies);
  EXPECT_EQ(Judge(Cell(8.9, 8.85), Data()), Verdict::kStuck);
  EXPECT_EQ(Judge(Cell(5.5, 6.0), Data()), Verdict::kRoseAgain);
}

TEST(Verdict, WithoutWordFrequenciesNothingIsSaidOfThem) {
  EXPECT_EQ(Judge(Cell(6.5, 6.14), Data(0)), Verdict::kLearned);
}

TEST(Verdict, AFewStepsAreNotJudged) {
  LabCell cell = Cell(8.9, 8.9);
  cell.mutable_steps()->DeleteSubrange(5, cell.steps_size() - 5);
  EXPECT_EQ(Judge(cell, Data()), Verdict::kTooShort);
}

TEST(Verdict, ADivergedCellIsNotAFailedOne) {
  LabCell cell = Cell(6.5, std::numeric_limits<double>::quiet_NaN());
  cell.set_status(CELL_DIVERGED);
  EXPECT_EQ(Judge(cell, Data()), Verdict::kDiverged);
  EXPECT_EQ(VerdictText(cell, Data()), "diverged: not finite after step 300");
  cell.set_status(CELL_FAILED);
  cell.set_exit_code(6);
  cell.set_error("error: does not fit");
  EXPECT_EQ(VerdictText(cell, Data()), "failed, exit code 6: error: does not fit");
}

TEST(Verdict, HeldOutTextCountsMoreThanTraining) {
  LabCell cell = Cell(6.5, 5.0);
  cell.mutable_test()->add_directions();
  cell.mutable_test()->set_nll(6.2);
  EXPECT_EQ(Judge(cell, Data()), Verdict::kWordFrequencies);
}

std::string AllFindings(const LabResult& result) {
  return absl::StrJoin(Findings(ExperimentOf(result), result), "\n");
}

TEST(Findings, SayWhoLearnedAtTheGreatestDepth) {
  const LabResult result = SampleResult("table1", 2);
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr("At 100 layers a side, learned: DeepNet (5.9"));
  EXPECT_THAT(text, HasSubstr("word frequencies only: Post-LN"));
  EXPECT_THAT(text, HasSubstr("Did not learn in the paper, and not here: Post-LN at 18"));
}

TEST(Findings, NameWhatIsMissing) {
  LabResult result = SampleResult("fig6", 1);
  result.mutable_cells()->DeleteSubrange(1, result.cells_size() - 1);
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr(" not run yet"));
  EXPECT_THAT(text, HasSubstr("In the paper's figure, but not run here: Post-LN"));
}

TEST(Findings, OneSeedHasNoSpread) {
  EXPECT_THAT(AllFindings(SampleResult("fig6", 1)), HasSubstr("One seed each"));
  EXPECT_THAT(AllFindings(SampleResult("fig6", 2)),
              AllOf(HasSubstr("Seeds lie at most 0.013 apart"), Not(HasSubstr("One seed each"))));
}

TEST(Findings, TheFitHasItsErrors) {
  EXPECT_THAT(AllFindings(SampleResult("fig8", 1)),
              HasSubstr("DeepNet: (-0.060 ± 0.000) log10(layers in all)"));
}

TEST(Findings, RatiosOverDepthAreOfTheModelUpdate) {
  EXPECT_THAT(AllFindings(SampleResult("fig5", 1)),
              HasSubstr("Post-LN: the largest over depth is 17 times the smallest."));
}

TEST(Findings, ATerminalGetsTheSameSentencesWithoutMarkup) {
  const LabResult result = SampleResult("table1", 2);
  const std::string text = FindingsText(result);
  for (const std::string& sentence : Findings(ExperimentOf(result), result)) {
    EXPECT_THAT(text, HasSubstr("\n- " + sentence + "\n"));
  }
  EXPECT_THAT(text, AllOf(Not(HasSubstr("<")), Not(HasSubstr("&"))));
}

TEST(Differences, RowsThatSayTheSameAreLeftOut) {
  LabResult result = SampleResult("fig6", 1);
  for (LabCell& cell : *result.mutable_cells())
    cell.mutable_run()->mutable_train()->set_steps(8000);
  for (const Difference& row : Differences(ExperimentOf(result), result)) {
    EXPECT_NE(row.what, "steps");
    EXPECT_NE(row.paper, row.here);
  }
}

}  // namespace
}  // namespace deepnet
