// Scores for people.
#pragma once

#include <functional>
#include <string>

#include "proto/report.pb.h"

namespace deepnet {

bool AnyDirection(const std::string& name);
bool IsToEnglish(const std::string& name);
bool IsFromEnglish(const std::string& name);

// Means of each figure over the directions that `belongs` accepts and that have it; absent if none
// has. `sentences` is their sum, and `direction` how many they are: "(2)".
DirectionScore MeanScore(const EvalRecord& record,
                         const std::function<bool(const std::string&)>& belongs);

// Names directions with pairs that are too long for the model, the worst first; empty: there are
// none.
std::string TooLongText(const EvalRecord& record);

// One line per direction (BLEU, chrF, nll, sentences; spBLEU where any direction has it), then the
// means over X->en, en->X and all directions, each only where it has directions; then signatures,
// if any. A figure that does not exist is "-". Means are taken of `directions`, not read from the
// record; each direction counts once. Ends with a line feed.
std::string ScoreTable(const EvalRecord& record);

}  // namespace deepnet
