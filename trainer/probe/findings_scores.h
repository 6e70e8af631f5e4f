// Part of findings.h: what is said of one panel of scores.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// Sentences on a kScore panel; one that says so where nothing was recorded, none without cells.
std::vector<std::string> ScoreFindings(const Experiment& experiment, const LabResult& result,
                                       const Panel& panel);

}  // namespace deepnet
