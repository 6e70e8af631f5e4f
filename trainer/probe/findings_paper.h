// Part of findings.h: who trained in the paper's figure and learned here, and who did not.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"
#include "trainer/probe/seed_groups.h"

namespace deepnet {

// Sentences on those of `groups` of which the paper's figure says something at the same place. Only
// seeds that can be judged count: not those that failed or were too short.
std::vector<std::string> AgainstPaper(const Experiment& experiment, const LabResult& result,
                                      const std::vector<SeedGroup>& groups);

}  // namespace deepnet
