#include "trainer/probe/verdict.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "trainer/probe/axis.h"
#include "trainer/probe/quantities.h"

namespace deepnet {
namespace {

constexpr int64_t kFewSteps = 100;         // nothing has learned anything by then
constexpr double kStuckShare = 0.97;       // of the loss at the start
constexpr double kRise = 0.3;              // nats above the lowest
constexpr double kFrequencyMargin = 0.05;  // nats below word frequencies count as more than those

struct FinalLoss {
  double nll = 0.0;               // of the last steps, unless there is held-out text
  double word_frequencies = 0.0;  // what these alone give there; 0: unknown
};

FinalLoss LastLoss(const LabCell& cell, const LabData& data) {
  for (const Quantity quantity : {Quantity::kTestNll, Quantity::kDevNll}) {
    const auto score = CellScore(cell, quantity, 0);
    if (score.has_value()) return {*score, WordFrequencyLevel(data, quantity)};
  }
  const std::vector<double> losses = SmoothLosses(cell);
  return {losses.empty() ? std::nan("") : losses.back(),
          WordFrequencyLevel(data, Quantity::kTrainNll)};
}

}  // namespace

std::vector<double> SmoothLosses(const LabCell& cell) {
  std::vector<double> finite, smooth;
  for (const StepRecord& record : cell.steps()) {
    if (std::isfinite(record.nll())) finite.push_back(record.nll());
  }
  for (size_t i = 0; i < finite.size(); ++i) {
    const size_t first = i == 0 ? 0 : i - 1, last = std::min(i + 1, finite.size() - 1);
    double sum = 0.0;
    for (size_t j = first; j <= last; ++j) sum += finite[j];
    smooth.push_back(sum / static_cast<double>(last - first + 1));
  }
  return smooth;
}

Verdict Judge(const LabCell& cell, const LabData& data) {
  if (cell.status() == CELL_DIVERGED) return Verdict::kDiverged;
  if (cell.status() != CELL_DONE) return Verdict::kFailed;
  const std::vector<double> losses = SmoothLosses(cell);
  if (losses.empty() || cell.steps(cell.steps_size() - 1).step() < kFewSteps) {
    return Verdict::kTooShort;
  }
  if (losses.back() > kStuckShare * cell.steps(0).nll()) return Verdict::kStuck;
  if (losses.back() > *std::min_element(losses.begin(), losses.end()) + kRise) {
    return Verdict::kRoseAgain;
  }
  const FinalLoss last = LastLoss(cell, data);
  const bool frequencies =
      last.word_frequencies > 0 && last.nll > last.word_frequencies - kFrequencyMargin;
  return frequencies ? Verdict::kWordFrequencies : Verdict::kLearned;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kLearned:
      return "learned";
    case Verdict::kWordFrequencies:
      return "word frequencies only";
    case Verdict::kStuck:
      return "did not leave its starting loss";
    case Verdict::kRoseAgain:
      return "loss rose again";
    case Verdict::kDiverged:
      return "diverged";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kTooShort:
      return "too short to judge";
  }
  return "";
}

std::string VerdictText(const LabCell& cell, const LabData& data) {
  const Verdict verdict = Judge(cell, data);
  const FinalLoss last = LastLoss(cell, data);
  std::string name(VerdictName(verdict));
  const std::vector<double> losses = SmoothLosses(cell);
  switch (verdict) {
    case Verdict::kFailed:
      return absl::StrCat(name, ", exit code ", cell.exit_code(), ": ", cell.error());
    case Verdict::kDiverged:
      return cell.steps_size() == 0 ? name
                                    : absl::StrCat(name, ": not finite after step ",
                                                   cell.steps(cell.steps_size() - 1).step());
    case Verdict::kStuck:
      return absl::StrCat(name, ": ", ShortNumber(cell.steps(0).nll()), " to ",
                          ShortNumber(losses.back()));
    case Verdict::kRoseAgain:
      return absl::StrCat(name, ": lowest ",
                          ShortNumber(*std::min_element(losses.begin(), losses.end())), ", ",
                          ShortNumber(losses.back()), " at the end");
    case Verdict::kWordFrequencies:
      return absl::StrCat(name, ": ", ShortNumber(last.nll), ", they alone give ",
                          ShortNumber(last.word_frequencies));
    case Verdict::kTooShort:  // a checkpoint that others trained has no steps at all
      return cell.steps_size() == 0 && cell.has_test() ? "scored, not trained here" : name;
    case Verdict::kLearned:
      return name;
  }
  return name;
}

}  // namespace deepnet
