// Sentences on the scores of a panel: who learned at which depth, against the paper, fits, seeds.
#include "trainer/probe/findings_scores.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "trainer/probe/methods.h"
#include "trainer/probe/panel_plots.h"
#include "trainer/probe/quantities.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

std::string Label(const std::string& series) { return FindMethod(series).label; }

std::string Value(const Panel& panel, const SeedGroup& group) {
  if (group.spread.count == 0) return "";
  std::string text = absl::StrCat(" (", QuantityText(panel.quantity, group.spread.mean));
  if (group.spread.count > 1) {
    absl::StrAppend(&text, ", ", QuantityText(panel.quantity, group.spread.low), " to ",
                    QuantityText(panel.quantity, group.spread.high));
  }
  return text + ")";
}

// "At 50 layers a side: learned: DeepNet (5.83); word frequencies only: Post-LN (6.15)."
std::string VerdictsAt(const LabResult& result, const Panel& panel,
                       const std::vector<SeedGroup>& groups, double x) {
  std::map<Verdict, std::vector<std::string>> names;
  for (const SeedGroup& group : groups) {
    if (group.x != x) continue;
    std::map<Verdict, int> verdicts;
    for (const LabCell* cell : group.cells) {
      ++verdicts[Judge(*cell, result.data())];
    }
    for (const auto& [verdict, count] : verdicts) {
      std::string name = Label(group.series);
      if (verdicts.size() > 1) absl::StrAppend(&name, ", ", count, " of ", group.cells.size());
      if (verdict != Verdict::kDiverged && verdict != Verdict::kFailed) name += Value(panel, group);
      names[verdict].push_back(name);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [verdict, list] : names) {
    parts.push_back(absl::StrCat(VerdictName(verdict), ": ", absl::StrJoin(list, ", ")));
  }
  return absl::StrCat("At ", ShortNumber(x), " ", panel.x_label, ", ", absl::StrJoin(parts, "; "),
                      ".");
}

// Whether the paper's figure says that `series` at `x` did not train: diverged, or a score of 0.
bool PaperFails(const Experiment& experiment, const std::string& series, double x) {
  for (const LinePlot& plot : experiment.published) {
    for (const PlotLine& line : plot.lines) {
      if (line.method != series || line.dotted) continue;
      for (const PlotPoint& point : line.points) {
        if (point.x == x && (point.diverged || (plot.y_label == "BLEU" && point.y == 0)))
          return true;
      }
    }
  }
  return false;
}

std::vector<std::string> AgainstPaper(const Experiment& experiment, const LabResult& result,
                                      const std::vector<SeedGroup>& groups) {
  std::vector<std::string> agree, differ;
  for (const SeedGroup& group : groups) {
    if (!PaperFails(experiment, group.series, group.x)) continue;
    const bool learned = std::any_of(
        group.cells.begin(), group.cells.end(),
        [&](const LabCell* cell) { return Judge(*cell, result.data()) == Verdict::kLearned; });
    const std::string where = absl::StrCat(Label(group.series), " at ", ShortNumber(group.x));
    (learned ? differ : agree).push_back(where);
  }
  std::vector<std::string> sentences;
  if (!agree.empty()) {
    sentences.push_back(absl::StrCat(
        "Did not learn in the paper, and not here: ", absl::StrJoin(agree, ", "), "."));
  }
  if (!differ.empty()) {
    sentences.push_back(
        absl::StrCat("Did not train in the paper, but learned here, with other sizes, "
                     "data and steps: ",
                     absl::StrJoin(differ, ", "), "."));
  }
  return sentences;
}

std::set<std::string> SeriesOf(const std::vector<SeedGroup>& groups) {
  std::set<std::string> series;
  for (const SeedGroup& group : groups) series.insert(group.series);
  return series;
}

std::vector<std::string> Fits(const Panel& panel, const std::vector<SeedGroup>& groups) {
  std::vector<std::string> sentences;
  for (const std::string& series : SeriesOf(groups)) {
    std::vector<double> x, y;
    for (const SeedGroup& group : groups) {
      if (group.series != series || group.spread.count == 0) continue;
      x.push_back(group.x);
      y.push_back(group.spread.mean);
    }
    const auto fit = FitLogarithm(x, y);
    if (!fit.has_value() || fit->points < 3) continue;
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
    double low = HUGE_VAL, high = 0.0;
    for (const SeedGroup& group : groups) {
      if (group.series != series || group.spread.count == 0) continue;
      low = std::min(low, group.spread.mean);
      high = std::max(high, group.spread.mean);
    }
    if (high > 0.0 && low > 0.0) {
      sentences.push_back(absl::StrCat(Label(series), ": the largest over depth is ",
                                       ShortNumber(Rounded(high / low, 2)),
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
  } else if (IsLoss(panel.quantity) || panel.quantity == Quantity::kTestBleu) {
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
