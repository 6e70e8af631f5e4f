// The experiments one by one; MakeExperiment (experiment.h) picks. `options.seeds` is above 0.
// Experiments of methods by depths read `options.series` and `options.xs`, which are valid and in
// order; from the others MakeExperiment takes away what was not asked for.
#pragma once

#include "trainer/probe/experiment.h"

namespace deepnet {

// Why Post-LN fails (experiments_cause.cc).
Experiment MakeFigure3(const ExperimentOptions& options);
Experiment MakeFigure4(const ExperimentOptions& options);
Experiment MakeFigure5(const ExperimentOptions& options);
Experiment MakeAblation(const ExperimentOptions& options);

// Scores against depth (experiments_depth.cc).
Experiment MakeFigure6(const ExperimentOptions& options);
Experiment MakeFigure8(const ExperimentOptions& options);
Experiment MakeTable1(const ExperimentOptions& options);
Experiment MakeTable2(const ExperimentOptions& options);

// Everything else (experiments_settings.cc).
Experiment MakeFigure7(const ExperimentOptions& options);
Experiment MakeTable3(const ExperimentOptions& options);
Experiment MakeTuning(const ExperimentOptions& options);

// What the tables share.
inline constexpr char kSmallRecipe[] = "lab/small.textproto";
inline constexpr char kIwslt14Recipe[] = "paper/iwslt14.textproto";
inline constexpr char kWmt17Recipe[] = "paper/wmt17.textproto";
inline constexpr char kOpus100Recipe[] = "deepnet_100l.textproto";
inline constexpr char kLanguages102Recipe[] = "paper/languages102.textproto";
inline constexpr char kM2m100Recipe[] = "m2m100_12b.textproto";

}  // namespace deepnet
