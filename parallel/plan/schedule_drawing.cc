#include "parallel/plan/schedule_drawing.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace deepnet {
namespace {

constexpr double kWidth = 1000, kMargin = 60, kRow = 22, kBox = 18, kHead = 34;  // pixels
constexpr double kDigit = 6.5;  // pixels a digit needs
constexpr int kShades = 4;      // laps that look different
constexpr std::string_view kFont = "font-family=\"Helvetica, Arial, sans-serif\"";

// First colour for the first chunk of a rank, then lighter.
struct Paint {
  std::string_view name;
  std::array<std::string_view, kShades> fill;
};

// `op` computes.
const Paint& PaintOf(Op op) {
  static constexpr std::array<Paint, 4> kPaints = {{
      // in the order of Op
      {"F", {"#2f6db5", "#6fa3dc", "#9dc3ec", "#c4dcf6"}},
      {"B", {"#2e8b57", "#6dbb8e", "#9ad4b1", "#c3e7d1"}},
      {"I", {"#2e8b57", "#6dbb8e", "#9ad4b1", "#c3e7d1"}},
      {"W", {"#d9822b", "#efae6a", "#f6c999", "#fbe1c4"}},
  }};
  return kPaints[static_cast<size_t>(op)];
}

// The lap of each of a rank's chunks: 0 for its first along the model.
using Laps = std::map<int, int>;
Laps LapsOf(const std::vector<TimedAction>& actions) {
  Laps laps;
  for (const TimedAction& timed : actions) laps[timed.action.chunk] = 0;
  int next = 0;
  for (auto& [chunk, lap] : laps) lap = next++;
  return laps;
}

// The boxes and numbers of one rank's row. Boxes of one colour form one path, which keeps it small.
std::string DrawRow(const std::vector<TimedAction>& actions, int rank, double pixels_per_second) {
  const double top = kHead + rank * kRow;
  const Laps laps = LapsOf(actions);
  std::map<std::string_view, std::string> paths;  // by colour
  std::string numbers;
  for (const TimedAction& timed : actions) {
    const double left = kMargin + timed.start * pixels_per_second;
    const double width = (timed.end - timed.start) * pixels_per_second;
    if (width <= 0) continue;
    const int lap = laps.at(timed.action.chunk);
    absl::StrAppendFormat(&paths[PaintOf(timed.action.op).fill[std::min(lap, kShades - 1)]],
                          "M%.1f %.0fh%.1fv%.0fh-%.1fz", left, top, width, kBox, width);
    const std::string number = absl::StrCat(timed.action.microbatch);
    if (width < kDigit * static_cast<double>(number.size()) + 2) continue;
    absl::StrAppendFormat(&numbers, "<text x=\"%.1f\" y=\"%.0f\" fill=\"%s\">%s</text>",
                          left + width / 2, top + 13, lap == 0 ? "#fff" : "#222", number);
  }
  std::string row = absl::StrFormat(
      "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\" fill=\"#222\">rank %d</text>\n", kMargin - 6,
      top + 13, rank);
  for (const auto& [fill, path] : paths) {
    absl::StrAppend(&row, "<path fill=\"", std::string(fill), "\" stroke=\"#fff\" ",
                    "stroke-width=\"0.6\" d=\"", path, "\"/>\n");
  }
  absl::StrAppend(&row, numbers, "\n");
  return row;
}

// Draws a legend of the colours of the operations and laps that occur.
std::string DrawLegend(const Simulation& simulation, double top) {
  std::map<std::pair<std::string_view, int>, std::string_view> entries;
  for (const std::vector<TimedAction>& actions : simulation.timeline) {
    const Laps laps = LapsOf(actions);
    for (const TimedAction& timed : actions) {
      const Paint& paint = PaintOf(timed.action.op);
      const int lap = std::min(laps.at(timed.action.chunk), kShades - 1);
      entries[{paint.name, lap}] = paint.fill[lap];
    }
  }
  std::string legend;
  double left = kMargin;
  for (const auto& [entry, fill] : entries) {
    absl::StrAppendFormat(
        &legend,
        "<rect x=\"%.0f\" y=\"%.0f\" width=\"14\" height=\"14\" fill=\"%s\"/>"
        "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"start\" fill=\"#222\">%s, chunk %d</text>\n",
        left, top, std::string(fill), left + 18, top + 11, std::string(entry.first),
        entry.second + 1);
    left += 96;
  }
  return legend;
}

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll({text.data(), text.size()},
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace

std::string DrawGrid(const Simulation& simulation, int columns) {
  const double step = simulation.makespan / columns;
  const int digits = static_cast<int>(absl::StrCat(simulation.timeline.size() - 1).size());
  std::string grid;
  for (size_t rank = 0; rank < simulation.timeline.size(); ++rank) {
    const std::vector<TimedAction>& actions = simulation.timeline[rank];
    const Laps laps = LapsOf(actions);
    std::string line(columns, '.');
    auto timed = actions.begin();
    for (int column = 0; column < columns; ++column) {
      const double now = (column + 0.5) * step;
      while (timed != actions.end() && timed->end <= now) ++timed;
      if (timed == actions.end() || timed->start > now) continue;
      const char letter = PaintOf(timed->action.op).name.front();
      line[column] = laps.at(timed->action.chunk) % 2 == 0
                         ? letter
                         : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    }
    absl::StrAppendFormat(&grid, "rank %*d |%s\n", digits, rank, line);
  }
  return grid;
}

std::string DrawSvg(const Simulation& simulation, std::string_view title) {
  const auto num_ranks = static_cast<double>(simulation.timeline.size());
  const double bottom = kHead + num_ranks * kRow;
  const double scale = simulation.makespan > 0 ? (kWidth - kMargin - 10) / simulation.makespan : 0;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" %s font-size=\"11\" text-anchor=\"middle\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
      "<text x=\"%.0f\" y=\"20\" text-anchor=\"start\" font-size=\"14\" fill=\"#222\">%s: "
      "bubble %.1f %%, makespan %.4g s</text>\n"
      "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" fill=\"#f0f0f0\"/>\n",
      kWidth, bottom + 30, kWidth, bottom + 30, std::string(kFont), kMargin, Escaped(title),
      100 * simulation.bubble, simulation.makespan, kMargin, kHead - 2, kWidth - kMargin - 10,
      num_ranks * kRow);
  for (size_t rank = 0; rank < simulation.timeline.size(); ++rank) {
    svg += DrawRow(simulation.timeline[rank], static_cast<int>(rank), scale);
  }
  return absl::StrCat(svg, DrawLegend(simulation, bottom + 8), "</svg>\n");
}

}  // namespace deepnet
