// Why Post-LN fails: figures 3 to 5, and the two-by-two ablation that the paper does not have.
#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/experiment_tables.h"

namespace deepnet {
namespace {

CellTable Table(LabSize size, int seeds, Fields sets) {
  return {.recipe = size == LabSize::kSmall ? kSmallRecipe : kIwslt14Recipe,
          .sets = std::move(sets),
          .seeds = seeds};
}

Fields Layers(double x) { return BothStacks(static_cast<int>(x)); }

}  // namespace

Experiment MakeFigure3(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Figure 3",
      .title = "A better start for Post-LN",
      .claim =
          "In the paper, smaller lower layers (Post-LN-init) raise the gradient at the top and let "
          "18 layers "
          "a side train where Post-LN does not: it is not the gradient that vanishes first.",
      .panels = {{.kind = PanelKind::kLayers,
                  .quantity = Quantity::kGradientNorm,
                  .title = "Gradient norm of decoder layers, step 10, 18 layers a side",
                  .y_scale = Scale::kLog,
                  .at_x = 18,
                  .step = 10},
                 {.kind = PanelKind::kScore,
                  .quantity = Quantity::kGradientNorm,
                  .title = "Gradient norm of the last decoder layer against depth, step 10",
                  .x_label = "layers a side",
                  .y_scale = Scale::kLog,
                  .step = 10},
                 {.kind = PanelKind::kCurve,
                  .quantity = Quantity::kTrainNll,
                  .title = "Training loss, 18 layers a side",
                  .at_x = 18}},
      .paper = Figure3Settings(),
      .published = PublishedFigure3()};
  const CellTable table = Table(size, seeds, {"instruments.every_steps=10"});
  AddCells(table, {"deepnet", "post-ln", "post-ln-init"}, {6, 12, 18, 24}, Layers, &experiment);
  return experiment;
}

Experiment MakeFigure4(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Figure 4",
      .title = "What happens in the first 30 steps",
      .claim =
          "In the paper, without warm-up the first steps move Post-LN so far that what enters its "
          "norms grows, "
          "and gradients below the top layers are gone: the update explodes first.",
      .panels = {{.kind = PanelKind::kCurve,
                  .quantity = Quantity::kModelUpdate,
                  .title = "How far the model has moved on a fixed batch"},
                 {.kind = PanelKind::kCurve,
                  .quantity = Quantity::kFfnNormInput,
                  .title = "What enters the norm behind feed-forward blocks, mean over layers"},
                 {.kind = PanelKind::kCurve,
                  .quantity = Quantity::kAttentionNormInput,
                  .title = "What enters the norm behind attention, mean over layers"},
                 {.kind = PanelKind::kLayers,
                  .quantity = Quantity::kGradientNorm,
                  .title = "Gradient norm of decoder layers, step 30",
                  .y_scale = Scale::kLog,
                  .step = 30}},
      .paper = Figure4Settings(),
      .published = PublishedFigure4()};
  // The paper's own rate and warm-up in both sizes: 30 steps of it are what the figure is about.
  const CellTable table =
      Table(size, seeds,
            {"instruments.every_steps=1", "instruments.model_update=true", "train.steps=30",
             "train.log_every_steps=1", "optim.rate=5e-4", "optim.warmup_steps=4000"});
  CellTable cold = table;
  cold.sets.insert(cold.sets.end(), {"optim.schedule=CONSTANT", "optim.warmup_steps=0"});
  AddCells(table, {"deepnet", "post-ln", "post-ln-init"}, {18}, Layers, &experiment);
  AddCells(cold, {"post-ln-cold"}, {18}, Layers, &experiment);
  return experiment;
}

Experiment MakeFigure5(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "Figure 5",
      .title = "Model update against depth",
      .claim =
          "The paper's explanation in one picture: the first steps move the output of a deeper "
          "DeepNet hardly further than that of a shallow one, of Post-LN ever further.",
      .panels = {{.kind = PanelKind::kScore,
                  .quantity = Quantity::kModelUpdate,
                  .title = "Model update after four steps",
                  .x_label = "layers a side",
                  .y_scale = Scale::kLog}},
      .paper = Figure5Settings(),
      .published = PublishedFigure5()};
  const CellTable table =
      Table(size, seeds,
            {"model.width=64", "model.ffn_width=128", "model.heads=2", "instruments.every_steps=1",
             "instruments.model_update=true", "train.steps=4", "train.log_every_steps=1",
             "optim.rate=5e-4", "optim.warmup_steps=4000"});
  AddCells(table, {"deepnet", "post-ln"}, {6, 18, 30, 50, 70, 100}, Layers, &experiment);
  return experiment;
}

Experiment MakeAblation(LabSize size, int seeds) {
  Experiment experiment{
      .answers = "no figure of the paper",
      .title = "Residual and norm, each with and without",
      .claim =
          "Post-LN has both, the other three lack one or both; DeepNet stands beside them. What "
          "is it that deep stacks cannot do without?",
      .panels = {{.kind = PanelKind::kScore,
                  .title = "Loss on the test set against depth",
                  .x_label = "layers a side",
                  .x_scale = Scale::kLog},
                 {.kind = PanelKind::kCurve,
                  .quantity = Quantity::kTrainNll,
                  .title = "Training loss of the deepest"}},
      .evaluate = TestWords(size),
      .paper = Iwslt14Settings()};
  const std::vector<std::string> methods = {"deepnet", "post-ln", "residual-only", "norm-only",
                                            "neither"};
  AddCells(Table(size, seeds, {}), methods, {6, 18, 50}, Layers, &experiment);
  return experiment;
}

}  // namespace deepnet
