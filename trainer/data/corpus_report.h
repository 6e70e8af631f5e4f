// A corpus report as a table for people and as JSON for programs.
#pragma once

#include <string>

#include "proto/data.pb.h"

namespace deepnet {

// One line per language pair and split, the reasons of dropped lines below, totals last.
std::string ReportTable(const CorpusReport& report);

// The fields of CorpusReport under their names, numbers as numbers. Each language pair also lists
// the directions it serves.
std::string ReportJson(const CorpusReport& report);

}  // namespace deepnet
