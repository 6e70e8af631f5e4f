// The laboratory's report: one HTML page that needs nothing else, no network and no script. Light
// and dark by the reader's setting, readable on a telephone. Pure: the same results give the same
// bytes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// Of one experiment, or of several, one below the other. `results` name experiments that exist
// (experiment.h), each once; results.size() > 0.
std::string MakeReport(std::span<const LabResult> results);

// Ids of the svg elements that MakeReport draws for `result`, in order.
std::vector<std::string> ReportDrawings(const LabResult& result);

// Its style sheet.
std::string ReportStyle();

}  // namespace deepnet
