// Cells of a result by series and place of the axis, seeds together: what figures, tables and
// sentences are made of. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"
#include "trainer/probe/statistics.h"

namespace deepnet {

// Cells of one series at one place of the axis: they differ in their seed only.
struct SeedGroup {
  std::string series;
  double x = 0.0;
  double y = 0.0;
  std::vector<const LabCell*> cells;
  Spread spread;     // of those that have the quantity: neither failed nor diverged
  int diverged = 0;  // how many
};

// Ascending x, at equal x in the order of the cells; `panel` says which cells and which quantity.
std::vector<SeedGroup> GroupSeeds(const LabResult& result, const Panel& panel);

// The series of `groups`, each once, in their order.
std::vector<std::string> SeriesOf(const std::vector<SeedGroup>& groups);

// The means of one series over the axis; groups without the quantity are left out.
struct SeriesMeans {
  std::vector<double> x;
  std::vector<double> y;  // as long as x
};
SeriesMeans MeansOf(const std::vector<SeedGroup>& groups, const std::string& series);

// A log10(x) + B through them; nothing through fewer than three.
std::optional<LogFit> FitMeans(const SeriesMeans& means);

// The first seed of each series at Panel::at_x, 0: at the largest x: what kCurve and kLayers show.
std::vector<const LabCell*> Representatives(const LabResult& result, const Panel& panel);

}  // namespace deepnet
