// Tables of the report. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// A table as HTML, inside a box that scrolls sideways where the page is too narrow. Every cell is
// escaped; columns from the second on are set right where `numbers`.
std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows, const std::string& css);

// Method by depth, as the paper's table 1: the score with its spread, or how it failed. Empty for
// other panels than kScore.
std::string ScoreTable(const LabResult& result, const Panel& panel);

// A row a cell: how it ended, losses, scores, time.
std::string CellTableHtml(const LabResult& result);

// "What differs from the paper".
std::string DifferenceTable(const Experiment& experiment, const LabResult& result);

// The commands of all cells, as a shell takes them.
std::string CommandList(const LabResult& result);

}  // namespace deepnet
