// Numbers of a cell, read off its records. Pure; nothing where the cell has no such record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/lab.pb.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

// One number. `step`: as Panel::step. kGradientNorm is that of the last decoder layer.
std::optional<double> CellScore(const LabCell& cell, Quantity quantity, int64_t step);

// Over steps, ascending. Empty for quantities that exist only at the end.
std::vector<PlotPoint> CurveOverSteps(const LabCell& cell, Quantity quantity);

// Over decoder layers, counted from 1.
std::vector<PlotPoint> CurveOverLayers(const LabCell& cell, Quantity quantity, int64_t step);

// "nats a token", "BLEU": what stands beside an axis.
std::string QuantityUnit(Quantity quantity);

// "5.90", "0.0021": as many digits as the quantity is worth.
std::string QuantityText(Quantity quantity, double value);

// "loss on the test set": what is measured, in a sentence.
std::string QuantityName(Quantity quantity);

// Nats a target token: kTestNll, kTrainNll, kDevNll. Of these the low ones are good, of scores the
// high ones.
bool IsLoss(Quantity quantity);

// A loss that no model learns at: worse than an even guess among all pieces that any vocabulary
// has. On an axis that reached it nothing else could be told apart.
bool IsOffTheScale(Quantity quantity, double value);

// BLEU or spBLEU of what the test set was translated to.
bool IsTestBleu(Quantity quantity);

// What a model reaches in a loss that knows only how often each piece occurs; 0: unknown, or no
// loss.
double WordFrequencyLevel(const LabData& data, Quantity quantity);

}  // namespace deepnet
