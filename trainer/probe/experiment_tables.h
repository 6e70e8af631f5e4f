// The experiments one by one; MakeExperiment (experiment.h) picks. `seeds` as in CellTable.
#pragma once

#include "trainer/probe/experiment.h"

namespace deepnet {

// Why Post-LN fails (experiments_cause.cc).
Experiment MakeFigure3(LabSize size, int seeds);
Experiment MakeFigure4(LabSize size, int seeds);
Experiment MakeFigure5(LabSize size, int seeds);
Experiment MakeAblation(LabSize size, int seeds);

// Scores against depth (experiments_depth.cc).
Experiment MakeFigure6(LabSize size, int seeds);
Experiment MakeFigure8(LabSize size, int seeds);
Experiment MakeTable1(LabSize size, int seeds);
Experiment MakeTable2(LabSize size, int seeds);

// Everything else (experiments_settings.cc).
Experiment MakeFigure7(LabSize size, int seeds);
Experiment MakeTable3(LabSize size, int seeds);
Experiment MakeTuning(LabSize size, int seeds);

// What the tables share.
inline constexpr char kSmallRecipe[] = "lab/small.textproto";
inline constexpr char kIwslt14Recipe[] = "paper/iwslt14.textproto";
inline constexpr char kWmt17Recipe[] = "paper/wmt17.textproto";
inline constexpr char kOpus100Recipe[] = "deepnet_100l.textproto";
inline constexpr char kLanguages102Recipe[] = "paper/languages102.textproto";

}  // namespace deepnet
