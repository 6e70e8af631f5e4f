#include "trainer/probe/findings.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/probe/sample_results.h"
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

TEST(Verdict, WhatWasOnlyScoredIsNotCalledTooShort) {
  LabCell cell;
  cell.set_status(CELL_DONE);
  cell.mutable_test()->add_directions();
  EXPECT_EQ(Judge(cell, Data()), Verdict::kTooShort);
  EXPECT_EQ(VerdictText(cell, Data()), "scored, not trained here");
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

// Table 1 to 50 layers a side, however deep the experiment goes.
LabResult Table1(int seeds) {
  LabResult result = SampleResult("table1", seeds);
  auto* cells = result.mutable_cells();
  cells->erase(std::remove_if(cells->begin(), cells->end(),
                              [](const LabCell& cell) { return cell.x() > 50; }),
               cells->end());
  return result;
}

TEST(Findings, SayWhoLearnedAtTheGreatestDepth) {
  const LabResult result = Table1(2);
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr("At 50 layers a side (nats a token): learned: DeepNet 5.9"));
  EXPECT_THAT(text, HasSubstr("word frequencies only: Post-LN"));
  EXPECT_THAT(text, HasSubstr("Did not train in the paper, and did not learn here: Post-LN at 18"));
}

// The cell of table 1 called `name`.
LabCell* Find(LabResult* result, const std::string& name) {
  for (LabCell& cell : *result->mutable_cells()) {
    if (cell.name() == name) return &cell;
  }
  ADD_FAILURE() << name;
  return nullptr;
}

// Ends it as Post-LN ends: at what word frequencies give.
void Unlearn(LabCell* cell) { cell->mutable_test()->set_nll(6.16); }

void Fail(LabCell* cell) {
  cell->set_status(CELL_FAILED);
  cell->set_exit_code(6);
  cell->clear_test();
}

TEST(Findings, AFailedRunIsNoEvidenceForThePaperOrAgainstIt) {
  LabResult result = Table1(1);
  Fail(Find(&result, "post-ln-50-s1"));
  Fail(Find(&result, "deepnet-50-s1"));
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr("did not learn here: Post-LN at 18 (0 of 1 seed)"));
  EXPECT_THAT(text, Not(HasSubstr("Trained in the paper, but")));
}

TEST(Findings, ARunThatIsTooShortIsNoEvidenceEither) {
  LabResult result = Table1(1);
  LabCell* cell = Find(&result, "post-ln-50-s1");
  cell->mutable_steps()->DeleteSubrange(5, cell->steps_size() - 5);
  EXPECT_THAT(AllFindings(result), HasSubstr("Post-LN at 18 (0 of 1 seed)"));
}

TEST(Findings, OneSeedOfThreeIsNotCalledLearning) {
  LabResult result = Table1(3);
  Unlearn(Find(&result, "ds-init-50-s1"));
  Unlearn(Find(&result, "ds-init-50-s2"));
  Fail(Find(&result, "admin-50-s3"));
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr("Did not train in the paper; here, some seeds learned, with other "
                              "sizes, data and steps: DS-Init at 50 (1 of 3 seeds)"));
  EXPECT_THAT(text, HasSubstr("Admin at 50 (2 of 2 seeds)"));
}

TEST(Findings, WhatThePaperTrainedAndThisRunDidNotIsSaidToo) {
  LabResult result = Table1(3);
  for (const char* seed : {"1", "2", "3"})
    Unlearn(Find(&result, absl::StrCat("pre-ln-50-s", seed)));
  Unlearn(Find(&result, "dlcl-18-s2"));
  const std::string text = AllFindings(result);
  EXPECT_THAT(text,
              HasSubstr("Trained in the paper, but did not learn here, with other sizes, data "
                        "and steps: Pre-LN at 50 (0 of 3 seeds)"));
  EXPECT_THAT(text, HasSubstr("Trained in the paper; here, only some seeds learned, with other "
                              "sizes, data and steps: DLCL at 18 (2 of 3 seeds)"));
}

TEST(Findings, APublishedScoreThatIsHalfATranslationIsCalledNeither) {
  LabResult result = SampleResult("fig6", 1);
  for (LabCell& cell : *result.mutable_cells()) Unlearn(&cell);
  const std::string text = AllFindings(result);  // at 50 layers: DS-Init 13.1 of 31.7 BLEU
  EXPECT_THAT(text, HasSubstr("Pre-LN at 50 (0 of 1 seed)"));
  EXPECT_THAT(text, Not(HasSubstr("DS-Init at 50")));
}

TEST(Findings, EveryVerdictHasTheSpreadOfItsOwnSeeds) {
  LabResult result = Table1(3);
  Find(&result, "pre-ln-50-s1")->mutable_test()->set_nll(5.40);
  Find(&result, "pre-ln-50-s2")->mutable_test()->set_nll(5.90);
  Find(&result, "pre-ln-50-s3")->mutable_test()->set_nll(6.14);
  const std::string text = AllFindings(result);
  EXPECT_THAT(text, HasSubstr("Pre-LN 5.65 (2 of 3 seeds, 5.40 to 5.90)"));
  EXPECT_THAT(text, HasSubstr("Pre-LN 6.14 (1 of 3 seeds)"));
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

TEST(Findings, OfAGridItsEndsAndWhereItDidNotLearn) {
  LabResult result = SampleResult("tuning", 1);
  for (LabCell& cell : *result.mutable_cells()) {
    cell.mutable_test()->set_nll(5 + 0.1 * cell.x() + 0.01 * cell.y());
  }
  LabCell& gone = *result.mutable_cells(0);
  gone.set_status(CELL_DIVERGED);
  gone.clear_test();
  EXPECT_THAT(AllFindings(result),
              AllOf(HasSubstr("Lowest (nats a token): 5.06 at alpha times 0.5, beta times 1; "
                              "highest: 5.24 at alpha times 2, beta times 4."),
                    HasSubstr("Diverged: at alpha times 0.5, beta times 0.5.")));
}

TEST(Findings, OfAGridWithSeedsHowManyDidNotLearn) {
  LabResult result = SampleResult("tuning", 3);
  for (const int cell : {0, 1}) {  // two seeds of one place
    result.mutable_cells(cell)->set_status(CELL_DIVERGED);
    result.mutable_cells(cell)->clear_test();
  }
  EXPECT_THAT(AllFindings(result),
              HasSubstr("Diverged: at alpha times 0.5, beta times 0.5 (2 of 3 seeds)."));
}

TEST(Findings, ATerminalGetsTheSameSentencesWithoutMarkup) {
  const LabResult result = SampleResult("table1", 2);
  const std::string text = FindingsText(result);
  for (const std::string& sentence : Findings(ExperimentOf(result), result)) {
    EXPECT_THAT(text, HasSubstr("\n- " + sentence + "\n"));
  }
  EXPECT_THAT(text, AllOf(Not(HasSubstr("<")), Not(HasSubstr("&"))));
}

}  // namespace
}  // namespace deepnet
