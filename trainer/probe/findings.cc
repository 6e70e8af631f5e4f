#include "trainer/probe/findings.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/logging.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/findings_scores.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/quantities.h"
#include "trainer/probe/seed_groups.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

std::string Label(const std::string& series) { return std::string(FindMethod(series).label); }

std::string Count(int count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Ends(const LabResult& result) {
  std::map<CellStatus, int> ends;
  for (const LabCell& cell : result.cells()) ++ends[cell.status()];
  std::vector<std::string> parts;
  if (ends[CELL_DONE] > 0) parts.push_back(absl::StrCat(ends[CELL_DONE], " ended as planned"));
  if (ends[CELL_DIVERGED] > 0) parts.push_back(absl::StrCat(ends[CELL_DIVERGED], " diverged"));
  if (ends[CELL_FAILED] > 0) parts.push_back(absl::StrCat(ends[CELL_FAILED], " failed"));
  const int missing = result.cells_planned() - result.cells_size();
  if (missing > 0) parts.push_back(absl::StrCat(missing, " not run yet"));
  return absl::StrCat(Count(result.cells_planned(), "run"), ": ", absl::StrJoin(parts, ", "), ".");
}

// "Of the paper's figure, DLCL was not run here."
std::string NotRun(const Experiment& experiment, const LabResult& result) {
  std::vector<std::string> missing;
  for (const LinePlot& plot : experiment.published) {
    for (const PlotLine& line : plot.lines) {
      const bool there = line.dotted || std::any_of(result.cells().begin(), result.cells().end(),
                                                    [&](const LabCell& cell) {
                                                      return cell.series() == line.method;
                                                    });
      const std::string label = Label(line.method);
      if (!there && std::find(missing.begin(), missing.end(), label) == missing.end()) {
        missing.push_back(label);
      }
    }
  }
  if (missing.empty()) return "";
  return absl::StrCat("In the paper's figure, but not run here: ", absl::StrJoin(missing, ", "),
                      ".");
}

std::vector<std::string> OfMatrix(const LabResult& result, const Panel& panel) {
  std::vector<std::string> sentences;
  for (const SeedGroup& group : GroupSeeds(result, panel)) {
    if (group.spread.count == 0) continue;
    sentences.push_back(absl::StrCat(Label(group.series), ": ", ShortNumber(group.spread.mean), " ",
                                     QuantityUnit(panel.quantity), " on average over ",
                                     group.cells[0]->test().directions_size(), " directions, ",
                                     WithCommas(group.cells[0]->parameters()), " parameters."));
  }
  return sentences;
}

// "alpha times 0.5, beta times 2"
std::string Place(const Panel& panel, const SeedGroup& group) {
  return absl::StrCat(panel.x_label, " ", ShortNumber(group.x), ", ", panel.y_label, " ",
                      ShortNumber(group.y));
}

// "at alpha times 0.5, beta times 2 (1 of 3 seeds)" for each verdict but the good one.
std::map<Verdict, std::vector<std::string>> PlacesWithoutSuccess(
    const LabResult& result, const Panel& panel, const std::vector<SeedGroup>& groups) {
  std::map<Verdict, std::vector<std::string>> places;
  for (const SeedGroup& group : groups) {
    std::map<Verdict, size_t> seeds;
    for (const LabCell* cell : group.cells) ++seeds[Judge(*cell, result.data())];
    for (const auto& [verdict, count] : seeds) {
      if (verdict == Verdict::kLearned) continue;
      const size_t all = group.cells.size();
      places[verdict].push_back(
          absl::StrCat("at ", Place(panel, group),
                       count < all ? absl::StrCat(" (", count, " of ", all, " seeds)") : ""));
    }
  }
  return places;
}

// Its lowest and its highest value, and where not every seed learned.
std::vector<std::string> OfGrid(const LabResult& result, const Panel& panel) {
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  std::vector<SeedGroup> measured;
  for (const SeedGroup& group : groups) {
    if (group.spread.count > 0) measured.push_back(group);
  }
  std::vector<std::string> sentences;
  if (measured.size() > 1) {
    const auto [low, high] = std::minmax_element(
        measured.begin(), measured.end(),
        [](const SeedGroup& a, const SeedGroup& b) { return a.spread.mean < b.spread.mean; });
    const auto text = [&](const SeedGroup& group) {
      return absl::StrCat(QuantityText(panel.quantity, group.spread.mean), " at ",
                          Place(panel, group));
    };
    sentences.push_back(absl::StrCat("Lowest (", QuantityUnit(panel.quantity), "): ", text(*low),
                                     "; highest: ", text(*high), "."));
  }
  for (const auto& [verdict, places] : PlacesWithoutSuccess(result, panel, groups)) {
    std::string name = VerdictName(verdict);
    name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
    sentences.push_back(absl::StrCat(name, ": ", absl::StrJoin(places, "; "), "."));
  }
  return sentences;
}

// "Model update after 30 steps: Post-LN 3.3, DeepNet 0.15." Losses have their own sentences.
std::vector<std::string> OfCurves(const LabResult& result, const Panel& panel) {
  if (IsLoss(panel.quantity)) return {};
  std::vector<std::string> ends;
  double step = 0;
  for (const LabCell* cell : Representatives(result, panel)) {
    const std::vector<PlotPoint> points = CurveOverSteps(*cell, panel.quantity);
    if (points.empty()) continue;
    step = points.back().x;
    ends.push_back(absl::StrCat(Label(cell->series()), " ", ShortNumber(points.back().y)));
  }
  if (ends.empty()) return {absl::StrCat("Nothing was recorded for “", panel.title, "”.")};
  return {absl::StrCat(panel.title, ", step ", ShortNumber(step), ": ", absl::StrJoin(ends, ", "),
                       ".")};
}

// How many times the lowest layer's value the highest layer's is.
std::vector<std::string> OfLayers(const LabResult& result, const Panel& panel) {
  std::vector<std::string> ratios;
  for (const LabCell* cell : Representatives(result, panel)) {
    const std::vector<PlotPoint> points = CurveOverLayers(*cell, panel.quantity, panel.step);
    if (points.size() < 2 || !(points.front().y > 0)) continue;
    ratios.push_back(absl::StrCat(Label(cell->series()), " ",
                                  ShortNumber(Rounded(points.back().y / points.front().y, 2))));
  }
  if (ratios.empty()) return {absl::StrCat("Nothing was recorded for “", panel.title, "”.")};
  return {absl::StrCat(panel.title, ", top layer over lowest: ", absl::StrJoin(ratios, ", "), ".")};
}

}  // namespace

std::vector<std::string> Findings(const Experiment& experiment, const LabResult& result) {
  std::vector<std::string> sentences = {Ends(result)};
  const std::string missing = NotRun(experiment, result);
  if (!missing.empty()) sentences.push_back(missing);
  for (const Panel& panel : experiment.panels) {
    std::vector<std::string> more;
    if (panel.kind == PanelKind::kScore) more = ScoreFindings(experiment, result, panel);
    if (panel.kind == PanelKind::kCurve) more = OfCurves(result, panel);
    if (panel.kind == PanelKind::kLayers) more = OfLayers(result, panel);
    if (panel.kind == PanelKind::kGrid) more = OfGrid(result, panel);
    if (panel.kind == PanelKind::kMatrix) more = OfMatrix(result, panel);
    for (std::string& sentence : more) {
      if (std::find(sentences.begin(), sentences.end(), sentence) == sentences.end()) {
        sentences.push_back(std::move(sentence));
      }
    }
  }
  return sentences;
}

std::string FindingsText(const LabResult& result) {
  const Experiment experiment = ExperimentOf(result);
  std::string text = absl::StrCat(experiment.title, ": what this run shows\n");
  for (const std::string& sentence : Findings(experiment, result)) {
    absl::StrAppend(&text, "- ", sentence, "\n");
  }
  return text;
}

}  // namespace deepnet
