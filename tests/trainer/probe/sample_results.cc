#include "tests/trainer/probe/sample_results.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "trainer/probe/experiment.h"

namespace deepnet::testing {
namespace {

constexpr double kStart = 8.9, kFrequencies = 6.15;

bool Fails(const CellSpec& spec) { return spec.series.starts_with("post-ln") && spec.x >= 18; }
bool Diverges(const CellSpec& spec) { return spec.series == "rezero" && spec.x >= 50; }

// Where the loss ends.
double FinalNll(const CellSpec& spec) {
  if (Fails(spec)) return kFrequencies + 0.01;
  const double depth = std::log10(std::max(1.0, spec.x));
  const double method = static_cast<double>(spec.series.size()) * 0.02;
  return 5.9 - 0.06 * depth + method + 0.013 * static_cast<double>(spec.seed);
}

void AddSteps(const CellSpec& spec, LabCell* cell) {
  const int end = Diverges(spec) ? 120 : 300;
  for (int step = 10; step <= end; step += 10) {
    StepRecord& record = *cell->add_steps();
    record.set_step(step);
    record.set_nll(FinalNll(spec) + (kStart - FinalNll(spec)) * std::exp(-(step - 10) / 45.0));
    record.set_seconds(0.1 * step);
  }
}

void AddInstruments(const CellSpec& spec, LabCell* cell) {
  const double growth = spec.series == "deepnet" ? 0.2 : 1.0;
  for (int step = 1; step <= 30; ++step) {
    InstrumentRecord& record = *cell->add_instruments();
    record.set_step(step);
    record.set_model_update(growth * (1 - std::exp(-step / 6.0)) * std::pow(spec.x, growth));
    for (int layer = 0; layer < static_cast<int>(spec.x); ++layer) {
      LayerInstruments& of_layer = *record.add_layers();
      of_layer.set_name(absl::StrCat("decoder.layers.", layer));
      of_layer.set_gradient_norm(std::exp(-growth * (spec.x - 1 - layer) / 4));
      for (const char* name : {"self_attn", "ffn"}) {
        SublayerInstruments& sublayer = *record.add_sublayers();
        sublayer.set_name(absl::StrCat("decoder.layers.", layer, ".", name));
        sublayer.set_norm_input(8 + growth * step * 0.1);
      }
    }
  }
}

void AddTest(const CellSpec& spec, bool matrix, LabCell* cell) {
  EvalRecord& test = *cell->mutable_test();
  for (const std::string from : {"en", "es", "fr", "it"}) {
    for (const std::string to : {"en", "es", "fr", "it"}) {
      if (from == to || (!matrix && from + to != "esen")) continue;
      DirectionScore& score = *test.add_directions();
      score.set_direction(from + "-" + to);
      score.set_sentences(200);
      score.set_nll(FinalNll(spec));
      score.set_spbleu(static_cast<double>(from[0] % 7) + static_cast<double>(to[1] % 5));
    }
  }
  test.set_nll(FinalNll(spec));
  test.set_bleu(0.3);
  test.set_spbleu(4.2);
}

LabCell SampleCell(const Experiment& experiment, const CellSpec& spec) {
  LabCell cell;
  cell.set_name(spec.name);
  cell.set_group(spec.group);
  cell.set_series(spec.series);
  cell.set_x(spec.x);
  cell.set_y(spec.y);
  cell.set_seed(spec.seed);
  cell.set_recipe(spec.recipe);
  for (const std::string& set : spec.sets) cell.add_sets(set);
  cell.add_commands("deepnet train --config " + spec.recipe);
  cell.set_status(Diverges(spec) ? CELL_DIVERGED : CELL_DONE);
  cell.set_exit_code(Diverges(spec) ? 7 : 0);
  cell.set_parameters(1234567);
  cell.set_seconds(31);
  AddSteps(spec, &cell);
  AddInstruments(spec, &cell);
  EvalRecord& dev = *cell.add_validations();
  dev.set_step(300);
  dev.set_nll(FinalNll(spec) + 0.05);
  if (!Diverges(spec)) AddTest(spec, experiment.name == "table3", &cell);
  return cell;
}

}  // namespace

LabResult SampleResult(const std::string& name, int seeds) {
  const auto experiment = MakeExperiment(name, {.seeds = seeds});
  DEEPNET_CHECK(experiment.ok()) << experiment.status().message();
  LabResult result;
  result.set_experiment(name);
  result.set_size("small");
  result.set_version("0.1.0");
  result.set_machine("2 cores, 1 a run");
  result.set_seeds(seeds);
  result.set_command("deepnet lab run " + name);
  LabData& data = *result.mutable_data();
  data.set_folder("runs/quickstart/data");
  data.set_pairs(130931);
  data.set_vocabulary_size(4008);
  data.set_word_frequency_nll(kFrequencies);
  data.set_word_frequency_dev_nll(kFrequencies);
  data.set_word_frequency_test_nll(kFrequencies);
  for (const char* language : {"en", "es", "fr", "it"}) data.add_languages(language);
  for (const CellSpec& spec : experiment->cells)
    *result.add_cells() = SampleCell(*experiment, spec);
  result.set_cells_planned(result.cells_size());
  return result;
}

}  // namespace deepnet::testing
