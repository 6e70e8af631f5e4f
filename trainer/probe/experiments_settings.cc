// Other settings than depth: figure 7, table 3, and a sweep of DeepNorm's own constants.
#include "absl/strings/str_cat.h"

#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/experiment_tables.h"

namespace deepnet {
namespace {

constexpr int kTunedLayers = 24;  // a side
constexpr char kM2m100Folder[] = "runs/m2m100_12b";

Panel LossPanel(const std::string& group, const std::string& title, const std::string& x_label) {
  return {.quantity = Quantity::kDevNll,
          .title = title,
          .x_label = x_label,
          .group = group,
          .x_scale = Scale::kLog};
}

void AddFigure7Cells(LabSize size, const CellTable& table, Experiment* experiment) {
  const bool small = size == LabSize::kSmall;
  const std::vector<double> rates =
      small ? std::vector<double>{1e-3, 2e-3, 4e-3} : std::vector<double>{5e-4, 1e-3, 1.5e-3};
  AddCells(
      table, {"deepnet"}, rates, [](double x) { return Fields{absl::StrCat("optim.rate=", x)}; },
      experiment, "rate");
  const std::vector<double> batches =
      small ? std::vector<double>{1, 2, 4} : std::vector<double>{64, 128, 256};
  AddCells(
      table, {"deepnet"}, batches,
      [](double x) { return Fields{absl::StrCat("data.microbatches_per_step=", x)}; }, experiment,
      "batch");
  CellTable wide = table;
  if (!small) {
    wide.sets.insert(wide.sets.end(), {"optim.rate=5e-4", "optim.epsilon=1e-6",
                                       "optim.weight_decay=0", "optim.clip_norm=1"});
  }
  const std::vector<double> widths =
      small ? std::vector<double>{64, 96, 128} : std::vector<double>{512, 768, 1024};
  AddCells(
      wide, {"deepnet"}, widths,
      [small](double x) {
        return Fields{absl::StrCat("model.width=", x), absl::StrCat("model.ffn_width=", 4 * x),
                      absl::StrCat("model.heads=", x / (small ? 32 : 64))};
      },
      experiment, "width");
}

// Others' weights, so no seed changes them; `evaluate` reads them where `import` put them.
CellSpec ImportedM2m100() {
  return {.name = "m2m-100",
          .series = "M2M-100",
          .x = 48,
          .recipe = kM2m100Recipe,
          .checkpoint = kM2m100Folder,
          .sets = {"seed=1"}};
}

}  // namespace

Experiment MakeFigure7(const ExperimentOptions& options) {
  const bool small = options.size == LabSize::kSmall;
  Experiment experiment{
      .answers = "Figure 7",
      .title = "Rate, batch and width",
      .claim =
          "In the paper, 18 layers a side of DeepNet take larger rates, batches and widths without "
          "trouble.",
      .panels = {LossPanel("rate", "Validation loss against the learning rate", "learning rate"),
                 LossPanel("batch", "Validation loss against the batch", "microbatches a step"),
                 LossPanel("width", "Validation loss against the width", "width")},
      .paper = Wmt17Settings(),
      .published = PublishedFigure7()};
  CellTable table{.recipe = small ? kSmallRecipe : kWmt17Recipe, .seeds = options.seeds};
  table.sets = BothStacks(18);
  table.sets.push_back(small ? "train.validate_sentences=200" : "train.steps=30000");
  AddFigure7Cells(options.size, table, &experiment);
  return experiment;
}

Experiment MakeTable3(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Table 3",
      .title = "Deep and narrow against shallow and wide",
      .claim =
          "The paper's 200 layers with 3.2 billion parameters beat M2M-100's 48 layers with 12 "
          "billion, from any language to any other.",
      .panels = {{.kind = PanelKind::kMatrix,
                  .quantity = Quantity::kTestSpBleu,
                  .title = "spBLEU, source by target"}},
      .evaluate = {"--split", "test", "--any-to-any", "--spm", "{data}/tokenizer.model"},
      .paper = Languages102Settings(),
      .tables = {PublishedTable3()}};
  if (options.size == LabSize::kPaper) {
    experiment.evaluate.back() = "corpus/flores200_sacrebleu_tokenizer_spm.model";
    const CellTable table{.recipe = kLanguages102Recipe, .seeds = options.seeds};
    AddCells(
        table, {"deepnet"}, {200}, [](double) { return BothStacks(100); }, &experiment);
    experiment.cells.push_back(ImportedM2m100());
    return experiment;
  }
  experiment.evaluate.insert(experiment.evaluate.end(), {"--sentences", "100"});
  // Of equal cost: the shallow one has 1.8 times as many parameters.
  const CellTable table{
      .recipe = kSmallRecipe,
      .sets = {"data.directions=", "train.steps=2000", "optim.rate=5e-4", "optim.warmup_steps=200"},
      .seeds = options.seeds};
  AddCells(
      table, {"deepnet"}, {48},
      [](double) {
        Fields fields = BothStacks(24);
        fields.insert(fields.end(), {"model.width=96", "model.ffn_width=384", "model.heads=3"});
        return fields;
      },
      &experiment);
  AddCells(
      table, {"pre-ln"}, {12},
      [](double) {
        Fields fields = BothStacks(6);
        fields.insert(fields.end(), {"model.width=256", "model.ffn_width=1024", "model.heads=8"});
        return fields;
      },
      &experiment);
  return experiment;
}

Experiment MakeTuning(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "no figure of the paper",
      .title = "DeepNorm's constants: alpha from half to twice, beta from half to four times",
      .claim =
          "alpha holds on to the stream, beta starts branches small; the paper derives both from "
          "the depth. What do other values do?",
      .panels = {{.kind = PanelKind::kGrid,
                  .title = "Loss on the test set; factors on the paper's constants",
                  .x_label = "alpha times",
                  .y_label = "beta times"}},
      .evaluate = TestWords(LabSize::kSmall)};
  CellTable table{.recipe = kSmallRecipe, .sets = BothStacks(kTunedLayers), .seeds = options.seeds};
  table.sets.push_back("model.residual=DEEPNORM");
  for (const double alpha : {0.5, 0.71, 1.0, 1.41, 2.0}) {
    for (const double beta : {0.5, 1.0, 2.0, 4.0}) {
      AddGridCell(table, alpha, beta, ScaledDeepNorm(kTunedLayers, alpha, beta), &experiment);
    }
  }
  return experiment;
}

}  // namespace deepnet
