// From measurements to findings and to a table. Pure: the same numbers give the same text.
#pragma once

#include <cstdint>
#include <string>

#include "proto/doctor.pb.h"

namespace deepnet {

// Moves the checks of all ranks to report.checks, each once: the failure of the first rank that has
// one, else the largest error, where one that is not a number is larger than any.
void MergeChecks(DoctorReport& report);

// Adds to report.findings what is wrong with its ranks, links and checks. The run needs
// `folder_bytes` free for two checkpoints; 0: not known.
//
// Failures: checks beyond their limit, a folder that cannot do what runs need, other builds or
// libraries. Outliers: a rank beside the median of those with its device (fewer than three: beside
// the best of them), a link beside the median of those like it, a clock.
void Diagnose(int64_t folder_bytes, DoctorReport& report);

// Returns the report for people: a row a rank, a row a link, the checks and the findings.
std::string DoctorTable(const DoctorReport& report);

}  // namespace deepnet
