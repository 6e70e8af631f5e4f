// Line plots as SVG, written by hand: axes, a line a series with its name at its end, the spread of
// seeds, and below the axes a row of crosses for each series that diverged somewhere. Colours,
// dashes and markers follow from the method (methods.h) and from the page's style sheet; the SVG is
// not complete without it. Pure.
#pragma once

#include <string>
#include <vector>

#include "trainer/probe/axis.h"

namespace deepnet {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  bool diverged = false;  // there is no y
  double low = 0.0;       // spread over seeds; drawn if high > low
  double high = 0.0;
};

struct PlotLine {
  std::string method;             // a key of methods.h: how it looks
  std::string label = {};         // at its end; empty: the method's
  std::vector<PlotPoint> points;  // ascending x
  bool dotted = false;            // a fit, not a measurement
};

// A horizontal line: "word frequencies".
struct PlotLevel {
  double y = 0.0;
  std::string label;
};

// A range that values were somewhere in, of which no single one is known: a rectangle.
struct PlotBand {
  std::string method;  // a key of methods.h: its colour
  std::string label;   // above it
  double left = 0.0;   // on the horizontal axis
  double right = 0.0;
  double low = 0.0;  // on the vertical one
  double high = 0.0;
};

struct LinePlot {
  std::string id;       // of the svg element, unique on the page
  std::string title;    // for people who cannot see it
  std::string x_label;  // "layers a side"
  std::string y_label;  // "BLEU"
  Scale x_scale = Scale::kLinear;
  Scale y_scale = Scale::kLinear;
  std::vector<double> x_ticks = {};  // empty: round ones
  std::vector<PlotLine> lines = {};
  std::vector<PlotLevel> levels = {};
  std::vector<PlotBand> bands = {};  // within both axes: above 0 on kLog
  bool markers = true;               // a mark at each point; without, a curve
};

inline constexpr double kPlotUnits = 440;

// The svg element; kPlotUnits wide, to be stretched over its column. Nothing in it touches as long
// as its texts are at most 15 units high, which the style sheet makes them on a telephone. Without
// a point that can be shown it says so in words.
std::string DrawLinePlot(const LinePlot& plot);

// Ordinates at least `distance` apart, in the order of `wanted`, as near to it as it goes within
// [top, bottom]: where labels stand beside the ends of lines. More labels than there is room for
// reach below `bottom`.
std::vector<double> SpreadLabels(std::vector<double> wanted, double distance, double top,
                                 double bottom);

}  // namespace deepnet
