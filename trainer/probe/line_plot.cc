// A plot is drawn in one pass over a frame that is fixed beforehand: the plot area, below it a row
// for each series that diverged somewhere, below that the horizontal axis; names of series to the
// right.
#include "trainer/probe/line_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

#include "trainer/probe/markup.h"
#include "trainer/probe/methods.h"

namespace deepnet {
namespace {

// Distances suit texts of 15 units, the largest there are.
constexpr double kLeft = 54, kRight = 320, kTop = 28, kBottom = 240;
constexpr double kLabelX = 330, kLabelDistance = 17;
constexpr double kRailTop = 17, kRailRow = 17;  // below kBottom
constexpr double kDigit = 9.6, kTickGap = 6;    // a character of a number; between two numbers
constexpr int kMostTicks = 5;

// Where everything is.
struct Frame {
  Axis x;
  Axis y;
  std::vector<size_t> rails;  // indices of the lines that diverged somewhere
  double axis_y = kBottom;    // of the horizontal axis's numbers
};

bool IsShown(const LinePlot& plot, const PlotPoint& point) {
  const auto fits = [](Scale scale, double value) {
    return std::isfinite(value) && (scale == Scale::kLinear || value > 0);
  };
  return !point.diverged && fits(plot.x_scale, point.x) && fits(plot.y_scale, point.y);
}

Frame MakeFrame(const LinePlot& plot) {
  std::vector<double> xs = plot.x_ticks, ys;
  Frame frame;
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    bool diverged = false;
    for (const PlotPoint& point : plot.lines[i].points) {
      xs.push_back(point.x);
      diverged = diverged || point.diverged;
      if (!IsShown(plot, point)) continue;
      ys.push_back(point.y);
      if (point.high > point.low) ys.insert(ys.end(), {point.low, point.high});
    }
    if (diverged) frame.rails.push_back(i);
  }
  for (const PlotLevel& level : plot.levels) ys.push_back(level.y);
  for (const PlotBand& band : plot.bands) {
    xs.insert(xs.end(), {band.left, band.right});
    ys.insert(ys.end(), {band.low, band.high});
  }
  frame.x = MakeAxis(plot.x_scale, xs, kLeft, kRight);
  frame.y = MakeAxis(plot.y_scale, ys, kBottom, kTop);
  if (!frame.rails.empty()) {
    frame.axis_y += kRailTop + kRailRow * static_cast<double>(frame.rails.size());
  }
  return frame;
}

std::string MethodClass(const PlotLine& line) { return absl::StrCat("m-", line.method); }

std::string Label(const PlotLine& line) {
  return line.label.empty() ? std::string(FindMethod(line.method).label) : line.label;
}

std::string Marker(MethodFamily family, double x, double y, const std::string& css) {
  const std::string end = absl::StrCat("\" class=\"mark ", css, "\"/>\n");
  switch (family) {
    case MethodFamily::kDeep:
      return absl::StrCat("<circle cx=\"", Length(x), "\" cy=\"", Length(y), "\" r=\"3.6", end);
    case MethodFamily::kPost:
      return absl::StrCat("<rect x=\"", Length(x - 2.8), "\" y=\"", Length(y - 2.8),
                          "\" width=\"5.6\" height=\"5.6", end);
    case MethodFamily::kPre:
      return absl::StrCat("<path d=\"M", Length(x), " ", Length(y - 3.8), "l3.6 6.2h-7.2z", end);
    case MethodFamily::kNone:
      return absl::StrCat("<path d=\"M", Length(x), " ", Length(y - 3.9), "l3.5 3.9l-3.5 3.9l-3.5",
                          " -3.9z", end);
  }
  return "";
}

std::string DrawAxes(const LinePlot& plot, const Frame& frame) {
  std::string svg;
  for (const double tick : Ticks(frame.y, kMostTicks)) {
    const double y = frame.y.Place(tick);
    absl::StrAppend(&svg, SvgLine(kLeft, y, kRight, y, "grid"),
                    SvgText(kLeft - 7, y + 5, "tick end", ShortNumber(tick)));
  }
  const std::vector<double> ticks =
      plot.x_ticks.empty() ? Ticks(frame.x, kMostTicks) : plot.x_ticks;
  double last = -HUGE_VAL;  // where the number before ends
  for (const double tick : ticks) {
    const double x = frame.x.Place(tick);
    const std::string number = ShortNumber(tick);
    const double half = kDigit / 2 * static_cast<double>(number.size());
    absl::StrAppend(&svg, SvgLine(x, kBottom, x, frame.axis_y + 4, "axis"));
    if (x - half - last < kTickGap) continue;
    absl::StrAppend(&svg, SvgText(x, frame.axis_y + 18, "tick mid", number));
    last = x + half;
  }
  absl::StrAppend(&svg, SvgLine(kLeft, kBottom, kRight, kBottom, "axis"),
                  SvgText(kLeft - 40, 13, "label", plot.y_label),
                  SvgText((kLeft + kRight) / 2, frame.axis_y + 38, "label mid", plot.x_label));
  return svg;
}

std::string DrawBands(const LinePlot& plot, const Frame& frame) {
  std::string svg;
  for (const PlotBand& band : plot.bands) {
    const double left = frame.x.Place(band.left), right = frame.x.Place(band.right);
    const double top = frame.y.Place(band.high), bottom = frame.y.Place(band.low);
    absl::StrAppend(&svg, "<rect x=\"", Length(left), "\" y=\"", Length(top), "\" width=\"",
                    Length(right - left), "\" height=\"", Length(bottom - top),
                    "\" class=\"band m-", band.method, "\"/>\n",
                    SvgText(right, top - 4, "note end", band.label));
  }
  return svg;
}

constexpr double kLevelName = 195;  // wide, of texts 15 units high

// How much of the lines runs through a level's name from `left` on with its foot at `foot`.
int NumCovered(const LinePlot& plot, const Frame& frame, double left, double foot) {
  constexpr double kHigh = 16;
  constexpr int kSamples = 16;  // of a line between two points
  int covered = 0;
  for (const PlotLine& line : plot.lines) {
    const PlotPoint* last = nullptr;
    for (const PlotPoint& point : line.points) {
      if (!IsShown(plot, point)) continue;
      const PlotPoint& from = last == nullptr ? point : *last;
      for (int i = 1; i <= kSamples; ++i) {
        const double part = static_cast<double>(i) / kSamples;
        const double x = std::lerp(frame.x.Place(from.x), frame.x.Place(point.x), part);
        const double y = std::lerp(frame.y.Place(from.y), frame.y.Place(point.y), part);
        covered +=
            left <= x && x <= left + kLevelName && foot - kHigh <= y && y <= foot + 4 ? 1 : 0;
      }
      last = &point;
    }
  }
  return covered;
}

// A level's name stands above or below it, at the left or at the right: where least runs through.
std::string DrawLevelName(const LinePlot& plot, const Frame& frame, const PlotLevel& level) {
  const double y = frame.y.Place(level.y);
  std::string best;
  int least = std::numeric_limits<int>::max();
  for (const double foot : {y - 4, y + 15}) {
    if (foot < kTop + 10 || foot > kBottom - 2) continue;
    for (const bool right : {false, true}) {
      const int covered = NumCovered(plot, frame, right ? kRight - kLevelName : kLeft, foot);
      if (covered >= least) continue;
      least = covered;
      best = right ? SvgText(kRight - 5, foot, "note end", level.label)
                   : SvgText(kLeft + 5, foot, "note", level.label);
    }
  }
  return best;
}

std::string DrawLevels(const LinePlot& plot, const Frame& frame) {
  std::string svg;
  for (const PlotLevel& level : plot.levels) {
    const double y = frame.y.Place(level.y);
    absl::StrAppend(&svg, SvgLine(kLeft, y, kRight, y, "level"), DrawLevelName(plot, frame, level));
  }
  return svg;
}

std::string DrawLine(const LinePlot& plot, const PlotLine& line, const Frame& frame) {
  const std::string css = MethodClass(line);
  std::string path, marks, spreads;
  for (const PlotPoint& point : line.points) {
    if (!IsShown(plot, point)) continue;
    const double x = frame.x.Place(point.x), y = frame.y.Place(point.y);
    absl::StrAppend(&path, path.empty() ? "M" : "L", Length(x), " ", Length(y));
    if (plot.markers && !line.dotted) marks += Marker(FindMethod(line.method).family, x, y, css);
    if (point.high > point.low) {
      spreads += SvgLine(x, frame.y.Place(std::max(point.low, frame.y.low)), x,
                         frame.y.Place(point.high), absl::StrCat("spread ", css));
    }
  }
  return absl::StrCat(spreads, "<path d=\"", path, "\" class=\"line ", css,
                      line.dotted ? " fit" : "", "\"/>\n", marks);
}

std::string DrawRails(const LinePlot& plot, const Frame& frame) {
  std::string svg;
  double y = kBottom + kRailTop;
  for (const size_t i : frame.rails) {
    const PlotLine& line = plot.lines[i];
    absl::StrAppend(&svg, SvgLine(kLeft, y, kRight, y, "rail"));
    for (const PlotPoint& point : line.points) {
      if (!point.diverged) continue;
      const double x = frame.x.Place(point.x);
      absl::StrAppend(&svg, "<path d=\"M", Length(x - 3.6), " ", Length(y - 3.6),
                      "l7.2 7.2m0 -7.2l-7.2 7.2\" class=\"cross ", MethodClass(line), "\"/>\n");
    }
    absl::StrAppend(&svg, SvgText(kLabelX, y + 5, absl::StrCat("name t-", line.method),
                                  absl::StrCat("\u2715 ", Label(line))));
    y += kRailRow;
  }
  return svg;
}

// Names at the ends of lines; a thin lead where a name had to move or the line ends early.
std::string DrawNames(const LinePlot& plot, const Frame& frame) {
  struct End {
    size_t line;
    double x, y;
  };
  std::vector<End> ends;
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const auto& points = plot.lines[i].points;
    const auto last = std::find_if(points.rbegin(), points.rend(),
                                   [&](const PlotPoint& point) { return IsShown(plot, point); });
    if (last != points.rend()) {
      ends.push_back({i, frame.x.Place(last->x), frame.y.Place(last->y)});
    }
  }
  std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.y < b.y; });
  std::vector<double> wanted;
  for (const End& end : ends) wanted.push_back(end.y);
  const std::vector<double> at = SpreadLabels(wanted, kLabelDistance, kTop - 4, kBottom - 4);
  std::string svg;
  for (size_t i = 0; i < ends.size(); ++i) {
    const PlotLine& line = plot.lines[ends[i].line];
    absl::StrAppend(&svg,
                    SvgLine(ends[i].x + 5, ends[i].y, kLabelX - 3, at[i],
                            absl::StrCat("lead ", MethodClass(line))),
                    SvgText(kLabelX, at[i] + 5, absl::StrCat("name t-", line.method), Label(line)));
  }
  return svg;
}

}  // namespace

std::vector<double> SpreadLabels(std::vector<double> wanted, double distance, double top,
                                 double bottom) {
  double least = top;
  for (double& y : wanted) {
    y = std::max(y, least);
    least = y + distance;
  }
  double most = std::max(bottom, top + distance * (static_cast<double>(wanted.size()) - 1));
  for (auto y = wanted.rbegin(); y != wanted.rend(); ++y) {
    *y = std::min(*y, most);
    most = *y - distance;
  }
  return wanted;
}

std::string DrawLinePlot(const LinePlot& plot) {
  const Frame frame = MakeFrame(plot);
  std::string svg = absl::StrCat("<svg id=\"", plot.id, "\" class=\"plot\" viewBox=\"0 0 ",
                                 Length(kPlotUnits), " ", Length(frame.axis_y + 46),
                                 "\" role=\"img\" aria-label=\"", Escaped(plot.title), "\">\n");
  const bool empty = std::none_of(plot.lines.begin(), plot.lines.end(), [&](const PlotLine& line) {
    return std::any_of(line.points.begin(), line.points.end(), [&](const PlotPoint& point) {
      return point.diverged || IsShown(plot, point);
    });
  });
  if (empty) {
    return absl::StrCat(
        svg, SvgText((kLeft + kRight) / 2, 130, "label mid", "nothing measured yet"), "</svg>\n");
  }
  absl::StrAppend(&svg, DrawAxes(plot, frame), DrawBands(plot, frame), DrawLevels(plot, frame));
  // The first line, DeepNet's where it is there, lies on top.
  for (auto line = plot.lines.rbegin(); line != plot.lines.rend(); ++line) {
    svg += DrawLine(plot, *line, frame);
  }
  return absl::StrCat(svg, DrawRails(plot, frame), DrawNames(plot, frame), "</svg>\n");
}

}  // namespace deepnet
