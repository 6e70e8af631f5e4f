#include "trainer/data/prepare/pair_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/logging.h"
#include "trainer/data/corpus_manifest.h"
#include "trainer/data/prepare/cleaning.h"

namespace deepnet {

void SetLengths(int64_t first, int64_t second, int32_t longest, LanguagePairReport* report) {
  const double kept = std::max<double>(1.0, static_cast<double>(report->kept()));
  report->set_first_tokens(first);
  report->set_second_tokens(second);
  report->set_first_mean_length(static_cast<double>(first) / kept);
  report->set_second_mean_length(static_cast<double>(second) / kept);
  report->set_longest(longest);
}

LanguagePairReport MakePairReport(const LanguagePairTexts& texts, std::string_view split,
                                  const EncodedTotals& totals) {
  LanguagePairReport report;
  report.set_first_language(texts.first);
  report.set_second_language(texts.second);
  report.set_split(std::string(split));
  report.set_lines(totals.counts.Total());
  report.set_kept(totals.counts.lines[0]);
  for (int reason = 1; reason < kNumDropReasons; ++reason) {
    if (totals.counts.lines[reason] == 0) continue;
    DropCount& drop = *report.add_dropped();
    drop.set_reason(std::string(Name(static_cast<DropReason>(reason))));
    drop.set_lines(totals.counts.lines[reason]);
    drop.set_example(totals.counts.examples[reason]);
  }
  SetLengths(totals.first_tokens, totals.second_tokens, totals.longest, &report);
  return report;
}

std::string DropWarning(const LanguagePairReport& counts) {
  const int64_t dropped = counts.lines() - counts.kept();
  if (dropped <= counts.lines() / 2) return "";
  const auto most =
      std::max_element(counts.dropped().begin(), counts.dropped().end(),
                       [](const auto& a, const auto& b) { return a.lines() < b.lines(); });
  DEEPNET_CHECK(most != counts.dropped().end());
  return absl::StrCat(DirectionsOf(counts).front().Name(), ", ", counts.split(), ": ",
                      WithCommas(dropped), " of ", WithCommas(counts.lines()),
                      " lines are dropped, ", WithCommas(most->lines()), " for the reason \"",
                      most->reason(), "\", the first of them ", most->example());
}

void AddCounts(const LanguagePairReport& block, LanguagePairReport* report) {
  report->set_lines(report->lines() + block.lines());
  report->set_kept(report->kept() + block.kept());
  report->set_first_tokens(report->first_tokens() + block.first_tokens());
  report->set_second_tokens(report->second_tokens() + block.second_tokens());
  report->set_longest(std::max(report->longest(), block.longest()));
  for (const DropCount& drop : block.dropped()) {
    const auto found = std::find_if(report->dropped().begin(), report->dropped().end(),
                                    [&](const auto& it) { return it.reason() == drop.reason(); });
    if (found == report->dropped().end()) {
      *report->add_dropped() = drop;
    } else {
      auto& sum = *report->mutable_dropped(static_cast<int>(found - report->dropped().begin()));
      sum.set_lines(sum.lines() + drop.lines());
    }
  }
}

}  // namespace deepnet
