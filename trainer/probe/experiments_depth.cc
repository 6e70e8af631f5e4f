// Scores against depth: figures 6 and 8, tables 1 and 2.
#include "absl/strings/str_cat.h"

#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/experiment_tables.h"
#include "trainer/probe/quantities.h"

namespace deepnet {
namespace {

Fields Layers(double x) { return BothStacks(static_cast<int>(x)); }
Fields HalfEach(double x) { return BothStacks(static_cast<int>(x) / 2); }

// As many devices as the paper had: one for each of a step's 128 microbatches. The recipe itself is
// of one large host.
Fields Opus100Cluster() {
  return {"cluster.nodes=16", "cluster.devices_per_node=8", "cluster.device_memory_gib=80"};
}

// Minutes of training translate nothing; the loss on the test set tells systems apart much earlier.
Panel ScorePanel(LabSize size, const std::string& x_label) {
  const bool small = size == LabSize::kSmall;
  return {.quantity = small ? Quantity::kTestNll : Quantity::kTestBleu,
          .title = small ? "Loss on the test set against depth" : "BLEU against depth",
          .x_label = x_label,
          .x_scale = Scale::kLog};
}

Panel DeepestCurves() {
  return {.kind = PanelKind::kCurve,
          .quantity = Quantity::kTrainNll,
          .title = "Training loss of the deepest"};
}

}  // namespace

Experiment MakeFigure6(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Figure 6",
      .title = "Score against depth, for every method",
      .claim = "Which methods still train when they get deeper, and which get better by it?",
      .panels = {ScorePanel(options.size, "layers a side"), DeepestCurves()},
      .evaluate = TestWords(options.size),
      .paper = Iwslt14Settings(),
      .published = PublishedFigure6()};
  const bool small = options.size == LabSize::kSmall;
  const CellTable table{.recipe = small ? kSmallRecipe : kIwslt14Recipe, .seeds = options.seeds};
  std::vector<double> depths = {6, 12, 24, 50};
  if (!small) depths = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100};
  AddCells(table, MethodsOf(options, PaperMethods()), DepthsOf(options, depths), Layers,
           &experiment);
  return experiment;
}

Experiment MakeFigure8(const ExperimentOptions& options) {
  Experiment experiment{.answers = "Figure 8",
                        .title = "A law of depth",
                        .claim =
                            "In the paper, DeepNet's score grows with the logarithm of its depth: "
                            "A log10(d) + B, many languages in one model.",
                        .panels = {ScorePanel(options.size, "layers in all")},
                        .evaluate = TestWords(options.size),
                        .paper = Opus100Settings(),
                        .published = PublishedFigure8()};
  experiment.panels[0].fit = true;
  const bool small = options.size == LabSize::kSmall;
  CellTable table{.recipe = small ? kSmallRecipe : kOpus100Recipe, .seeds = options.seeds};
  if (small) table.sets = {"data.directions="};  // all that there are
  if (!small) table.sets = Opus100Cluster();
  std::vector<double> depths = {12, 20, 48, 100, 200};
  if (!small) depths = {12, 20, 100, 200, 1000};
  AddCells(table, MethodsOf(options, {"deepnet"}), DepthsOf(options, depths), HalfEach,
           &experiment);
  return experiment;
}

Experiment MakeTable1(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Table 1",
      .title = "Method by depth",
      .claim = "Ten methods, deeper and deeper, at a high rate: who trains at all?",
      .panels = {ScorePanel(options.size, "layers a side"), DeepestCurves()},
      .evaluate = TestWords(options.size),
      .paper = Wmt17Settings(),
      .published = PublishedTable1()};
  const bool small = options.size == LabSize::kSmall;
  CellTable table{.recipe = small ? kSmallRecipe : kWmt17Recipe, .seeds = options.seeds};
  if (small) table.sets = {"train.steps=1000", "optim.warmup_steps=800"};
  std::vector<std::string> normed, bare;
  for (const std::string& key : MethodsOf(options, PaperMethods())) {
    (FindMethod(key).family == MethodFamily::kNone ? bare : normed).push_back(key);
  }
  // The paper's rate here is three times that of figure 6, but for methods without a norm.
  CellTable fast = table, slow = table;
  if (small) fast.sets.push_back("optim.rate=8e-3");
  slow.sets.push_back(small ? "optim.rate=2.7e-3" : "optim.rate=5e-4");
  std::vector<double> depths = {6, 18, 50};
  if (!small) depths.push_back(100);
  for (const double depth : DepthsOf(options, depths)) {
    AddCells(fast, normed, {depth}, Layers, &experiment);
    AddCells(slow, bare, {depth}, Layers, &experiment);
  }
  return experiment;
}

Experiment MakeTable2(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Table 2",
      .title = "Many languages in one model",
      .claim = "English to and from every other language, one model: what does depth bring?",
      .panels = {ScorePanel(options.size, "layers in all")},
      .evaluate = TestWords(options.size),
      .paper = Opus100Settings(),
      .tables = {PublishedTable2()}};
  if (options.size == LabSize::kPaper) {
    for (const Quantity quantity : {Quantity::kTestBleuToEnglish, Quantity::kTestBleuFromEnglish}) {
      experiment.panels.push_back({.quantity = quantity,
                                   .title = absl::StrCat(QuantityUnit(quantity), ", against depth"),
                                   .x_label = "layers in all",
                                   .x_scale = Scale::kLog});
    }
    const CellTable table{
        .recipe = kOpus100Recipe, .sets = Opus100Cluster(), .seeds = options.seeds};
    AddCells(table, MethodsOf(options, {"deepnet"}), DepthsOf(options, {200, 1000}), HalfEach,
             &experiment);
    return experiment;
  }
  const CellTable table{.recipe = kSmallRecipe,
                        .sets = {"data.directions=", "train.steps=600"},
                        .seeds = options.seeds};
  AddCells(table, MethodsOf(options, {"deepnet", "pre-ln", "post-ln"}),
           DepthsOf(options, {12, 24, 48, 100}), HalfEach, &experiment);
  return experiment;
}

}  // namespace deepnet
