// Scores against depth: figures 6 and 8, tables 1 and 2.
#include "absl/strings/str_cat.h"

#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/experiment_tables.h"
#include "trainer/probe/quantities.h"

namespace deepnet {
namespace {

Fields Layers(double x) { return BothStacks(static_cast<int>(x)); }
Fields HalfEach(double x) { return BothStacks(static_cast<int>(x) / 2); }

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

Experiment MakeFigure6(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Figure 6",
      .title = "Score against depth, for every method",
      .claim = "Which methods still train when they get deeper, and which get better by it?",
      .panels = {ScorePanel(size, "layers a side"), DeepestCurves()},
      .evaluate = TestWords(size),
      .paper = Iwslt14Settings(),
      .published = PublishedFigure6()};
  const bool small = size == LabSize::kSmall;
  const CellTable table{.recipe = small ? kSmallRecipe : kIwslt14Recipe, .seeds = seeds};
  std::vector<double> depths = {6, 12, 24, 50};
  if (!small) depths = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100};
  AddCells(table, PaperMethods(), depths, Layers, &experiment);
  return experiment;
}

Experiment MakeFigure8(LabSize size, int seeds) {
  Experiment experiment{.answers = "Figure 8",
                        .title = "A law of depth",
                        .claim =
                            "In the paper, DeepNet's score grows with the logarithm of its depth: "
                            "A log10(d) + B, many languages "
                            "in one model.",
                        .panels = {ScorePanel(size, "layers in all")},
                        .evaluate = TestWords(size),
                        .paper = Opus100Settings(),
                        .published = PublishedFigure8()};
  experiment.panels[0].fit = true;
  const bool small = size == LabSize::kSmall;
  CellTable table{.recipe = small ? kSmallRecipe : kOpus100Recipe, .seeds = seeds};
  if (small) table.sets = {"data.directions="};  // all that there are
  if (!small) table.sets = {"cluster.device_memory_gib=256"};
  std::vector<double> depths = {12, 20, 48, 100, 200};
  if (!small) depths = {12, 20, 100, 200, 1000};
  AddCells(table, {"deepnet"}, depths, HalfEach, &experiment);
  return experiment;
}

Experiment MakeTable1(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Table 1",
      .title = "Method by depth",
      .claim = "Ten methods at four depths, with the same settings: who trains at all?",
      .panels = {ScorePanel(size, "layers a side"), DeepestCurves()},
      .evaluate = TestWords(size),
      .paper = Wmt17Settings(),
      .published = PublishedTable1()};
  const bool small = size == LabSize::kSmall;
  const CellTable table{.recipe = small ? kSmallRecipe : kWmt17Recipe, .seeds = seeds};
  std::vector<std::string> normed,
      bare;  // the paper trains those without a norm at a third of the rate
  for (const std::string& key : PaperMethods()) {
    (FindMethod(key).family == MethodFamily::kNone ? bare : normed).push_back(key);
  }
  CellTable slow = table;
  if (!small) slow.sets.push_back("optim.rate=5e-4");
  for (const double depth : {6, 18, 50, 100}) {
    AddCells(table, normed, {depth}, Layers, &experiment);
    AddCells(slow, bare, {depth}, Layers, &experiment);
  }
  return experiment;
}

Experiment MakeTable2(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Table 2",
      .title = "Many languages in one model",
      .claim = "English to and from every other language, one model: what does depth bring?",
      .panels = {ScorePanel(size, "layers in all")},
      .evaluate = TestWords(size),
      .paper = Opus100Settings(),
      .tables = {PublishedTable2()}};
  if (size == LabSize::kPaper) {
    for (const Quantity quantity : {Quantity::kTestBleuToEnglish, Quantity::kTestBleuFromEnglish}) {
      experiment.panels.push_back({.quantity = quantity,
                                   .title = absl::StrCat(QuantityUnit(quantity), ", against depth"),
                                   .x_label = "layers in all",
                                   .x_scale = Scale::kLog});
    }
    const CellTable table{
        .recipe = kOpus100Recipe, .sets = {"cluster.device_memory_gib=256"}, .seeds = seeds};
    AddCells(table, {"deepnet"}, {200, 1000}, HalfEach, &experiment);
    return experiment;
  }
  const CellTable table{
      .recipe = kSmallRecipe, .sets = {"data.directions=", "train.steps=600"}, .seeds = seeds};
  AddCells(table, {"deepnet", "pre-ln", "post-ln"}, {12, 24, 48, 100}, HalfEach, &experiment);
  return experiment;
}

}  // namespace deepnet
