// Sentences on the scores of a panel: who learned at which depth, fits, seeds.
#include "trainer/probe/findings_scores.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "trainer/probe/axis.h"
#include "trainer/probe/findings_paper.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/quantities.h"
#include "trainer/probe/seed_groups.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

std::string Label(const std::string& series) { return FindMethod(series).label; }

// "DeepNet 5.40 (2 of 3 seeds, 5.35 to 5.45)": of `cells`, those of `group` that ended alike.
std::string Named(const Panel& panel, const SeedGroup& group,
                  const std::vector<const LabCell*>& cells, bool with_values) {
  std::vector<double> values;
  for (const LabCell* cell : cells) {
    const auto score = CellScore(*cell, panel.quantity, panel.step);
    if (with_values && score.has_value()) values.push_back(*score);
  }
  const Spread spread = MeanAndSpread(values);
  std::string text = Label(group.series);
  if (spread.count > 0) absl::StrAppend(&text, " ", QuantityText(panel.quantity, spread.mean));
  std::vector<std::string> more;
  if (cells.size() < group.cells.size()) {
    more.push_back(absl::StrCat(cells.size(), " of ", group.cells.size(), " seeds"));
  }
  if (spread.count > 1) {
    more.push_back(absl::StrCat(QuantityText(panel.quantity, spread.low), " to ",
                                QuantityText(panel.quantity, spread.high)));
  }
  return more.empty() ? text : absl::StrCat(text, " (", absl::StrJoin(more, ", "), ")");
}

// "At 50 layers a side (nats a token): learned: DeepNet 5.83; word frequencies only: Post-LN 6.15."
std::string VerdictsAt(const LabResult& result, const Panel& panel,
                       const std::vector<SeedGroup>& groups, double x) {
  std::map<Verdict, std::vector<std::string>> names;
  for (const SeedGroup& group : groups) {
    if (group.x != x) continue;
    std::map<Verdict, std::vector<const LabCell*>> ended;
    for (const LabCell* cell : group.cells) ended[Judge(*cell, result.data())].push_back(cell);
    for (const auto& [verdict, cells] : ended) {
      const bool with_values = verdict != Verdict::kDiverged && verdict != Verdict::kFailed;
      names[verdict].push_back(Named(panel, group, cells, with_values));
    }
  }
  std::vector<std::string> parts;
  for (const auto& [verdict, list] : names) {
    parts.push_back(absl::StrCat(VerdictName(verdict), ": ", absl::StrJoin(list, ", ")));
  }
  return absl::StrCat("At ", ShortNumber(x), " ", panel.x_label, " (", QuantityUnit(panel.quantity),
                      "): ", absl::StrJoin(parts, "; "), ".");
}

std::vector<std::string> Fits(const Panel& panel, const std::vector<SeedGroup>& groups) {
  std::vector<std::string> sentences;
  for (const std::string& series : SeriesOf(groups)) {
    const std::optional<LogFit> fit = FitMeans(MeansOf(groups, series));
    if (!fit.has_value()) continue;
    sentences.push_back(absl::StrFormat(
        "%s: (%.3f ± %.3f) log10(%s) + (%.2f ± %.2f) %s through %d points, which lie %.3f off it "
        "(root mean square).",
        Label(series), fit->slope, fit->slope_error, panel.x_label, fit->offset, fit->offset_error,
        QuantityUnit(panel.quantity), fit->points, fit->residual));
  }
  return sentences;
}

// "DeepNet: model update largest / smallest over depth 1.6."
std::vector<std::string> Ratios(const std::vector<SeedGroup>& groups) {
  std::vector<std::string> sentences;
  for (const std::string& series : SeriesOf(groups)) {
    const Spread means = MeanAndSpread(MeansOf(groups, series).y);
    if (means.low > 0.0) {
      sentences.push_back(absl::StrCat(Label(series), ": the largest over depth is ",
                                       ShortNumber(Rounded(means.high / means.low, 2)),
                                       " times the smallest."));
    }
  }
  return sentences;
}

std::string Seeds(const std::vector<SeedGroup>& groups) {
  double widest = 0.0;
  std::string where;
  bool several = false;
  for (const SeedGroup& group : groups) {
    several = several || group.spread.count > 1;
    if (group.spread.high - group.spread.low <= widest) continue;
    widest = group.spread.high - group.spread.low;
    where = absl::StrCat(Label(group.series), " at ", ShortNumber(group.x));
  }
  if (!several) return "One seed each: how far chance alone moves these figures was not measured.";
  return absl::StrCat("Seeds lie at most ", ShortNumber(widest, 2), " apart (", where, ").");
}

}  // namespace

std::vector<std::string> ScoreFindings(const Experiment& experiment, const LabResult& result,
                                       const Panel& panel) {
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  std::vector<std::string> sentences;
  if (groups.empty()) return sentences;
  const bool measured = std::any_of(groups.begin(), groups.end(), [](const SeedGroup& group) {
    return group.spread.count > 0 || group.diverged > 0;
  });
  if (!measured) {
    return {absl::StrCat("Nothing was recorded for “", panel.title, "”.")};
  }
  if (panel.quantity == Quantity::kModelUpdate) {
    sentences = Ratios(groups);
  } else if (IsLoss(panel.quantity) || IsTestBleu(panel.quantity)) {
    for (const double x : std::set<double>{groups.front().x, groups.back().x}) {
      sentences.push_back(VerdictsAt(result, panel, groups, x));
    }
    for (std::string& sentence : AgainstPaper(experiment, result, groups)) {
      sentences.push_back(std::move(sentence));
    }
  }
  if (panel.fit) {
    for (std::string& sentence : Fits(panel, groups)) sentences.push_back(std::move(sentence));
  }
  sentences.push_back(Seeds(groups));
  return sentences;
}

}  // namespace deepnet
