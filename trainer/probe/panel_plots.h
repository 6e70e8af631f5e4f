// From the cells of a result to the drawing of a panel. Pure.
#pragma once

#include <string>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// The svg of `panel`, whose id it gets. More than one for kMatrix: "<id>", "<id>-2", ...
std::string DrawPanel(const LabResult& result, const Panel& panel, const std::string& id);

// Number of svg elements that DrawPanel makes.
int NumDrawings(const LabResult& result, const Panel& panel);

}  // namespace deepnet
