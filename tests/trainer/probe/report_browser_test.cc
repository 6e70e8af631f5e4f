// The report in a real browser: every plot drawn, its texts large enough and apart, nothing on the
// console, no scrolling sideways, at the width of a desk and of two telephones. Needs `chromium`
// (or the program that DEEPNET_BROWSER names) and fails without one: ctest label "browser".
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/trainer/data/temp_folder.h"
#include "tests/trainer/probe/sample_results.h"
#include "trainer/probe/markup.h"
#include "trainer/probe/report.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::SampleResult;

// In a frame, because a browser's window cannot be as narrow as a telephone. What the page is, as
// one attribute: its widths, for each drawing its width and height as laid out, and of the texts
// inside drawings the smallest height and those that touch another or leave their figure.
constexpr char kFrame[] = R"(<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,">
<body style="margin:0"><iframe style="border:0;width:%WIDTH%px;height:900px" srcdoc="%PAGE%"></iframe>
<script>
const kTouch = 3;  // pixels by which boxes of letters may overlap: they are higher than letters
onload = () => {
  const page = frames[0].document, root = page.documentElement, drawings = {}, wrong = [];
  const fontSize = e => parseFloat(frames[0].getComputedStyle(e).fontSize);
  let smallest = 1000;
  for (const svg of page.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), figure = svg.closest("figure").getBoundingClientRect();
    drawings[svg.id] = {width: box.width, height: box.height, shapes: svg.children.length};
    const texts = [...svg.querySelectorAll("text")].map(e => [e.textContent, e.getBoundingClientRect()]);
    for (const e of svg.querySelectorAll("text")) {
      smallest = Math.min(smallest, fontSize(e) * svg.getScreenCTM().a);
    }
    texts.forEach(([name, a], i) => {
      if (a.left < figure.left || a.right > figure.right) wrong.push(svg.id + ": " + name + " leaves");
      for (const [other, b] of texts.slice(i + 1)) {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > kTouch && down > kTouch) wrong.push(svg.id + ": " + name + " touches " + other);
      }
    });
  }
  const small = [...page.querySelectorAll("p, li, td, th, figcaption")].filter(e => fontSize(e) < 13).length;
  document.body.dataset.found = JSON.stringify({inner: frames[0].innerWidth, scroll: root.scrollWidth,
      count: page.querySelectorAll("svg").length, small: small, smallest: smallest,
      wrong: wrong.join("; "), drawings: drawings});
};
</script></body>)";

struct Page {
  google::protobuf::Struct found;  // as the script above says
  std::string console;

  double Number(const std::string& name) const { return found.fields().at(name).number_value(); }
  double Drawing(const std::string& id, const std::string& name) const {
    return found.fields()
        .at("drawings")
        .struct_value()
        .fields()
        .at(id)
        .struct_value()
        .fields()
        .at(name)
        .number_value();
  }
  std::string Text(const std::string& name) const { return found.fields().at(name).string_value(); }
  bool HasDrawing(const std::string& id) const {
    return found.fields().at("drawings").struct_value().fields().contains(id);
  }
};

std::string Browser() {
  const char* named = std::getenv("DEEPNET_BROWSER");
  return named != nullptr ? named : "chromium";
}

std::vector<LabResult> AllResults() {
  std::vector<LabResult> results;
  for (const std::string& name : ExperimentNames()) results.push_back(SampleResult(name, 2));
  return results;
}

// The value of data-found, entities undone.
std::string Found(const std::string& output) {
  const std::string key = "data-found=\"";
  const size_t start = output.find(key);
  if (start == std::string::npos) return "";
  const size_t from = start + key.size();
  return absl::StrReplaceAll(output.substr(from, output.find('"', from) - from),
                             {{"&quot;", "\""}, {"&amp;", "&"}});
}

Page OpenPage(const testing::TempFolder& folder, const std::vector<LabResult>& results, int width) {
  const std::string file = folder.Write(
      "frame.html", absl::StrReplaceAll(kFrame, {{"%WIDTH%", absl::StrCat(width)},
                                                 {"%PAGE%", Escaped(MakeReport(results))}}));
  const testing::ChildOutcome outcome =
      testing::RunChild({Browser(), "--headless", "--no-sandbox", "--disable-gpu",
                         "--user-data-dir=" + folder.Path("profile"), "--window-size=1400,1000",
                         "--hide-scrollbars",  // a telephone's take no room
                         "--enable-logging=stderr", "--dump-dom", "file://" + file});
  EXPECT_EQ(outcome.code, 0) << Browser()
                             << ": cannot be run; apt-get install chromium, or name a "
                                "browser by DEEPNET_BROWSER\n"
                             << outcome.output.substr(0, 1000);
  Page page;
  const std::string found = Found(outcome.output);
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(found, &page.found).ok()) << found;
  for (size_t at = outcome.output.find(":CONSOLE"); at != std::string::npos;
       at = outcome.output.find(":CONSOLE", at + 1)) {
    page.console += outcome.output.substr(at, outcome.output.find('\n', at) - at) + "\n";
  }
  return page;
}

constexpr double kLeastPlotText = 11;  // pixels of a letter's body; less is hard to read

class ReportInBrowser : public ::testing::TestWithParam<int> {};

TEST_P(ReportInBrowser, EveryPlotIsThereAndNothingScrollsSideways) {
  const int width = GetParam();
  const testing::TempFolder folder;
  const std::vector<LabResult> results = AllResults();
  const Page page = OpenPage(folder, results, width);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(page.console, "");
  EXPECT_EQ(page.Number("inner"), width);
  EXPECT_LE(page.Number("scroll"), width);
  EXPECT_EQ(page.Number("small"), 0) << "texts of less than 13 pixels";
  EXPECT_GE(page.Number("smallest"), kLeastPlotText);
  EXPECT_EQ(page.Text("wrong"), "");
  int drawings = 0;
  for (const LabResult& result : results) {
    for (const std::string& id : ReportDrawings(result)) {
      ASSERT_TRUE(page.HasDrawing(id)) << id;
      EXPECT_GT(page.Drawing(id, "width"), width < 500 ? 300 : 450) << id;
      EXPECT_GT(page.Drawing(id, "height"), 100) << id;
      EXPECT_GT(page.Drawing(id, "shapes"), 3) << id;
      ++drawings;
    }
  }
  EXPECT_EQ(page.Number("count"), drawings);
}

INSTANTIATE_TEST_SUITE_P(DeskAndTelephone, ReportInBrowser, ::testing::Values(1280, 390, 360));

}  // namespace
}  // namespace deepnet
