// From the cells of a result to what a panel shows. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"
#include "trainer/probe/heat_map.h"
#include "trainer/probe/line_plot.h"
#include "trainer/probe/statistics.h"

namespace deepnet {

// Cells of one series at one place of the axis: they differ in their seed only.
struct SeedGroup {
  std::string series;
  double x = 0.0;
  double y = 0.0;
  std::vector<const LabCell*> cells;
  Spread spread;     // of those that have the quantity
  int diverged = 0;  // cells
};

// In the order of the cells; `panel` says which cells and which quantity.
std::vector<SeedGroup> GroupSeeds(const LabResult& result, const Panel& panel);

// The first seed of each series at one x: what kCurve and kLayers show.
std::vector<const LabCell*> Representatives(const LabResult& result, const Panel& panel);

// The svg of `panel`, whose id it gets. More than one for kMatrix: "<id>", "<id>-2", ...
std::string DrawPanel(const LabResult& result, const Panel& panel, const std::string& id);

// Number of svg elements that DrawPanel makes.
int NumDrawings(const LabResult& result, const Panel& panel);

}  // namespace deepnet
