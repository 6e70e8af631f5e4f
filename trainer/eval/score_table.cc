#include "trainer/eval/score_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace deepnet {
namespace {

constexpr size_t kMaxNamed = 4;

struct Layout {
  int name_width = 9;
  bool has_spbleu = false;
  bool translates = false;  // otherwise there is a likelihood alone
};

Layout LayoutFor(const EvalRecord& record) {
  Layout layout;
  const std::string count = absl::StrCat(" (", record.directions_size(), ")");
  layout.name_width = static_cast<int>(std::max<size_t>(9, 5 + count.size()));
  for (const DirectionScore& score : record.directions()) {
    layout.name_width = std::max(layout.name_width, static_cast<int>(score.direction().size()));
    layout.has_spbleu |= score.has_spbleu();
    layout.translates |= score.has_bleu();
  }
  return layout;
}

std::string Header(const Layout& layout) {
  if (!layout.translates) {
    return absl::StrFormat("%-*s  %7s %10s %10s\n", layout.name_width, "direction", "nll",
                           "perplexity", "sentences");
  }
  return absl::StrFormat("%-*s  %6s %6s%s %7s %10s\n", layout.name_width, "direction", "BLEU",
                         "chrF", layout.has_spbleu ? " spBLEU" : "", "nll", "sentences");
}

std::string Figure(bool exists, double value, int decimals) {
  return exists ? absl::StrFormat("%.*f", decimals, value) : "-";
}

std::string Row(const Layout& layout, const std::string& name, const DirectionScore& score) {
  const std::string nll = Figure(score.has_nll(), score.nll(), 3);
  if (!layout.translates) {
    return absl::StrFormat("%-*s  %7s %10s %10d\n", layout.name_width, name, nll,
                           Figure(score.has_nll(), std::exp(score.nll()), 2), score.sentences());
  }
  const std::string spbleu =
      layout.has_spbleu ? absl::StrFormat(" %6s", Figure(score.has_spbleu(), score.spbleu(), 2))
                        : std::string();
  return absl::StrFormat("%-*s  %6s %6s%s %7s %10d\n", layout.name_width, name,
                         Figure(score.has_bleu(), score.bleu(), 2),
                         Figure(score.has_chrf(), score.chrf(), 2), spbleu, nll, score.sentences());
}

// The line of means over the directions that `belongs` picks; empty when it picks none.
std::string MeanRow(const Layout& layout, const EvalRecord& record, const std::string& name,
                    const std::function<bool(const std::string&)>& belongs) {
  if (std::ranges::none_of(record.directions(), belongs, &DirectionScore::direction)) return "";
  const DirectionScore mean = MeanScore(record, belongs);
  return Row(layout, absl::StrCat(name, " ", mean.direction()), mean);
}

}  // namespace

bool AnyDirection(const std::string& /*name*/) { return true; }
bool IsToEnglish(const std::string& name) { return absl::EndsWith(name, "-en"); }
bool IsFromEnglish(const std::string& name) { return absl::StartsWith(name, "en-"); }

DirectionScore MeanScore(const EvalRecord& record,
                         const std::function<bool(const std::string&)>& belongs) {
  std::vector<const DirectionScore*> scores;
  DirectionScore mean;
  for (const DirectionScore& score : record.directions()) {
    if (!belongs(score.direction())) continue;
    scores.push_back(&score);
    mean.set_sentences(mean.sentences() + score.sentences());
  }
  mean.set_direction(absl::StrCat("(", scores.size(), ")"));
  const auto set_mean = [&](auto has, auto get, auto set) {
    double sum = 0.0;
    int count = 0;
    for (const DirectionScore* score : scores) {
      if (!(score->*has)()) continue;
      sum += (score->*get)();
      ++count;
    }
    if (count > 0) (mean.*set)(sum / count);
  };
  using Score = DirectionScore;
  set_mean(&Score::has_bleu, &Score::bleu, &Score::set_bleu);
  set_mean(&Score::has_chrf, &Score::chrf, &Score::set_chrf);
  set_mean(&Score::has_spbleu, &Score::spbleu, &Score::set_spbleu);
  set_mean(&Score::has_nll, &Score::nll, &Score::set_nll);
  return mean;
}

std::string TooLongText(const EvalRecord& record) {
  std::vector<const DirectionScore*> cut;
  for (const DirectionScore& score : record.directions()) {
    if (score.too_long() > 0) cut.push_back(&score);
  }
  if (cut.empty()) return "";
  std::stable_sort(cut.begin(), cut.end(), [](const DirectionScore* a, const DirectionScore* b) {
    return !a->has_nll() && b->has_nll();
  });
  std::string text =
      "pairs that are too long for the model have no nll, and the beginning of their source is "
      "translated:";
  for (size_t i = 0; i < std::min(kMaxNamed, cut.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", cut[i]->direction(), " ", cut[i]->too_long(),
                    " of ", cut[i]->sentences(), cut[i]->has_nll() ? "" : " (no nll)");
  }
  if (cut.size() > kMaxNamed) {
    absl::StrAppend(&text, " and ", cut.size() - kMaxNamed, " more directions");
  }
  return text;
}

std::string ScoreTable(const EvalRecord& record) {
  const Layout layout = LayoutFor(record);
  std::string table = Header(layout);
  for (const DirectionScore& score : record.directions())
    absl::StrAppend(&table, Row(layout, score.direction(), score));
  absl::StrAppend(&table, MeanRow(layout, record, "X->en", IsToEnglish),
                  MeanRow(layout, record, "en->X", IsFromEnglish),
                  MeanRow(layout, record, "all", AnyDirection));
  if (!record.bleu_signature().empty()) {
    absl::StrAppend(&table, "BLEU|", record.bleu_signature(), "\n");
  }
  if (!record.chrf_signature().empty()) {
    absl::StrAppend(&table, "chrF2|", record.chrf_signature(), "\n");
  }
  return table;
}

}  // namespace deepnet
