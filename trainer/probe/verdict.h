// What a cell's numbers allow to be said of it, and no more. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/lab.pb.h"

namespace deepnet {

enum class Verdict {
  kLearned,          // better on text than word frequencies
  kWordFrequencies,  // no better than a model that knows only how often each piece occurs
  kStuck,            // its loss has fallen by less than 3 % of where it started
  kRoseAgain,        // its loss ends 0.3 nats or more above its lowest
  kDiverged,         // ended by non-finite steps
  kFailed,           // ended for another reason
  kTooShort,         // so few steps that nothing of this could be seen
};

// Whether a loss moved and kept falling is judged by that of training; whether it beats word
// frequencies by 0.05 nats, by the loss on the test set, else on the dev set, else of training,
// each against what these alone give there. Where `data` does not know that, kWordFrequencies is
// not given.
Verdict Judge(const LabCell& cell, const LabData& data);

// "learned", "word frequencies only", "did not leave its starting loss", "loss rose again",
// "diverged", "failed", "too short to judge".
const char* VerdictName(Verdict verdict);

// The same with the numbers it rests on: "loss rose again: lowest 5.91, 6.4 at the end". Of a
// cell without a step but with a test: "scored, not trained here".
std::string VerdictText(const LabCell& cell, const LabData& data);

// Means of three neighbouring records' nll, in the order of steps: what a verdict looks at. Values
// that are not finite are left out.
std::vector<double> SmoothLosses(const LabCell& cell);

}  // namespace deepnet
