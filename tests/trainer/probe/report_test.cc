#include "trainer/probe/report.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/probe/sample_results.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleResult;

TEST(Report, HoldsEveryDrawingOnce) {
  for (const std::string& name : ExperimentNames()) {
    const LabResult result = SampleResult(name, 1);
    const std::string html = MakeReport({&result, 1});
    std::set<std::string> ids;
    for (const std::string& id : ReportDrawings(result)) {
      EXPECT_TRUE(ids.insert(id).second) << id;
      const std::string tag = "<svg id=\"" + id + "\"";
      EXPECT_NE(html.find(tag), std::string::npos) << id;
      EXPECT_EQ(html.find(tag), html.rfind(tag)) << id;
    }
  }
}

TEST(Report, NeedsNothingElse) {
  const LabResult result = SampleResult("fig6", 1);
  const std::string html = MakeReport({&result, 1});
  for (const char* foreign : {"<script", "http:", "https:", "@import", "url(", "src="}) {
    EXPECT_THAT(html, Not(HasSubstr(foreign)));
  }
}

TEST(Report, TheSameResultsGiveTheSameBytes) {
  const LabResult result = SampleResult("table3", 1);
  EXPECT_EQ(MakeReport({&result, 1}), MakeReport({&result, 1}));
}

// Two matrices side by side: the weaker one must not look as strong.
TEST(Report, MatricesHaveOneScale) {
  LabResult result = SampleResult("table3", 1);  // the first cell is deeper and stands second
  for (DirectionScore& score : *result.mutable_cells(0)->mutable_test()->mutable_directions()) {
    score.set_spbleu(0.1 * score.spbleu());
  }
  const std::string html = MakeReport({&result, 1});
  const size_t second = html.find("<svg", html.find("<svg") + 4);
  EXPECT_THAT(html.substr(0, second), HasSubstr("fill-opacity=\"1\""));
  EXPECT_THAT(html.substr(second), Not(HasSubstr("fill-opacity=\"1\"")));
}

TEST(Report, AMatrixWithoutScoresSaysSoBesideOneThatHasThem) {
  LabResult result = SampleResult("table3", 1);
  result.mutable_cells(0)->set_status(CELL_FAILED);
  result.mutable_cells(0)->clear_test();
  EXPECT_THAT(MakeReport({&result, 1}), HasSubstr("nothing measured yet"));
}

TEST(Report, StatesWhatDiffersAndTheCommands) {
  const LabResult result = SampleResult("table1", 1);
  const std::string html = MakeReport({&result, 1});
  EXPECT_THAT(html, HasSubstr("What differs from the paper"));
  EXPECT_THAT(html, HasSubstr("WMT-17 English-German"));
  EXPECT_THAT(html, HasSubstr("deepnet lab run table1"));
  EXPECT_THAT(html, HasSubstr("deepnet train --config lab/small.textproto"));
}

TEST(Report, SeveralExperimentsStandOneBelowTheOther) {
  const std::vector<LabResult> results = {SampleResult("fig5", 1), SampleResult("fig6", 1)};
  const std::string html = MakeReport(results);
  EXPECT_LT(html.find("<section id=\"fig5\">"), html.find("<section id=\"fig6\">"));
  EXPECT_THAT(html, HasSubstr("<a href=\"#fig6\">"));
}

TEST(Report, AnExperimentWithoutOneCellStillHasItsPage) {
  LabResult result = SampleResult("fig6", 1);
  result.clear_cells();
  EXPECT_THAT(MakeReport({&result, 1}), HasSubstr("nothing measured yet"));
}

TEST(Report, WordsOfRunsCannotBreakThePage) {
  LabResult result = SampleResult("fig6", 1);
  result.mutable_cells(0)->set_status(CELL_FAILED);
  result.mutable_cells(0)->set_error("<b>\"quoted\" & gone");
  EXPECT_THAT(MakeReport({&result, 1}), HasSubstr("&lt;b&gt;&quot;quoted&quot; &amp; gone"));
}

TEST(Report, ATableSaysHowManySeedsDidNotLearn) {
  LabResult result = SampleResult("fig6", 3);
  for (LabCell& cell : *result.mutable_cells()) {
    if (cell.name() == "deepnet-6-s2") cell.mutable_test()->set_nll(6.2);
  }
  EXPECT_THAT(MakeReport({&result, 1}), HasSubstr(", word frequencies only: 1 of 3</td>"));
}

}  // namespace
}  // namespace deepnet
