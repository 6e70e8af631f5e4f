// Sentences that follow from a result's numbers. Each says what was measured; none says why. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// What the run shows: how many cells ended how, which series learned at the smallest and the
// greatest x, where that differs from what the paper marks as diverged, fits with their errors, how
// far seeds lie apart; of a grid its ends and where not every seed learned. Panel by panel; nothing
// that was not measured.
std::vector<std::string> Findings(const Experiment& experiment, const LabResult& result);

// The same for a terminal: a heading, then a line "- ..." each. `result` names an experiment that
// exists.
std::string FindingsText(const LabResult& result);

// A row of "what differs from the paper".
struct Difference {
  std::string what;
  std::string paper;
  std::string here;
};

// What the cells were trained with beside what the paper was; rows that say the same are left out.
// Last a row for every other field that was set on top of the recipe, by the experiment or by
// `lab run --set`, except those that name a run or only look at it.
std::vector<Difference> Differences(const Experiment& experiment, const LabResult& result);

// For each method of the cells that was published in more than one form, which of them ran here:
// "DS-Init: ...". docs/design/residuals.md has the formulas.
std::vector<std::string> MethodNotes(const LabResult& result);

}  // namespace deepnet
