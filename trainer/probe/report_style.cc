// The page's look: system fonts, one column of text, two of figures where there is room; colours as
// variables, so that dark is a second set of values.
#include "absl/strings/str_cat.h"

#include "trainer/probe/methods.h"
#include "trainer/probe/report.h"

namespace deepnet {
namespace {

constexpr char kColours[] = R"(:root {
  --page: #fcfbf9; --card: #ffffff; --ink: #1c1917; --soft: #57534e; --faint: #a8a29e;
  --rule: #e7e5e4; --grid: #efedea; --accent: #c2410c; --on-accent: #fff7ed; --tint: #faf5ef;
)";

constexpr char kDarkColours[] = R"(@media (prefers-color-scheme: dark) { :root {
  --page: #171412; --card: #1f1b18; --ink: #f5f5f4; --soft: #c5bfb9; --faint: #8b837c;
  --rule: #3a342f; --grid: #2b2622; --accent: #fb923c; --on-accent: #1c1917; --tint: #241e19;
)";

constexpr char kPage[] = R"(* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1180px; padding: 40px 28px 60px; background: var(--page);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 14px; }
h1 { font-size: 15px; letter-spacing: .04em; margin: 0; font-weight: 600; color: var(--accent); }
header p { margin: 4px 0 0; color: var(--soft); font-size: 14px; }
nav { margin-top: 10px; display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 14px; }
nav a { color: var(--accent); text-decoration: none; padding: 6px 0; }
nav a:hover { text-decoration: underline; }
section { padding: 34px 0 26px; border-bottom: 1px solid var(--rule); }
.answers { margin: 0; color: var(--soft); font-size: 14px; }
h2 { font-size: 30px; line-height: 1.2; margin: 4px 0 10px; letter-spacing: -.01em; }
h3 { font-size: 16px; margin: 30px 0 8px; }
.claim { max-width: 44em; font-size: 18px; margin: 0; color: var(--soft); }
.findings { max-width: 50em; padding-left: 1.1em; margin: 0; }
.findings li { margin: 4px 0; }
.findings li::marker { color: var(--accent); }
.notes { max-width: 60em; padding-left: 1.1em; margin: 0; font-size: 14px; }
.figures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px;
  margin-top: 26px; align-items: start; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 16px 16px 8px; min-width: 0; }
figcaption { font-size: 14.5px; line-height: 1.4; margin-bottom: 8px; }
.kicker { color: var(--accent); font-weight: 600; margin-right: .3em; }
.which { margin: 10px 0 0; font-size: 14px; font-weight: 600; }
.source { color: var(--soft); font-size: 13.5px; margin: 8px 0; }
aside { margin-top: 30px; background: var(--tint); border-radius: 10px; padding: 4px 20px 16px; }
aside h3 { margin-top: 16px; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: 5px 18px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
td:first-child { white-space: nowrap; }
.differences { width: 100%; }
.differences td:first-child { color: var(--soft); white-space: normal; width: 24%; }
.differences td:nth-child(2) { width: 36%; }
details { margin-top: 22px; }
summary { cursor: pointer; font-weight: 600; padding: 6px 0; }
.commands { background: var(--tint); border-radius: 8px; padding: 14px 16px; overflow-x: auto;
  font: 12.5px/1.6 ui-monospace, "DejaVu Sans Mono", monospace; max-height: 26em; }
footer { color: var(--soft); font-size: 14.5px; max-width: 50em; }
footer h3 { color: var(--ink); }
@media (max-width: 760px) {
  body { padding: 22px 16px 40px; }
  .figures { grid-template-columns: minmax(0, 1fr); gap: 14px; }
  figure { padding: 12px 10px 4px; }
  h2 { font-size: 25px; }
  .claim { font-size: 17px; }
  aside { padding: 2px 14px 12px; }
  .differences thead { display: none; }
  .differences tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--rule); }
  .differences td { display: block; border: 0; padding: 1px 0; }
  .differences td:first-child, .differences td:nth-child(2) { width: auto; }
  .differences td:nth-child(2)::before { content: "paper: "; color: var(--soft); }
  .differences td:nth-child(3)::before { content: "here: "; color: var(--soft); }
}
)";

constexpr char kPlots[] = R"(.plot { display: block; width: 100%; height: auto; overflow: visible; }
.plot text { fill: var(--ink); font-size: 12px; }
.plot .tick { fill: var(--soft); font-size: 11.5px; }
.plot .label { fill: var(--soft); font-size: 12px; }
.plot .note { fill: var(--soft); font-size: 11px; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; }
.plot .mid { text-anchor: middle; }
.plot .end { text-anchor: end; }
.plot .grid { stroke: var(--grid); }
.plot .axis { stroke: var(--faint); stroke-width: .8; }
.plot .rail { stroke: var(--grid); }
.plot .level { stroke: var(--soft); stroke-dasharray: 5 4; stroke-width: .9; }
.plot .line { fill: none; stroke-width: 1.5; stroke-linejoin: round; stroke-linecap: round; }
.plot .line.m-deepnet { stroke-width: 2.6; }
.plot .line.fit { stroke-dasharray: 1 4; stroke-width: 1.5; }
.plot .mark { stroke: var(--card); stroke-width: 1; }
.plot .spread { stroke-width: 1.4; opacity: .55; }
.plot .lead { stroke-width: .8; opacity: .5; stroke-dasharray: 1 3; }
.plot .cross { fill: none; stroke-width: 1.7; stroke-linecap: round; }
.plot .name { font-size: 12px; }
.plot .name.t-deepnet { font-weight: 700; }
.plot .band { stroke: none; fill-opacity: .16; }
.plot .heat { fill: var(--accent); }
.plot .blank { fill: var(--grid); }
.plot .on-heat { fill: var(--on-accent); }
@media (max-width: 540px) {
  body { padding: 20px 10px 36px; }
  figure { padding: 12px 6px 4px; }
  figcaption, .figures .scroll, .source, .which { padding-left: 6px; padding-right: 6px; }
  .plot text, .plot .tick, .plot .label, .plot .note, .plot .name { font-size: 15px; }
}
)";

// A method's two colours as one variable.
std::string Variables(bool dark) {
  std::string css;
  for (const Method& method : Methods()) {
    absl::StrAppend(&css, "  --", method.key, ": ", dark ? method.dark : method.light, ";");
  }
  return css;
}

std::string MethodRules() {
  std::string css;
  for (const Method& method : Methods()) {
    absl::StrAppend(&css, ".m-", method.key, " { stroke: var(--", method.key, "); }\n.mark.m-",
                    method.key, ", .band.m-", method.key, " { fill: var(--", method.key,
                    "); }\n.plot .t-", method.key, ", .t-", method.key, " { fill: var(--",
                    method.key, "); color: var(--", method.key, "); }\n");
    if (*method.dash != 0) {
      absl::StrAppend(&css, ".line.m-", method.key, " { stroke-dasharray: ", method.dash, "; }\n");
    }
  }
  return css;
}

}  // namespace

std::string ReportStyle() {
  return absl::StrCat(kColours, Variables(false), "\n}\n", kDarkColours, Variables(true), "\n} }\n",
                      kPage, kPlots, MethodRules());
}

}  // namespace deepnet
