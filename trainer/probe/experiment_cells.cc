#include "trainer/probe/experiment_cells.h"

#include "absl/strings/str_cat.h"

#include "trainer/model/depth_scaling.h"

namespace deepnet {
namespace {

void AddSeeds(const CellTable& table, CellSpec cell, const Fields& fields, Experiment* experiment) {
  const std::string stem = cell.name;
  for (int seed = 1; seed <= table.seeds; ++seed) {
    cell.name = absl::StrCat(stem, "-s", seed);
    cell.seed = static_cast<uint64_t>(seed);
    cell.recipe = table.recipe;
    cell.sets = table.sets;
    cell.sets.insert(cell.sets.end(), fields.begin(), fields.end());
    cell.sets.push_back(absl::StrCat("seed=", seed));
    experiment->cells.push_back(cell);
  }
}

}  // namespace

Fields BothStacks(int layers) {
  return {absl::StrCat("model.encoder_layers=", layers),
          absl::StrCat("model.decoder_layers=", layers)};
}

Fields ScaledDeepNorm(int layers, double alpha_factor, double beta_factor) {
  ModelSpec model;
  model.set_residual(DEEPNORM);
  model.set_encoder_layers(layers);
  model.set_decoder_layers(layers);
  const DepthScaling scaling = MakeDepthScaling(model);
  const auto field = [](const char* name, double value) {
    return absl::StrCat("model.deepnorm.", name, "=", value);
  };
  return {field("encoder_alpha", alpha_factor * scaling.encoder_alpha),
          field("encoder_beta", beta_factor * scaling.encoder_beta),
          field("decoder_alpha", alpha_factor * scaling.decoder_alpha),
          field("decoder_beta", beta_factor * scaling.decoder_beta)};
}

std::vector<std::string> TestWords(LabSize size) {
  if (size == LabSize::kPaper) return {"--split", "test"};
  return {"--split", "test", "--sentences", "200"};
}

std::vector<std::string> MethodsOf(const ExperimentOptions& options,
                                   const std::vector<std::string>& own) {
  return options.series.empty() ? own : options.series;
}

std::vector<double> DepthsOf(const ExperimentOptions& options, const std::vector<double>& own) {
  return options.xs.empty() ? own : options.xs;
}

void AddCells(const CellTable& table, const std::vector<std::string>& methods,
              const std::vector<double>& xs, const std::function<Fields(double x)>& fields,
              Experiment* experiment, const std::string& group) {
  for (const double x : xs) {
    for (const std::string& method : methods) {
      Fields sets = MethodSets(FindMethod(method));
      for (const std::string& field : fields(x)) sets.push_back(field);
      AddSeeds(table,
               {.name = absl::StrCat(group, group.empty() ? "" : "-", method, "-", x),
                .group = group,
                .series = method,
                .x = x},
               sets, experiment);
    }
  }
}

void AddGridCell(const CellTable& table, double x, double y, const Fields& fields,
                 Experiment* experiment) {
  AddSeeds(table,
           {.name = absl::StrCat("deepnet-", x, "-", y), .series = "deepnet", .x = x, .y = y},
           fields, experiment);
}

}  // namespace deepnet
