// What the paper says: its figures and tables as numbers, and what it trained with (Wang et al.,
// 2022, arXiv:2203.00555v1). Tables are printed numbers; figures are read off by eye from the
// published images: scores within 0.2 BLEU where no other error is named. "(inferred)" marks what
// the paper does not say and follows from its parameter counts or its sources.
#pragma once

#include <string>
#include <vector>

#include "trainer/probe/line_plot.h"

namespace deepnet {

struct PublishedTable {
  std::string title;
  std::string source;  // "Printed in table 2."
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

// Tables 4 to 8, in words as a reader compares them; an empty corpus: the paper has no such runs.
struct PublishedSettings {
  std::string corpus;
  std::string width;  // d / feed-forward / heads
  std::string depth;  // layers a side
  std::string vocabulary;
  std::string steps;
  std::string batch;  // tokens a step
  std::string rate;   // and its schedule
  std::string dropout;
  std::string weight_decay;
  std::string clip_norm;
  std::string adam;  // beta1, beta2; epsilon
  std::string label_smoothing;
  std::string precision;
  std::string metric;
  std::string seeds;
};

PublishedSettings Iwslt14Settings();  // table 4: figure 6
PublishedSettings Figure3Settings();  // table 4, with what figures 3, 4 and 5 change of it
PublishedSettings Figure4Settings();
PublishedSettings Figure5Settings();
PublishedSettings Wmt17Settings();         // tables 5 and 6: table 1, figure 7
PublishedSettings Opus100Settings();       // table 7: table 2, figure 8
PublishedSettings Languages102Settings();  // table 8: table 3

// Plots, each with the svg id "<experiment>-published-<n>"; sources stand in `title`.
std::vector<LinePlot> PublishedFigure3();
std::vector<LinePlot> PublishedFigure4();
std::vector<LinePlot> PublishedFigure5();
std::vector<LinePlot> PublishedFigure6();
std::vector<LinePlot> PublishedFigure7();
std::vector<LinePlot> PublishedFigure8();
std::vector<LinePlot> PublishedTable1();
PublishedTable PublishedTable2();
PublishedTable PublishedTable3();

}  // namespace deepnet
