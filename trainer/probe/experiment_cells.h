// How the tables of experiments are written down: cells of many methods, depths and seeds in a line
// or two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/probe/experiment.h"
#include "trainer/probe/methods.h"

namespace deepnet {

using Fields = std::vector<std::string>;  // FIELD=VALUE

// What cells have in common.
struct CellTable {
  std::string recipe;  // file below launch/recipes
  Fields sets = {};    // in every cell
  int seeds = 1;
};

// "model.encoder_layers=24", "model.decoder_layers=24".
Fields BothStacks(int layers);

// "model.deepnorm.encoder_alpha=2.1", ...: the paper's constants for `layers` a side, times
// factors.
Fields ScaledDeepNorm(int layers, double alpha_factor, double beta_factor);

// What `deepnet evaluate` is told: all of the test set, or its beginning.
std::vector<std::string> TestWords(LabSize size);

// The methods to run: those asked for, or else the experiment's `own`; its depths likewise.
std::vector<std::string> MethodsOf(const ExperimentOptions& options,
                                   const std::vector<std::string>& own);
std::vector<double> DepthsOf(const ExperimentOptions& options, const std::vector<double>& own);

// One cell a seed for each of `methods` at each of `xs`, with the method's fields and those that
// `fields` says for an x. Small x first, so that a run that is stopped has whole columns.
void AddCells(const CellTable& table, const std::vector<std::string>& methods,
              const std::vector<double>& xs, const std::function<Fields(double x)>& fields,
              Experiment* experiment, const std::string& group = "");

// One cell a seed: a point of a grid.
void AddGridCell(const CellTable& table, double x, double y, const Fields& fields,
                 Experiment* experiment);

}  // namespace deepnet
