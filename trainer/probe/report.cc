#include "trainer/probe/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/logging.h"
#include "trainer/probe/findings.h"
#include "trainer/probe/markup.h"
#include "trainer/probe/methods.h"
#include "trainer/probe/panel_plots.h"
#include "trainer/probe/report_tables.h"

namespace deepnet {
namespace {

std::string PanelId(const LabResult& result, size_t panel) {
  return absl::StrCat(result.experiment(), "-own-", panel + 1);
}

std::string Figure(const std::string& kicker, const std::string& caption, const std::string& body) {
  return absl::StrCat("<figure>\n<figcaption><span class=\"kicker\">", Escaped(kicker), "</span> ",
                      Escaped(caption), "</figcaption>\n", body, "</figure>\n");
}

std::string PublishedTableHtml(const PublishedTable& table) {
  return Figure("The paper", table.title,
                absl::StrCat(HtmlTable(table.header, table.rows, "scores"), "<p class=\"source\">",
                             Escaped(table.source), "</p>\n"));
}

// The published figure and our own, side by side as far as there are pairs.
std::string Figures(const Experiment& experiment, const LabResult& result) {
  std::vector<std::string> published, own;
  for (const LinePlot& plot : experiment.published) {
    published.push_back(Figure("The paper", plot.title, DrawLinePlot(plot)));
  }
  for (const PublishedTable& table : experiment.tables)
    published.push_back(PublishedTableHtml(table));
  for (size_t i = 0; i < experiment.panels.size(); ++i) {
    const Panel& panel = experiment.panels[i];
    own.push_back(Figure("This run", panel.title, DrawPanel(result, panel, PanelId(result, i))));
  }
  for (const Panel& panel : experiment.panels) {
    const std::string table = ScoreTable(result, panel);
    if (!table.empty()) own.push_back(Figure("This run", panel.title, table));
  }
  std::string html = "<div class=\"figures\">\n";
  for (size_t i = 0; i < std::max(published.size(), own.size()); ++i) {
    if (i < published.size()) html += published[i];
    if (i < own.size()) html += own[i];
  }
  return html + "</div>\n";
}

std::string FindingList(const Experiment& experiment, const LabResult& result) {
  std::string html = "<h3>What this run shows</h3>\n<ul class=\"findings\">\n";
  for (const std::string& sentence : Findings(experiment, result)) {
    absl::StrAppend(&html, "<li>", Escaped(sentence), "</li>\n");
  }
  return html + "</ul>\n";
}

std::string NoteList(const LabResult& result) {
  const std::vector<std::string> notes = MethodNotes(result);
  if (notes.empty()) return "";
  std::string html = "<h3>Which form of each method</h3>\n<ul class=\"notes\">\n";
  for (const std::string& note : notes) absl::StrAppend(&html, "<li>", Escaped(note), "</li>\n");
  return html + "</ul>\n";
}

std::string DifferenceBox(const Experiment& experiment, const LabResult& result) {
  std::string html = DifferenceTable(experiment, result);
  if (!html.empty()) {
    html = absl::StrCat("<h3>",
                        experiment.paper.corpus.empty() ? "What was set on top of the recipe"
                                                        : "What differs from the paper",
                        "</h3>\n", html);
  }
  html += NoteList(result);
  return html.empty() ? "" : absl::StrCat("<aside>\n", html, "</aside>\n");
}

std::string Section(const LabResult& result) {
  const Experiment experiment = ExperimentOf(result);
  return absl::StrCat(
      "<section id=\"", result.experiment(), "\">\n<p class=\"answers\">",
      Escaped(experiment.answers), " · size ", Escaped(result.size()), "</p>\n<h2>",
      Escaped(experiment.title), "</h2>\n<p class=\"claim\">", Escaped(experiment.claim), "</p>\n",
      FindingList(experiment, result), Figures(experiment, result),
      DifferenceBox(experiment, result), "<details>\n<summary>All ", result.cells_size(),
      " runs</summary>\n", CellTableHtml(result),
      "</details>\n<details>\n<summary>The exact commands</summary>\n<pre class=\"commands\">",
      Escaped(result.command()), "</pre>\n<p>which ran, run by run:</p>\n", CommandList(result),
      "</details>\n</section>\n");
}

std::string Navigation(std::span<const LabResult> results) {
  if (results.size() < 2) return "";
  std::string html = "<nav>";
  for (const LabResult& result : results) {
    absl::StrAppend(&html, "<a href=\"#", result.experiment(), "\">", Escaped(result.experiment()),
                    "</a>");
  }
  return html + "</nav>\n";
}

std::string Header(std::span<const LabResult> results) {
  const LabResult& first = results.front();
  return absl::StrCat("<header>\n<h1>deepnet laboratory</h1>\n<p>deepnet ",
                      Escaped(first.version()), " · ", Escaped(first.machine()), " · learned from ",
                      WithCommas(first.data().pairs()), " pairs of ",
                      Escaped(absl::StrJoin(first.data().languages(), ", ")), "</p>\n",
                      Navigation(results), "</header>\n");
}

constexpr char kHowToRead[] =
    "<footer>\n<h3>How to read this</h3>\n<p>Loss is in nats a target token, lower is better; the "
    "dashed line is what a model reaches that knows only how often each piece occurs. A point is "
    "the mean over seeds, its bar the lowest and the highest. ✕ marks runs that ended because ten "
    "steps in a row were not finite, or whose loss is above 20 nats. “The paper” is Wang et al., "
    "2022, arXiv:2203.00555: tables as printed, figures read off by eye. Figures of two sizes are "
    "not comparable as numbers, only in who learns and who does not.</p>\n</footer>\n";

}  // namespace

std::vector<std::string> ReportDrawings(const LabResult& result) {
  const Experiment experiment = ExperimentOf(result);
  std::vector<std::string> ids;
  for (const LinePlot& plot : experiment.published) ids.push_back(plot.id);
  for (size_t i = 0; i < experiment.panels.size(); ++i) {
    const std::string id = PanelId(result, i);
    ids.push_back(id);
    for (int k = 2; k <= NumDrawings(result, experiment.panels[i]); ++k) {
      ids.push_back(absl::StrCat(id, "-", k));
    }
  }
  return ids;
}

std::string MakeReport(std::span<const LabResult> results) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" "
      "content=\"light "
      "dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>deepnet laboratory: ",
      Escaped(results.front().experiment()), "</title>\n<style>\n", ReportStyle(),
      "</style>\n</head>\n<body>\n", Header(results), "<main>\n");
  for (const LabResult& result : results) html += Section(result);
  return absl::StrCat(html, "</main>\n", kHowToRead, "</body>\n</html>\n");
}

}  // namespace deepnet
