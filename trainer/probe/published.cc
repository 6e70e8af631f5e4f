#include "trainer/probe/published.h"

#include <cmath>

namespace deepnet {
namespace {

// A value where the paper prints or draws "diverged".
constexpr double kDiverged = -1.0;

PlotLine Line(const std::string& method, const std::vector<double>& x,
              const std::vector<double>& y) {
  PlotLine line{.method = method};
  for (size_t i = 0; i < y.size(); ++i) {
    line.points.push_back({.x = x[i], .y = y[i], .diverged = y[i] == kDiverged});
  }
  return line;
}

}  // namespace

std::vector<LinePlot> PublishedFigure3() {
  return {{.id = "fig3-published-1",
           .title = "Figure 3a, read off: gradient norm of the top decoder layer",
           .x_label = "decoder layer",
           .y_label = "gradient norm",
           .lines = {Line("post-ln-init", {18}, {2.25}), Line("post-ln", {18}, {0.70})}},
          {.id = "fig3-published-2",
           .title = "Figure 3c, read off: validation loss after 30 epochs, 18 layers a side",
           .x_label = "epochs",
           .y_label = "loss",
           .lines = {Line("post-ln-init", {30}, {3.9}), Line("post-ln", {30}, {13})}}};
}

std::vector<LinePlot> PublishedFigure4() {
  return {
      {.id = "fig4-published-1",
       .title = "Figure 4a, read off: update of the model in its first 30 steps",
       .x_label = "steps",
       .y_label = "model update",
       .lines = {Line("post-ln-cold", {2, 30}, {29, 28}), Line("post-ln", {30}, {22}),
                 Line("post-ln-init", {30}, {10})}},
      {.id = "fig4-published-2",
       .title = "Figure 4b, read off: what enters the norm behind feed-forward blocks",
       .x_label = "steps",
       .y_label = "norm",
       .lines = {Line("post-ln-cold", {0, 30}, {23.8, 30.2}),
                 Line("post-ln", {0, 30}, {23.8, 23.9}),
                 Line("post-ln-init", {0, 30}, {22.7, 22.7})},
       .levels = {{.y = 22.63, .label = "root of the width, 512"}}},
      {.id = "fig4-published-3",
       .title = "Figure 4c, read off: what enters the norm behind attention",
       .x_label = "steps",
       .y_label = "norm",
       .lines = {Line("post-ln-cold", {0, 30}, {29, 38}), Line("post-ln", {0, 30}, {29, 29}),
                 Line("post-ln-init", {0, 30}, {24, 24})},
       .levels = {{.y = 22.63, .label = "root of the width, 512"}}},
      {.id = "fig4-published-4",
       .title = "Figure 4d, read off at both ends: gradient norm of decoder layers",
       .x_label = "decoder layer, 1 is the lowest",
       .y_label = "gradient norm",
       .lines = {Line("post-ln", {1, 18}, {0.0, 0.81}), Line("post-ln-init", {1, 18}, {0.14, 0.81}),
                 Line("post-ln-cold", {1, 15}, {0.0, 0.0})}}};
}

std::vector<LinePlot> PublishedFigure5() {
  return {
      {.id = "fig5-published-1",
       .title = "Figure 5, read off: model update against depth, 64-128-2",
       .x_label = "layers a side",
       .y_label = "model update",
       .y_scale = Scale::kLog,
       .x_ticks = {6, 18, 30, 50, 70, 100},
       .lines = {Line("deepnet", {6, 18, 30, 50, 70, 100},
                      {0.002, 0.003, 0.004, 0.005, 0.006, 0.0075}),
                 Line("post-ln", {6, 10, 18, 24, 40, 50}, {0.018, 0.033, 0.036, 0.07, 0.09, 0.13})},
       .bands = {{.method = "post-ln",
                  .label = "Post-LN jumps between 0.1 and 0.47",
                  .left = 60,
                  .right = 100,
                  .low = 0.1,
                  .high = 0.47}}}};
}

std::vector<LinePlot> PublishedFigure6() {
  const std::vector<double> x = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100};
  return {
      {.id = "fig6-published-1",
       .title = "Figure 6, read off (DS-Init within 1, Admin within 0.5)",
       .x_label = "layers a side",
       .y_label = "BLEU",
       .x_ticks = {10, 30, 50, 70, 100},
       .lines = {
           Line("deepnet", x, {29.8, 30.9, 31.1, 31.3, 31.2, 31.4, 31.7, 31.5, 31.5, 31.7}),
           Line("post-ln", x, {4.2, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
           Line("ds-init", x, {29.6, 29.5, 14, 10.4, 13.1, 10.2, 7.2, 27.5, 12, 6.6}),
           Line("admin", x, {28.8, 29.2, 28.8, 28.1, 27.7, 22.6, 16.7, 16.9, 0.7, 0.8}),
           Line("rezero", x, {25.9, 26.4, 27.1, 27.7, 28.2, 27.7, 27.8, 28.0, 27.8, 27.8}),
           Line("r-fixup", x, {29.6, 30.3, 30.2, 30.4, 30.3, 30.2, 30.1, 30.3, 30.2, 30.2}),
           Line("t-fixup", x, {29.6, 29.3, 28.6, 28.2, 28.6, 27.6, 27.2, 25.8, 26.4, 27.0}),
           Line("pre-ln", x, {29.5, 29.1, 28.2, 27.0, 26.6, 26.2, 25.6, 25.1, 24.7, 24.3}),
           Line("dlcl", x, {28.6, 29.1, 29.3, 29.5, 29.5, 29.5, 29.5, 29.6, 29.3, 29.8}),
           Line("normformer", x, {27.3, 26.9, 26.3, 26.5, 26.3, 26.2, 25.9, 25.9, 25.8, 25.6})}}};
}

std::vector<LinePlot> PublishedFigure7() {
  const auto plot = [](const std::string& id, const std::string& title, const std::string& x_label,
                       const std::vector<double>& x, const std::vector<double>& y) {
    return LinePlot{.id = id,
                    .title = title,
                    .x_label = x_label,
                    .y_label = "validation loss",
                    .x_scale = Scale::kLog,
                    .x_ticks = x,
                    .lines = {Line("deepnet", x, y)}};
  };
  return {plot("fig7-published-1", "Figure 7a, read off: after 30,000 steps", "learning rate",
               {5e-4, 1e-3, 1.5e-3}, {3.97, 3.91, 3.89}),
          plot("fig7-published-2", "Figure 7b, read off", "thousand tokens a step",
               {64 * 4, 128 * 4, 256 * 4}, {3.91, 3.89, 3.88}),
          plot("fig7-published-3", "Figure 7c, read off (1,024 over-fits after 10,000 steps)",
               "width", {512, 768, 1024}, {3.99, 3.99, 4.13})};
}

std::vector<LinePlot> PublishedFigure8() {
  const std::vector<double> x = {12, 20, 100, 200, 1000};
  PlotLine fit{.method = "deepnet", .label = "A log d + B", .dotted = true};
  for (const double depth : x)
    fit.points.push_back({.x = depth, .y = 3.66 * std::log10(depth) + 21.9});
  return {
      {.id = "fig8-published-1",
       .title = "Figure 8, read off; the line, 3.66 log10(d) + 21.9, is ours through its points",
       .x_label = "layers in all",
       .y_label = "BLEU",
       .x_scale = Scale::kLog,
       .x_ticks = x,
       .lines = {Line("deepnet", x, {25.26, 26.6, 30.1, 31.1, 32.05}), fit}}};
}

std::vector<LinePlot> PublishedTable1() {
  const std::vector<double> x = {6, 18, 50, 100};
  return {{.id = "table1-published-1",
           .title = "Table 1, printed: BLEU on WMT-17 English-German",
           .x_label = "layers a side",
           .y_label = "BLEU",
           .x_scale = Scale::kLog,
           .x_ticks = x,
           .lines = {Line("deepnet", x, {27.8, 28.8, 29.0, 28.9}),
                     Line("post-ln", x, {28.1, kDiverged, kDiverged, kDiverged}),
                     Line("ds-init", x, {27.9, kDiverged, kDiverged, kDiverged}),
                     Line("admin", x, {27.9, 28.8, kDiverged, kDiverged}),
                     Line("rezero", x, {26.9, kDiverged, kDiverged, kDiverged}),
                     Line("r-fixup", x, {27.5, 28.4, 27.7, kDiverged}),
                     Line("t-fixup", x, {27.5, 28.4, 27.9, kDiverged}),
                     Line("pre-ln", x, {27.0, 28.1, 28.0, 27.4}),
                     Line("dlcl", x, {27.4, 28.2, kDiverged, 27.5}),
                     Line("normformer", x, {27.0, 28.3, 27.8, kDiverged})}}};
}

}  // namespace deepnet
