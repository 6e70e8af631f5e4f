#include "trainer/eval/score_table.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace deepnet {
namespace {

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
    layout.has_spbleu |= score.spbleu() != 0.0;
    layout.translates |= !score.tokenizer().empty() || score.bleu() != 0;
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

std::string Row(const Layout& layout, const DirectionScore& score) {
  if (!layout.translates) {
    return absl::StrFormat("%-*s  %7.3f %10.2f %10d\n", layout.name_width, score.direction(),
                           score.nll(), std::exp(score.nll()), score.sentences());
  }
  const std::string spbleu =
      layout.has_spbleu ? absl::StrFormat(" %6.2f", score.spbleu()) : std::string();
  return absl::StrFormat("%-*s  %6.2f %6.2f%s %7.3f %10d\n", layout.name_width, score.direction(),
                         score.bleu(), score.chrf(), spbleu, score.nll(), score.sentences());
}

// The line of means over the directions that `belongs` picks; empty when it picks none.
std::string MeanRow(const Layout& layout, const EvalRecord& record, const std::string& name,
                    const std::function<bool(const std::string&)>& belongs) {
  DirectionScore mean;
  int count = 0;
  for (const DirectionScore& score : record.directions()) {
    if (!belongs(score.direction())) continue;
    ++count;
    mean.set_bleu(mean.bleu() + score.bleu());
    mean.set_chrf(mean.chrf() + score.chrf());
    mean.set_spbleu(mean.spbleu() + score.spbleu());
    mean.set_nll(mean.nll() + score.nll());
    mean.set_sentences(mean.sentences() + score.sentences());
  }
  if (count == 0) return "";
  mean.set_direction(absl::StrCat(name, " (", count, ")"));
  mean.set_bleu(mean.bleu() / count);
  mean.set_chrf(mean.chrf() / count);
  mean.set_spbleu(mean.spbleu() / count);
  mean.set_nll(mean.nll() / count);
  return Row(layout, mean);
}

}  // namespace

std::string ScoreTable(const EvalRecord& record) {
  const Layout layout = LayoutFor(record);
  std::string table = Header(layout);
  for (const DirectionScore& score : record.directions())
    absl::StrAppend(&table, Row(layout, score));
  const auto to_english = [](const std::string& name) { return absl::EndsWith(name, "-en"); };
  const auto from_english = [](const std::string& name) { return absl::StartsWith(name, "en-"); };
  const auto any = [](const std::string&) { return true; };
  absl::StrAppend(&table, MeanRow(layout, record, "X->en", to_english),
                  MeanRow(layout, record, "en->X", from_english),
                  MeanRow(layout, record, "all", any));
  if (!record.bleu_signature().empty()) {
    absl::StrAppend(&table, "BLEU|", record.bleu_signature(), "\n");
  }
  if (!record.chrf_signature().empty()) {
    absl::StrAppend(&table, "chrF2|", record.chrf_signature(), "\n");
  }
  return table;
}

}  // namespace deepnet
