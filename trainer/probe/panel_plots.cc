#include "trainer/probe/panel_plots.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "trainer/probe/heat_map.h"
#include "trainer/probe/line_plot.h"
#include "trainer/probe/markup.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/quantities.h"
#include "trainer/probe/seed_groups.h"
#include "trainer/probe/statistics.h"

namespace deepnet {
namespace {

// A point of the mean, and beside it a mark if some of the seeds diverged or left the scale.
void AddPoints(const SeedGroup& group, Quantity quantity, PlotLine* line) {
  const Spread& spread = group.spread;
  const bool off_the_scale = spread.count > 0 && IsOffTheScale(quantity, spread.high);
  if (spread.count > 0 && !off_the_scale) {
    line->points.push_back(
        {.x = group.x, .y = spread.mean, .low = spread.low, .high = spread.high});
  }
  if (group.diverged > 0 || off_the_scale) line->points.push_back({.x = group.x, .diverged = true});
}

std::optional<PlotLine> FitLine(const std::vector<SeedGroup>& groups, const std::string& series) {
  const SeriesMeans means = MeansOf(groups, series);
  const std::optional<LogFit> fit = FitMeans(means);
  if (!fit.has_value()) return std::nullopt;
  PlotLine line{.method = series, .label = "A log d + B", .dotted = true};
  for (const double depth : means.x) {
    line.points.push_back({.x = depth, .y = fit->slope * std::log10(depth) + fit->offset});
  }
  return line;
}

std::string DrawScores(const LabResult& result, const Panel& panel, LinePlot plot) {
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  plot.x_label = panel.x_label;
  plot.x_scale = panel.x_scale;
  std::set<double> ticks;
  for (const std::string& series : SeriesOf(groups)) {
    PlotLine line{.method = series};
    for (const SeedGroup& group : groups) {
      if (group.series == series) AddPoints(group, panel.quantity, &line);
      ticks.insert(group.x);
    }
    plot.lines.push_back(std::move(line));
    const auto fit = panel.fit ? FitLine(groups, series) : std::nullopt;
    if (fit.has_value()) plot.lines.push_back(*fit);
  }
  plot.x_ticks.assign(ticks.begin(), ticks.end());
  return DrawLinePlot(plot);
}

std::string DrawCurves(const LabResult& result, const Panel& panel, LinePlot plot) {
  const bool layers = panel.kind == PanelKind::kLayers;
  plot.markers = false;
  plot.x_label = layers ? "decoder layer, 1 is the lowest" : "steps";
  for (const LabCell* cell : Representatives(result, panel)) {
    plot.lines.push_back({.method = cell->series(),
                          .points = layers ? CurveOverLayers(*cell, panel.quantity, panel.step)
                                           : CurveOverSteps(*cell, panel.quantity)});
  }
  return DrawLinePlot(plot);
}

std::string DrawGrid(const LabResult& result, const Panel& panel, const std::string& id) {
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  std::set<double> xs, ys;
  for (const SeedGroup& group : groups) {
    xs.insert(group.x);
    ys.insert(group.y);
  }
  HeatMap map{.id = id,
              .title = panel.title,
              .x_label = panel.x_label,
              .y_label = panel.y_label,
              .low_is_good = IsLoss(panel.quantity)};
  for (const double x : xs) map.columns.push_back(ShortNumber(x));
  for (const double y : ys) map.rows.push_back(ShortNumber(y));
  map.values.resize(ys.size(), std::vector<std::optional<double>>(xs.size()));
  map.words.resize(ys.size(), std::vector<std::string>(xs.size()));
  for (const SeedGroup& group : groups) {
    const auto row = std::distance(ys.begin(), ys.find(group.y));
    const auto column = std::distance(xs.begin(), xs.find(group.x));
    if (group.spread.count > 0) map.values[row][column] = group.spread.mean;
    if (group.spread.count == 0 && group.diverged > 0) map.words[row][column] = "diverged";
  }
  return DrawHeatMap(map);
}

double DirectionValue(const DirectionScore& score, Quantity quantity) {
  if (quantity == Quantity::kTestSpBleu) return score.spbleu();
  return quantity == Quantity::kTestBleu ? score.bleu() : score.nll();
}

std::string DrawMatrix(const LabCell& cell, const Panel& panel, const Spread& range,
                       const std::string& id) {
  std::set<std::string> languages;
  std::map<std::pair<std::string, std::string>, double> values;
  for (const DirectionScore& score : cell.test().directions()) {
    const std::vector<std::string> sides = absl::StrSplit(score.direction(), '-');
    if (sides.size() != 2) continue;
    languages.insert(sides.begin(), sides.end());
    values[{sides[0], sides[1]}] = DirectionValue(score, panel.quantity);
  }
  HeatMap map{.id = id,
              .title = absl::StrCat(panel.title, ", ", FindMethod(cell.series()).label),
              .x_label = "into",
              .y_label = "from",
              .columns = {languages.begin(), languages.end()},
              .rows = {languages.begin(), languages.end()},
              .low_is_good = IsLoss(panel.quantity),
              .range = range};
  for (const std::string& source : languages) {
    auto& row = map.values.emplace_back();
    for (const std::string& target : languages) {
      const auto found = values.find({source, target});
      row.push_back(found == values.end() ? std::nullopt : std::optional(found->second));
    }
  }
  return absl::StrCat("<p class=\"which t-", cell.series(), "\">",
                      Escaped(FindMethod(cell.series()).label), ", ", ShortNumber(cell.x()),
                      " layers in all</p>\n", DrawHeatMap(map));
}

std::string DrawMatrices(const LabResult& result, const Panel& panel, const std::string& id) {
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  if (groups.empty()) return DrawHeatMap({.id = id, .title = panel.title});
  std::vector<double> values;  // of all: they are there to be compared
  for (const SeedGroup& group : groups) {
    for (const DirectionScore& score : group.cells[0]->test().directions()) {
      values.push_back(DirectionValue(score, panel.quantity));
    }
  }
  const Spread range = MeanAndSpread(values);
  std::string html;
  for (size_t i = 0; i < groups.size(); ++i) {
    html +=
        DrawMatrix(*groups[i].cells[0], panel, range, i == 0 ? id : absl::StrCat(id, "-", i + 1));
  }
  return html;
}

}  // namespace

std::string DrawPanel(const LabResult& result, const Panel& panel, const std::string& id) {
  LinePlot plot{.id = id,
                .title = panel.title,
                .y_label = QuantityUnit(panel.quantity),
                .y_scale = panel.y_scale};
  const double level = WordFrequencyLevel(result.data(), panel.quantity);
  if (level > 0) plot.levels = {{.y = level, .label = "word frequencies alone"}};
  switch (panel.kind) {
    case PanelKind::kScore:
      return DrawScores(result, panel, std::move(plot));
    case PanelKind::kCurve:
    case PanelKind::kLayers:
      return DrawCurves(result, panel, std::move(plot));
    case PanelKind::kGrid:
      return DrawGrid(result, panel, id);
    case PanelKind::kMatrix:
      return DrawMatrices(result, panel, id);
  }
  return "";
}

int NumDrawings(const LabResult& result, const Panel& panel) {
  if (panel.kind != PanelKind::kMatrix) return 1;
  return std::max<int>(1, static_cast<int>(GroupSeeds(result, panel).size()));
}

}  // namespace deepnet
