// Scores for people.
#pragma once

#include <string>

#include "proto/report.pb.h"

namespace deepnet {

// One line per direction (BLEU, chrF, nll, sentences; spBLEU where any direction has it), then the
// means over X->en, en->X and all directions, each only where it has directions; then signatures,
// if any. Means are taken of `directions`, not read from the record; each direction counts once.
// Ends with a line feed.
//
//   direction      BLEU   chrF     nll  sentences
//   de-en         24.10  45.32   2.104        200
//   en-de         20.35  44.01   2.310        200
//   X->en (1)     24.10  45.32   2.104        200
//   ...
std::string ScoreTable(const EvalRecord& record);

}  // namespace deepnet
