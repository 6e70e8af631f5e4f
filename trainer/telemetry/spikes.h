// Spikes of a run (SpikeSpec): finite steps whose loss or gradient norm is far above those of the
// steps before. How they are told apart, and the ledger of them that every checkpoint carries.
//
// Pure functions of figures that are the same on every rank and for every layout, so that all ranks
// find the same spikes, and a resumed run finds them again. Steps are counted like Manifest.step:
// step 1 is a run's first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// Returns the upper end of the band in which the value after `values`, which are not empty, is
// expected: `deviations` robust standard deviations above where their trend leads, or above their
// median if that is higher. The trend is the median slope of all pairs of values (Theil and Sen);
// the deviation is 1.4826 times the median distance from it (the standard deviation of normal
// values), at least `least_deviation`. Takes time in the square of the number of values.
double BandLimit(std::span<const double> values, double deviations, double least_deviation);

// Returns a record without what follows from `spec.action`, if loss or norm is above the band of
// `window`, of which a deviation is at least 1 % of the median loss and 5 % of a norm; norms are
// compared by their logarithms. None if neither is, if either is not finite, or if the window has
// fewer than half of spec.window_steps.
std::optional<SpikeRecord> FindSpike(const SpikeSpec& spec, const SpikeWindow& window, int64_t step,
                                     double loss, double gradient_norm);

// Adds a step to the window, unless loss or norm is not finite, and drops those that are too old.
void RememberStep(const SpikeSpec& spec, double loss, double gradient_norm, SpikeWindow& window);

// Sets which steps around `spike` are left out.
void LeaveOutAround(const SpikeSpec& spec, SpikeRecord& spike);

// Return what the ledger says: that `step` is not trained on; how often the run has gone back.
bool IsLeftOut(const Manifest& state, int64_t step);
int64_t NumRollBacks(const Manifest& state);

// Returns "spike in step 951: loss 9.120 (at most 6.300 expected), gradient norm 45.1 (at most 12.2
// expected)".
std::string SpikeFigures(const SpikeRecord& spike);

// Returns the figures, and what was done: "...; went back to step 900, steps 941 to 961 are left
// out".
std::string SpikeLine(const SpikeRecord& spike);

}  // namespace deepnet
