// Why Post-LN fails: figures 3 to 5, and the two-by-two ablation that the paper does not have.
#include "trainer/probe/experiment_cells.h"
#include "trainer/probe/experiment_tables.h"

namespace deepnet {
namespace {

CellTable Table(const ExperimentOptions& options, Fields sets) {
  return {.recipe = options.size == LabSize::kSmall ? kSmallRecipe : kIwslt14Recipe,
          .sets = std::move(sets),
          .seeds = options.seeds};
}

Fields Layers(double x) { return BothStacks(static_cast<int>(x)); }

}  // namespace

Experiment MakeFigure3(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Figure 3",
      .title = "A better start for Post-LN",
      .claim =
          "In the paper, smaller lower layers (Post-LN-init) raise the gradient at the top and let "
          "18 layers a side train where Post-LN does not: it is not the gradient that vanishes "
          "first.",
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
  AddCells(Table(options, {"instruments.every_steps=10"}),
           MethodsOf(options, {"deepnet", "post-ln", "post-ln-init"}),
           DepthsOf(options, {6, 12, 18, 24}), Layers, &experiment);
  return experiment;
}

Experiment MakeFigure4(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Figure 4",
      .title = "What happens in the first 30 steps",
      .claim =
          "In the paper, without warm-up the first steps move Post-LN so far that what enters its "
          "norms grows, and gradients below the top layers are gone: the update explodes first.",
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
  const CellTable table = Table(
      options, {"instruments.every_steps=1", "instruments.model_update=true", "train.steps=30",
                "train.log_every_steps=1", "optim.rate=5e-4", "optim.warmup_steps=4000"});
  AddCells(table, MethodsOf(options, {"deepnet", "post-ln", "post-ln-init", "post-ln-cold"}),
           DepthsOf(options, {18}), Layers, &experiment);
  return experiment;
}

Experiment MakeFigure5(const ExperimentOptions& options) {
  Experiment experiment{
      .answers = "Figure 5",
      .title = "Model update against depth",
      .claim =
          "The paper's explanation in one picture: the first steps move the output of a deeper "
          "DeepNet hardly further than that of a shallow one, of Post-LN ever further.",
      .panels = {{.kind = PanelKind::kScore,
                  .quantity = Quantity::kModelUpdate,
                  .title = "Model update after three steps",
                  .x_label = "layers a side",
                  .y_scale = Scale::kLog}},
      .paper = Figure5Settings(),
      .published = PublishedFigure5()};
  const CellTable table =
      Table(options, {"model.width=64", "model.ffn_width=128", "model.heads=2",
                      "instruments.every_steps=1", "instruments.model_update=true", "train.steps=3",
                      "train.log_every_steps=1", "optim.rate=5e-4", "optim.warmup_steps=4000"});
  AddCells(table, MethodsOf(options, {"deepnet", "post-ln"}),
           DepthsOf(options, {6, 18, 30, 50, 70, 100}), Layers, &experiment);
  return experiment;
}

Experiment MakeAblation(const ExperimentOptions& options) {
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
      .evaluate = TestWords(options.size),
      .paper = Iwslt14Settings()};
  AddCells(Table(options, {}),
           MethodsOf(options, {"deepnet", "post-ln", "residual-only", "norm-only", "neither"}),
           DepthsOf(options, {6, 18, 50}), Layers, &experiment);
  return experiment;
}

}  // namespace deepnet
