#include "trainer/probe/report_tables.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/logging.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/markup.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/quantities.h"
#include "trainer/probe/seed_groups.h"
#include "trainer/probe/verdict.h"

namespace deepnet {
namespace {

std::string Row(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&html, "<", tag, ">", Escaped(cell), "</", tag, ">");
  }
  return html + "</tr>\n";
}

// "5.83 ± 0.02", and behind it how the seeds ended that did not learn: "diverged: 1 of 3".
std::string ScoreText(const LabResult& result, const Panel& panel, const SeedGroup& group) {
  std::map<Verdict, size_t> ends;
  for (const LabCell* cell : group.cells) ++ends[Judge(*cell, result.data())];
  std::vector<std::string> parts;
  if (group.spread.count > 0) {
    parts.push_back(QuantityText(panel.quantity, group.spread.mean));
    if (group.spread.count > 1) {
      absl::StrAppend(&parts.back(), " ± ", ShortNumber(group.spread.deviation, 2));
    }
  }
  for (const auto& [verdict, count] : ends) {
    if (verdict == Verdict::kLearned || verdict == Verdict::kTooShort) continue;
    parts.emplace_back(VerdictName(verdict));
    if (count < group.cells.size()) {
      absl::StrAppend(&parts.back(), ": ", count, " of ", group.cells.size());
    }
  }
  return absl::StrJoin(parts, ", ");
}

std::string Score(const LabCell& cell, Quantity quantity) {
  const std::optional<double> value = CellScore(cell, quantity, 0);
  return value.has_value() ? QuantityText(quantity, *value) : "";
}

std::vector<std::string> CellRow(const LabResult& result, const LabCell& cell) {
  const int64_t step = cell.steps_size() > 0 ? cell.steps(cell.steps_size() - 1).step() : 0;
  return {cell.name(),
          VerdictText(cell, result.data()),
          WithCommas(cell.parameters()),
          WithCommas(step),
          cell.steps_size() > 0 ? QuantityText(Quantity::kTrainNll, cell.steps(0).nll()) : "",
          Score(cell, Quantity::kTrainNll),
          Score(cell, Quantity::kDevNll),
          Score(cell, Quantity::kTestNll),
          Score(cell, Quantity::kTestBleu),
          ClockText(cell.seconds())};
}

}  // namespace

std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows, const std::string& css) {
  std::string html = absl::StrCat("<div class=\"scroll\"><table class=\"", css, "\">\n<thead>",
                                  Row(header, "th"), "</thead>\n<tbody>\n");
  for (const auto& row : rows) html += Row(row, "td");
  return html + "</tbody></table></div>\n";
}

std::string ScoreTable(const LabResult& result, const Panel& panel) {
  if (panel.kind != PanelKind::kScore) return "";
  const std::vector<SeedGroup> groups = GroupSeeds(result, panel);
  std::set<double> xs;
  for (const SeedGroup& group : groups) xs.insert(group.x);
  std::vector<std::string> header = {QuantityUnit(panel.quantity)};
  for (const double x : xs) header.push_back(ShortNumber(x));
  std::vector<std::vector<std::string>> rows;
  for (const std::string& name : SeriesOf(groups)) {
    std::vector<std::string>& row = rows.emplace_back();
    row.emplace_back(FindMethod(name).label);
    for (const double x : xs) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const SeedGroup& each) {
        return each.series == name && each.x == x;
      });
      row.push_back(group == groups.end() ? "not run" : ScoreText(result, panel, *group));
    }
  }
  return HtmlTable(header, rows, "scores");
}

std::string CellTableHtml(const LabResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const LabCell& cell : result.cells()) rows.push_back(CellRow(result, cell));
  return HtmlTable({"run", "how it ended", "parameters", "steps", "first nll", "last nll",
                    "dev nll", "test nll", "test BLEU", "time"},
                   rows, "cells");
}

std::string DifferenceTable(const Experiment& experiment, const LabResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const Difference& row : Differences(experiment, result)) {
    rows.push_back({row.what, row.paper, row.here});
  }
  if (rows.empty()) return "";
  return HtmlTable({"", "the paper", "this run"}, rows, "differences");
}

std::string CommandList(const LabResult& result) {
  std::string text;
  for (const LabCell& cell : result.cells()) {
    for (const std::string& command : cell.commands()) absl::StrAppend(&text, command, "\n");
  }
  return absl::StrCat("<pre class=\"commands\">", Escaped(text), "</pre>\n");
}

}  // namespace deepnet
