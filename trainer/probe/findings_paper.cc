#include "trainer/probe/findings_paper.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "trainer/probe/axis.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

// A published BLEU below the first is no translation, whatever the error of reading it off; one of
// at least this share of the figure's best is. Between them lies what can be called neither.
constexpr double kNoTranslation = 1.0;
constexpr double kTrainedShare = 0.5;

enum class InPaper { kUnknown, kTrained, kDidNot };

double BestScore(const LinePlot& plot) {
  double best = 0.0;
  for (const PlotLine& line : plot.lines) {
    for (const PlotPoint& point : line.points) best = std::max(best, point.y);
  }
  return best;
}

InPaper OfPoint(const LinePlot& plot, const PlotPoint& point) {
  if (point.diverged) return InPaper::kDidNot;
  if (plot.y_label != "BLEU") return InPaper::kUnknown;
  if (point.y < kNoTranslation) return InPaper::kDidNot;
  return point.y >= kTrainedShare * BestScore(plot) ? InPaper::kTrained : InPaper::kUnknown;
}

InPaper OfGroup(const Experiment& experiment, const SeedGroup& group) {
  for (const LinePlot& plot : experiment.published) {
    for (const PlotLine& line : plot.lines) {
      if (line.method != group.series || line.dotted) continue;
      for (const PlotPoint& point : line.points) {
        if (point.x == group.x) return OfPoint(plot, point);
      }
    }
  }
  return InPaper::kUnknown;
}

// Places of one series that came out alike: "Post-LN at 18, 50 (0 of 3 seeds each)".
struct Places {
  std::string series;
  std::string seeds;  // "0 of 3 seeds"
  std::vector<std::string> xs;
};

struct Seeds {
  int judged = 0;
  int learned = 0;
};

Seeds CountSeeds(const LabResult& result, const SeedGroup& group) {
  Seeds seeds;
  for (const LabCell* cell : group.cells) {
    const Verdict verdict = Judge(*cell, result.data());
    if (verdict == Verdict::kFailed || verdict == Verdict::kTooShort) continue;
    ++seeds.judged;
    if (verdict == Verdict::kLearned) ++seeds.learned;
  }
  return seeds;
}

void Add(const SeedGroup& group, const Seeds& seeds, std::vector<Places>* list) {
  const std::string text =
      absl::StrCat(seeds.learned, " of ", seeds.judged, seeds.judged == 1 ? " seed" : " seeds");
  auto at = std::find_if(list->begin(), list->end(), [&](const Places& places) {
    return places.series == group.series && places.seeds == text;
  });
  if (at == list->end()) at = list->insert(at, {.series = group.series, .seeds = text});
  at->xs.push_back(ShortNumber(group.x));
}

std::string ListText(const std::vector<Places>& list) {
  return absl::StrJoin(list, ", ", [](std::string* text, const Places& places) {
    absl::StrAppend(text, FindMethod(places.series).label, " at ", absl::StrJoin(places.xs, ", "),
                    " (", places.seeds, places.xs.size() > 1 ? " each)" : ")");
  });
}

}  // namespace

std::vector<std::string> AgainstPaper(const Experiment& experiment, const LabResult& result,
                                      const std::vector<SeedGroup>& groups) {
  enum Here { kNone, kSome, kAll, kHereCount };
  std::array<std::vector<Places>, kHereCount> trained, did_not;
  for (const SeedGroup& group : groups) {
    const InPaper paper = OfGroup(experiment, group);
    const Seeds seeds = CountSeeds(result, group);
    if (paper == InPaper::kUnknown || seeds.judged == 0) continue;
    const Here here = seeds.learned == 0 ? kNone : seeds.learned < seeds.judged ? kSome : kAll;
    Add(group, seeds, &(paper == InPaper::kTrained ? trained : did_not)[here]);
  }
  const std::string other =
      experiment.size == LabSize::kSmall ? ", with other sizes, data and steps" : "";
  std::vector<std::string> sentences;
  const auto say = [&](const std::string& words, const std::vector<Places>& list) {
    if (!list.empty()) sentences.push_back(absl::StrCat(words, ": ", ListText(list), "."));
  };
  say("Did not train in the paper, and did not learn here", did_not[kNone]);
  say(absl::StrCat("Did not train in the paper, but learned here", other), did_not[kAll]);
  say(absl::StrCat("Did not train in the paper; here, some seeds learned", other), did_not[kSome]);
  say(absl::StrCat("Trained in the paper, but did not learn here", other), trained[kNone]);
  say(absl::StrCat("Trained in the paper; here, only some seeds learned", other), trained[kSome]);
  return sentences;
}

}  // namespace deepnet
