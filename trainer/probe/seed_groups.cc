#include "trainer/probe/seed_groups.h"

#include <algorithm>
#include <set>

#include "trainer/probe/quantities.h"

namespace deepnet {

std::vector<SeedGroup> GroupSeeds(const LabResult& result, const Panel& panel) {
  std::vector<SeedGroup> groups;
  std::vector<std::vector<double>> values;
  for (const LabCell& cell : result.cells()) {
    if (cell.group() != panel.group) continue;
    auto at = std::find_if(groups.begin(), groups.end(), [&](const SeedGroup& group) {
      return group.series == cell.series() && group.x == cell.x() && group.y == cell.y();
    });
    if (at == groups.end()) {
      at = groups.insert(at, {.series = cell.series(), .x = cell.x(), .y = cell.y()});
      values.emplace_back();
    }
    at->cells.push_back(&cell);
    if (cell.status() == CELL_DIVERGED) ++at->diverged;
    const auto score = CellScore(cell, panel.quantity, panel.step);
    if (cell.status() == CELL_DONE && score.has_value()) {
      values[at - groups.begin()].push_back(*score);
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].spread = MeanAndSpread(values[i]);
  std::stable_sort(groups.begin(), groups.end(),
                   [](const SeedGroup& a, const SeedGroup& b) { return a.x < b.x; });
  return groups;
}

std::vector<std::string> SeriesOf(const std::vector<SeedGroup>& groups) {
  std::vector<std::string> series;
  for (const SeedGroup& group : groups) {
    if (std::find(series.begin(), series.end(), group.series) == series.end()) {
      series.push_back(group.series);
    }
  }
  return series;
}

SeriesMeans MeansOf(const std::vector<SeedGroup>& groups, const std::string& series) {
  SeriesMeans means;
  for (const SeedGroup& group : groups) {
    if (group.series != series || group.spread.count == 0) continue;
    means.x.push_back(group.x);
    means.y.push_back(group.spread.mean);
  }
  return means;
}

std::optional<LogFit> FitMeans(const SeriesMeans& means) {
  const std::optional<LogFit> fit = FitLogarithm(means.x, means.y);
  if (!fit.has_value() || fit->points < 3) return std::nullopt;
  return fit;
}

std::vector<const LabCell*> Representatives(const LabResult& result, const Panel& panel) {
  double x = panel.at_x;
  for (const LabCell& cell : result.cells()) {
    if (panel.at_x == 0.0 && cell.group() == panel.group) x = std::max(x, cell.x());
  }
  std::vector<const LabCell*> cells;
  std::set<std::string> seen;
  for (const LabCell& cell : result.cells()) {
    if (cell.group() != panel.group || cell.x() != x) continue;
    if (seen.insert(cell.series()).second) cells.push_back(&cell);
  }
  return cells;
}

}  // namespace deepnet
