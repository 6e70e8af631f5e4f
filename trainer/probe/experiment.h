// The experiments of the laboratory, as values: which runs answer which figure or table of the
// DeepNet paper (Wang et al., 2022, arXiv:2203.00555), in two sizes, and what is drawn of them. A
// run is a recipe with some fields changed; nothing here can start one (launch/commands/lab_run.h
// does).
//
// Example:
//   ASSIGN_OR_RETURN(const Experiment fig6, MakeExperiment("fig6", {.size = LabSize::kSmall}));
//   fig6.cells[0].name;  // "deepnet-6-s1"
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/lab.pb.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/published.h"

namespace deepnet {

// kPaper: the published hyper-parameters, for a cluster. kSmall: minutes to an hour and
// a half on two cores, on the corpus of the quick start.
enum class LabSize { kSmall, kPaper };

const char* LabSizeName(LabSize size);  // "small", "paper"

// One run.
struct CellSpec {
  std::string name;         // of its folder; unique in the experiment
  std::string group = {};   // which panels show it; empty: there is one group
  std::string series = {};  // its line: a key of methods.h
  double x = 0.0;           // where on the axis
  double y = 0.0;           // second axis, of grids
  uint64_t seed = 1;
  std::string recipe = {};  // file below launch/recipes
  // Folder of a checkpoint that others trained (`deepnet checkpoint import`): the run is only
  // scored. Empty: it is trained.
  std::string checkpoint = {};
  std::vector<std::string> sets = {};  // FIELD=VALUE, the seed among them
};

enum class PanelKind {
  kScore,   // `quantity` of the cells over x, a line a series, seeds as a spread
  kCurve,   // `quantity` over steps, a line a series (its first seed) at its largest x
  kLayers,  // `quantity` over layers, likewise
  kGrid,    // `quantity` over (x, y) as a heat map, mean over seeds
  kMatrix,  // `quantity` of each direction, source by target, a heat map a series
};

// What is read off a cell.
enum class Quantity {
  kTestNll,              // nats a target token on the test set
  kTestBleu,             // mean over directions
  kTestBleuToEnglish,    // mean over X to English
  kTestBleuFromEnglish,  // mean over English to X
  kTestSpBleu,           // mean over directions
  kTrainNll,             // nats a target token while training; over steps
  kDevNll,               // of the last validation; kCurve: of all
  kModelUpdate,          // InstrumentRecord.model_update
  kGradientNorm,         // of each decoder layer; kScore: of the last one
  kFfnNormInput,         // mean over layers of what enters the norm behind a feed-forward block
  kAttentionNormInput,   // likewise behind attention
};

struct Panel {
  PanelKind kind = PanelKind::kScore;
  Quantity quantity = Quantity::kTestNll;
  std::string title;         // above the plot
  std::string x_label = {};  // "layers a side"; of steps and layers it is known
  std::string y_label = {};  // of grids
  std::string group = {};    // of the cells it shows
  Scale x_scale = Scale::kLinear;
  Scale y_scale = Scale::kLinear;
  double at_x = 0.0;  // kCurve, kLayers: of the cells at this x; 0: at the largest
  int64_t step = 0;   // what instruments say: of the first record from this step on; 0: the last
  bool fit = false;   // kScore: also A log10(x) + B of each series
};

// What x means where an experiment is methods by depths. Such an experiment takes any key of
// methods.h and any depth: what it has not itself is run with its settings.
enum class DepthAxis {
  kNone,   // it is something else
  kASide,  // layers of either stack
  kBoth,   // layers in all, half of them in either stack
};

struct Experiment {
  std::string name;  // "fig6"
  LabSize size = LabSize::kSmall;
  std::string answers;  // "Figure 6"
  std::string title;    // "Score against depth, for every method"
  std::string claim;    // what the paper reads off it, or what is asked; a sentence or two
  DepthAxis depths = DepthAxis::kNone;
  std::vector<CellSpec> cells;
  std::vector<Panel> panels;
  std::vector<std::string> evaluate;   // words for `deepnet evaluate`; empty: nothing is scored
  PublishedSettings paper;             // what the paper trained with
  std::vector<LinePlot> published;     // its figures
  std::vector<PublishedTable> tables;  // its tables, where no plot shows them
};

struct ExperimentOptions {
  LabSize size = LabSize::kSmall;
  int seeds = 0;  // runs that differ in their seed only; 0: the experiment's own number
  std::vector<std::string> series = {};  // only these; empty: the experiment's own
  std::vector<double> xs = {};           // only at these places of the axis; empty: its own
};

// In the order of the paper, then what it does not have.
std::vector<std::string> ExperimentNames();

// InvalidArgument naming what is unknown: the name, the size it does not come in, a series, a place
// of the axis. Series and places in the experiment's own order, then those that it has not itself;
// one that is asked for twice is there once.
absl::StatusOr<Experiment> MakeExperiment(const std::string& name,
                                          const ExperimentOptions& options);

// The highest seed of its cells.
uint64_t NumSeeds(const Experiment& experiment);

// The experiment behind a result. A broken invariant if there is none of that name and size.
Experiment ExperimentOf(const LabResult& result);

}  // namespace deepnet
