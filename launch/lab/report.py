"""The page of one or several results: plots by matplotlib, one HTML file that needs nothing else, and CSV.

Plots are inline SVG with texts as texts. matplotlib draws in the colours of a light page; those that a style
sheet knows become variables, so that the page is light or dark as the reader's system is.
"""

import io
import math
import re

import jinja2
import matplotlib
import pandas as pd
from markupsafe import Markup

import results as R
from experiments import HERE, METHODS, many, method_of, published_lines

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  the backend comes first
from matplotlib.colors import to_hex, to_rgb  # noqa: E402

WIDTH, HEIGHT = 340, 232  # of a plot; a telephone of 360 pixels shows it one to one
TEXT = 11.7  # every letter's size: on that telephone at least 11 pixels
MAX_NAMES = 10  # of a matrix's rows or columns
MAX_NUMBERED = 9  # columns of a matrix whose squares have their numbers
INK, SOFT, RULE, GRID, CARD, ACCENT, BLANK = "#1c1917", "#57534e", "#a8a29e", "#efedea", "#ffffff", "#c2410b", "#f1efec"
DARK = {INK: "#f5f5f4", SOFT: "#c5bfb9", RULE: "#8b837c", GRID: "#2b2622", CARD: "#1f1b18", BLANK: "#2c2723"}
MARKERS = {"deep": "o", "post": "s", "pre": "^", "none": "D"}
STYLE = {
    **dict.fromkeys("font.size axes.labelsize xtick.labelsize ytick.labelsize legend.fontsize".split(), TEXT),
    **dict.fromkeys("axes.labelcolor xtick.color ytick.color".split(), SOFT),
    **dict.fromkeys("axes.facecolor figure.facecolor".split(), "none"),
    **dict.fromkeys("axes.grid axes.axisbelow".split(), True),
    **dict.fromkeys("axes.spines.top axes.spines.right legend.frameon axes.formatter.useoffset".split(), False),
    **{"text.color": INK, "axes.edgecolor": RULE, "grid.color": GRID},
    **{"axes.linewidth": 0.8, "lines.linewidth": 1.6, "lines.markersize": 5.5},
    **{"svg.fonttype": "none", "svg.hashsalt": "deepnet", "font.family": "DejaVu Sans"},
}
matplotlib.rcParams.update(STYLE)


def colour_variables():
    """{colour of a light page: its variable}."""
    names = {colour: f"--plot-{colour[1:]}" for colour in DARK}
    return {**{m.light: f"--plot-{m.light[1:]}" for m in METHODS.values()}, **names}


def svg_of(figure, identity, title, height, below=""):
    """The figure as an element with the id `identity`; `title` is for people who cannot see it, `below` is drawn first."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    plt.close(figure)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    svg = re.sub(r'(id="|href="#|url\(#)(?=\w)', rf"\g<1>{identity}-", svg)
    for colour, variable in colour_variables().items():
        svg = svg.replace(f": {colour}", f": var({variable})")
    label = str(jinja2.filters.escape(title))
    head = f'<svg id="{identity}" class="plot" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height:g}">'
    return Markup(re.sub(r"^<svg[^>]*>", lambda _: head + "\n" + below, svg).strip() + "\n")


def empty_plot(identity, title):
    """What stands where nothing can be drawn."""
    figure, axes = plt.subplots(figsize=(WIDTH / 72, 110 / 72))
    axes.set_axis_off()
    axes.add_patch(plt.Rectangle((0, 0), 1, 1, facecolor=BLANK))
    axes.text(0.5, 0.5, "nothing measured yet", ha="center", va="center", color=SOFT)
    return svg_of(figure, identity, title, 110)


# --- lines -----------------------------------------------------------------------------------------


class Line:
    """A method's points; `gone`: where runs diverged or left the scale."""

    def __init__(self, method, points, label="", fit=False, bars=(), gone=()):
        self.method, self.label, self.fit = method_of(method), label or method_of(method).label, fit
        self.points = [(x, y) for x, y in points if R.is_plain(y)]
        self.bars = list(bars)  # (x, low, high)
        self.gone = list(gone)


def line_style(line):
    method = line.method
    style = {"color": method.light, "linestyle": (0, method.dash) if method.dash else "-"}
    if method.family == "deep":
        style.update(linewidth=2.6, zorder=4)
    if line.fit:
        style.update(linestyle=(0, (1, 3)), linewidth=1.5)
    return style


def number_ticks(axis, values, log, count):
    """Short numbers at `values`, as far as they do not touch, or where matplotlib puts them."""
    formatter = matplotlib.ticker.FuncFormatter(lambda value, _: R.short(value))
    if values:
        axis.set_major_locator(matplotlib.ticker.FixedLocator(values))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    elif log:
        low, high = axis.get_view_interval()
        wide = math.log10(high / low) > 2.2
        axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=count + 3))
        inside = [t for t in axis.get_majorticklocs() if low <= t <= high]
        if len(inside) < 2:
            axis.set_major_locator(matplotlib.ticker.MaxNLocator(count, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(matplotlib.ticker.NullLocator())
    else:
        axis.set_major_locator(matplotlib.ticker.MaxNLocator(count, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(formatter)


def apart(values, low, high, log, room):
    """Those of `values` whose numbers do not touch on an axis of `room` points."""
    place = math.log10 if log else float
    kept, end = [], -math.inf
    for value in values:
        at = (place(value) - place(low)) / (place(high) - place(low)) * room
        width = 0.62 * TEXT * len(R.short(value)) + 5
        if at - width / 2 >= end:
            kept.append(value)
            end = at + width / 2
    return kept


def limits(values, log):
    """An axis around `values`: some room on either side, and zero where it is near."""
    place, back = (math.log10, lambda v: 10**v) if log else (float, float)
    low, high = min(map(place, values)), max(map(place, values))
    least = 0.1 if log else max(0.1 * abs(high), 1e-9)
    room = max(0.06 * (high - low), (least - (high - low)) / 2)
    return (0.0 if not log and low >= 0 and low - room < 0 else back(low - room)), back(high + room)


def draw_lines(identity, title, lines, x_label, y_label, log_x=False, log_y=False, ticks=(), levels=(), bands=(), marks=True):
    """Lines with a legend below; runs that are gone as crosses in a row of their method."""
    if log_y:
        for line in lines:
            line.points = [(x, y) for x, y in line.points if y > 0]
    gone = [line for line in lines if line.gone]
    xs = [x for line in lines for x in [x for x, _ in line.points] + line.gone]
    ys = [y for line in lines for y in [y for _, y in line.points] + [v for _, a, b in line.bars for v in (a, b)]]
    if not xs:
        return empty_plot(identity, title)
    if not ticks and len(set(xs)) <= 3:
        ticks = sorted(set(xs))
    xs += [x for band in bands for x in (band["left"], band["right"])]
    ys += [y for band in bands for y in (band["low"], band["high"])] + [y for y, _ in levels]
    named = [line for line in lines if line.points or line.gone]
    rows = math.ceil(len(named) / 3)
    notes = [(text, None) for _, text in levels] + [(b["label"], method_of(b["method"]).light) for b in bands]
    rail, foot = 17 * len(gone), 38 + 17 * rows + 15 * len(notes)
    height = HEIGHT + rail + 17 * rows + 15 * len(notes)
    left = max(44, 4 + 0.62 * TEXT * max([0] + [len("✕ " + line.label) for line in gone]))
    figure = plt.figure(figsize=(WIDTH / 72, height / 72))

    def box(bottom, tall):
        return figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - 10) / WIDTH, tall / height))

    axes = box(foot + rail, height - foot - rail - 22)
    low, high = limits(xs, log_x)
    for band in bands:
        colour = method_of(band["method"]).light
        axes.fill_between([band["left"], band["right"]], band["low"], band["high"], color=colour, alpha=0.16, lw=0)
    for y, _ in levels:
        axes.axhline(y, color=SOFT, linewidth=0.9, linestyle=(0, (5, 4)))
    for line in lines:
        style = line_style(line)
        axes.plot(*zip(*line.points) if line.points else ((), ()), **style)
        for x, bottom, top in line.bars:
            axes.plot([x, x], [bottom, top], color=line.method.light, linewidth=1.3, alpha=0.6)
        few = marks or len(line.points) == 1
        if few and not line.fit and line.points:
            marker = {"marker": MARKERS[line.method.family], "linestyle": "", "color": line.method.light}
            axes.plot(*zip(*line.points), markeredgecolor=CARD, markeredgewidth=0.8, zorder=5, **marker)
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
    axes.set_xlim(low, high)
    if ys:
        axes.set_ylim(*limits(ys, log_y))
        number_ticks(axes.yaxis, (), log_y, 5)
    else:
        axes.set_yticks([])
    axes.set_title(y_label, loc="left", fontsize=TEXT, color=SOFT, x=-left / (WIDTH - left - 10) + 0.015)
    bottom = axes
    if gone:
        bottom = box(foot, rail)
        bottom.set_xscale("log" if log_x else "linear")
        bottom.set_xlim(low, high)
        bottom.set_ylim(-0.5, len(gone) - 0.5)
        bottom.set_yticks(range(len(gone)), ["✕ " + line.label for line in gone])
        bottom.tick_params(axis="y", length=0)
        for row, line in enumerate(gone):
            bottom.get_yticklabels()[row].set_color(line.method.light)
            bottom.plot(line.gone, [row] * len(line.gone), "x", color=line.method.light, markeredgewidth=1.7)
        axes.tick_params(axis="x", labelbottom=False, length=0)
        number_ticks(axes.xaxis, apart(ticks, low, high, log_x, WIDTH - left - 10), log_x, 5)
        axes.tick_params(axis="x", labelbottom=False, length=0)
    number_ticks(bottom.xaxis, apart(sorted(set(ticks)), low, high, log_x, WIDTH - left - 10), log_x, 5)
    bottom.set_xlabel(x_label, labelpad=2)
    legend(figure, named, notes, height, marks)
    return svg_of(figure, identity, title, height)


def legend(figure, lines, notes, height, marks):
    """Three names a row, then what levels and bands are."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, height)
    rows = math.ceil(len(lines) / 3)
    for i, line in enumerate(lines):
        x, y = 6 + (i % 3) * 112, 17 * (rows - 1 - i // 3) + 9 + 15 * len(notes)
        axes.plot([x, x + 20], [y, y], **line_style(line))
        if not line.fit and (marks or len(line.points) == 1):
            axes.plot([x + 10], [y], MARKERS[line.method.family], color=line.method.light, markeredgecolor=CARD)
        bold = {"fontweight": "bold"} if line.method.family == "deep" and not line.fit else {}
        axes.text(x + 25, y - 4, line.label, color=line.method.light, **bold)
    for i, (note, band) in enumerate(notes):
        y = 15 * (len(notes) - 1 - i) + 8
        if band:
            axes.fill_between([6, 26], y - 5, y + 5, color=band, alpha=0.16, lw=0)
        else:
            axes.plot([6, 26], [y, y], color=SOFT, linewidth=0.9, linestyle=(0, (5, 4)))
        axes.text(31, y - 4, note, color=SOFT)


# --- heat maps ---------------------------------------------------------------------------------------


def mixed(share):
    """The accent on a white page, the stronger the greater the share."""
    return to_hex([share * a + (1 - share) * 1.0 for a in to_rgb(ACCENT)])


def draw_heat_map(identity, title, columns, rows, values, x_label, y_label, low_is_good, spread=None):
    """Squares of [row][column]; None is blank, a word is a cross. `spread`: what the colours span."""
    numbers = [v for row in values for v in row if isinstance(v, float) and R.is_plain(v)]
    if not numbers and not any(isinstance(v, str) for row in values for v in row):
        return empty_plot(identity, title)
    low, high = spread or (min(numbers, default=0.0), max(numbers, default=1.0))

    def strength(value):
        share = (value - low) / (high - low) if high > low else 1.0
        return 0.06 + 0.94 * (1 - share if low_is_good and high > low else share)

    names = 0.62 * TEXT * max(len(name) for name in rows)
    left = 26 + names
    square = (WIDTH - left - 6) / len(columns)
    tall = min(square, 26) if len(columns) <= MAX_NUMBERED else square
    height = tall * len(rows) + 46
    gap = 0.8 if tall > 12 else 0.15
    figure = plt.figure(figsize=(WIDTH / 72, height / 72))
    axes = figure.add_axes((left / WIDTH, 40 / height, (WIDTH - left - 6) / WIDTH, tall * len(rows) / height))
    axes.grid(False)
    squares = []
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            number = isinstance(value, float) and R.is_plain(value)
            colour = mixed(strength(value)) if number else f"var(--plot-{BLANK[1:]})"
            text = R.short(value) if number else value or "no value"
            place = f'x="{left + c * square + gap:.1f}" y="{6 + r * tall + gap:.1f}"'
            size = f'width="{square - 2 * gap:.1f}" height="{tall - 2 * gap:.1f}"'
            hint = f"{rows[r]}, {columns[c]}: {text}"  # shown where the pointer rests
            squares.append(f'<rect {place} {size} fill="{colour}"><title>{jinja2.filters.escape(hint)}</title></rect>')
            if len(columns) <= MAX_NUMBERED and value is not None:
                ink = "#fff7ed" if number and strength(value) > 0.7 else "#1c1918" if number else SOFT
                shown = text if number else "✕"
                axes.text(c + 0.5, r + 0.5, shown, ha="center", va="center_baseline", color=ink)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    for side in axes.spines.values():
        side.set_visible(False)
    every = max(1, math.ceil(len(columns) / MAX_NAMES))
    axes.set_xticks([c + 0.5 for c in range(0, len(columns), every)], columns[::every])
    every = max(1, math.ceil(len(rows) / (tall * len(rows) / 18)))
    axes.set_yticks([r + 0.5 for r in range(0, len(rows), every)], rows[::every])
    axes.tick_params(length=0)
    axes.set_xlabel(x_label, labelpad=2)
    axes.set_ylabel(y_label, labelpad=2)
    return svg_of(figure, identity, title, height, "\n".join(squares))


# --- panels ------------------------------------------------------------------------------------------


def draw_scores(result, panel, identity, levels):
    groups = R.group_seeds(result, panel)
    lines = []
    for series in R.series_of(groups):
        points, bars, gone = [], [], []
        for group in (g for g in groups if g.series == series):
            spread = group.spread
            off = spread.count > 0 and R.is_off_the_scale(panel.quantity, spread.high)
            if spread.count and not off:
                points.append((group.x, spread.mean))
                bars += [(group.x, spread.low, spread.high)] if spread.count > 1 else []
            if group.diverged or off:
                gone.append(group.x)
        lines.append(Line(series, points, bars=bars, gone=gone))
        fit = R.fit_series(groups, series) if panel.fit else None
        if fit:
            law = [(x, fit["slope"] * math.log10(x) + fit["offset"]) for x, _ in points]
            lines.append(Line(series, law, "A log d + B", fit=True))
    ticks = sorted({group.x for group in groups})
    return draw_lines(
        identity, panel.title, lines, panel.x_label, R.unit(panel.quantity), panel.log_x, panel.log_y, ticks, levels
    )


def draw_curves(result, panel, identity, levels):
    layers = panel.kind == "LAYERS"
    lines = []
    for cell in R.representatives(result, panel):
        points = R.layer_curve(cell, panel.quantity, panel.step) if layers else R.curve(cell, panel.quantity)
        lines.append(Line(cell["series"], points))
    x_label = "decoder layer, 1 is the lowest" if layers else "steps"
    unit = R.unit(panel.quantity)
    return draw_lines(identity, panel.title, lines, x_label, unit, False, panel.log_y, (), levels, marks=False)


def draw_grid(result, panel, identity):
    groups = R.group_seeds(result, panel)
    xs, ys = sorted({g.x for g in groups}), sorted({g.y for g in groups})
    found = {}
    for group in groups:
        if group.spread.count:
            found[group.x, group.y] = group.spread.mean
        elif group.diverged:
            found[group.x, group.y] = "diverged"
    if not groups:
        return empty_plot(identity, panel.title)
    values = [[found.get((x, y)) for x in xs] for y in ys]
    columns, rows = [R.short(x) for x in xs], [R.short(y) for y in ys]
    good = R.is_loss(panel.quantity)
    return draw_heat_map(identity, panel.title, columns, rows, values, panel.x_label, panel.y_label, good)


def matrix_range(groups, quantity):
    """What the colours of all matrices span: they are there to be compared. None: there are no scores."""
    tests = [(group.cells[0].get("test") or {}).get("directions", []) for group in groups]
    scores = [R.score_of(d, quantity) for directions in tests for d in directions]
    spread = R.Spread([score for score in scores if score is not None])
    return (spread.low, spread.high) if spread.count else None


def draw_matrices(result, panel, identity):
    groups = R.group_seeds(result, panel)
    if not groups:
        return empty_plot(identity, panel.title)
    spread = matrix_range(groups, panel.quantity)
    html = Markup("")
    for i, group in enumerate(groups):
        cell, name = group.cells[0], method_of(group.series).label
        values = {}
        for direction in (cell.get("test") or {}).get("directions", []):
            source, _, target = direction["direction"].partition("-")
            values[source, target] = R.score_of(direction, panel.quantity)
        languages = sorted({language for pair in values for language in pair})
        rows = [[values.get((source, target)) for target in languages] for source in languages]
        own = identity if i == 0 else f"{identity}-{i + 1}"
        html += Markup('<p class="which">{}, {} layers in all</p>\n').format(name, R.short(group.x))
        title = f"{panel.title}, {name}"
        if languages:
            good = R.is_loss(panel.quantity)
            html += draw_heat_map(own, title, languages, languages, rows, "into", "from", good, spread)
        else:
            html += empty_plot(own, title)
    return html


def draw_panel(result, panel, identity):
    level = R.word_frequency_level(result["data"], panel.quantity)
    levels = [(level, "what word frequencies alone give")] if level > 0 else []
    if panel.kind == "SCORE":
        return draw_scores(result, panel, identity, levels)
    if panel.kind == "GRID":
        return draw_grid(result, panel, identity)
    if panel.kind == "MATRIX":
        return draw_matrices(result, panel, identity)
    return draw_curves(result, panel, identity, levels)


def draw_published(plot, identity):
    lines = []
    for method, label, points, is_fit in published_lines(plot):
        lines.append(Line(method, points, label, is_fit, gone=[x for x, y in points if math.isnan(y)]))
    levels = [(level["y"], level["label"]) for level in many(plot, "level")]
    labels, logs = (plot["x_label"], plot["y_label"]), (plot.get("log_x", False), plot.get("log_y", False))
    return draw_lines(identity, plot["title"], lines, *labels, *logs, many(plot, "ticks"), levels, many(plot, "band"))


# --- page --------------------------------------------------------------------------------------------


def score_text(result, panel, group):
    """ "5.83 ± 0.02", and behind it how the seeds ended that did not learn: "diverged: 1 of 3"."""
    parts = []
    if group.spread.count:
        parts.append(R.quantity_text(panel.quantity, group.spread.mean))
        if group.spread.count > 1:
            parts[0] += f" ± {R.short(group.spread.deviation, 2)}"
    for verdict, cells in R.count_verdicts(group, result["data"]).items():
        if verdict not in (R.LEARNED, R.SHORT):
            few = f": {len(cells)} of {len(group.cells)}" if len(cells) < len(group.cells) else ""
            parts.append(verdict + few)
    return ", ".join(parts)


def score_table(result, panel):
    """(header, rows): a row a method, a column a place of the axis."""
    groups = R.group_seeds(result, panel)
    xs = sorted({group.x for group in groups})
    found = {(group.series, group.x): score_text(result, panel, group) for group in groups}
    header = [R.unit(panel.quantity)] + [R.short(x) for x in xs]
    return header, [[R.label(s)] + [found.get((s, x), "not run") for x in xs] for s in R.series_of(groups)]


RUN_HEADER = ["run", "how it ended", "parameters", "steps", "first nll", "last nll", "dev nll", "test nll", "test BLEU", "time"]


def run_row(result, cell):
    def text(quantity):
        value = R.score(cell, quantity)
        return "" if value is None else R.quantity_text(quantity, value)

    steps = cell.get("steps", [])
    first = R.quantity_text("train_nll", R.num(steps[0]["nll"])) if steps else ""
    return [
        cell["name"],
        R.verdict_text(cell, result["data"]),
        R.commas(cell.get("parameters", 0)),
        R.commas(steps[-1]["step"] if steps else 0),
        first,
        *[text(quantity) for quantity in ("train_nll", "dev_nll", "test_nll", "test_bleu")],
        R.clock(cell.get("seconds", 0)),
    ]


def figures_of(experiment, result):
    """The published figures and our own, side by side as far as there are pairs: dicts for the template."""
    name = result["experiment"]
    published, own = [], []
    for i, plot in enumerate(experiment.published):
        drawn = draw_published(plot, f"{name}-published-{i + 1}")
        published.append({"kicker": "The paper", "caption": plot["title"], "drawn": drawn})
    for table in experiment.tables:
        rows = [many(row, "of") for row in many(table, "row")]
        table = {"caption": table["title"], "table": (table["header"], rows), "source": table["source"]}
        published.append({"kicker": "The paper", **table})
    for i, panel in enumerate(experiment.panels):
        drawn = draw_panel(result, panel, f"{name}-own-{i + 1}")
        own.append({"kicker": "This run", "caption": panel.title, "drawn": drawn})
    for panel in experiment.panels:
        if panel.kind == "SCORE":
            own.append({"kicker": "This run", "caption": panel.title, "table": score_table(result, panel)})
    figures = []
    for i in range(max(len(published), len(own))):
        figures += published[i : i + 1] + own[i : i + 1]
    return figures


def style_colours():
    light = {v: c for c, v in colour_variables().items()}
    dark = {f"--plot-{c[1:]}": d for c, d in DARK.items()}
    dark.update({f"--plot-{m.light[1:]}": m.dark for m in METHODS.values()})
    return light, dark


def make_report(results):
    """The page of at least one result: the same results give the same bytes."""
    sections = []
    for result in results:
        experiment = R.experiment_of(result)
        sections.append(
            {
                "result": result,
                "experiment": experiment,
                "findings": R.findings(experiment, result),
                "figures": figures_of(experiment, result),
                "differences": R.differences(experiment, result),
                "notes": R.method_notes(result),
                "runs": (RUN_HEADER, [run_row(result, cell) for cell in result["cells"]]),
                "commands": "\n".join(c for cell in result["cells"] for c in cell.get("commands", [])),
            }
        )
    return render("report.html.j2", sections=sections, first=results[0], commas=R.commas)


def render(template, **values):
    """A page of a template beside this file, which has the colours too."""
    loader = jinja2.FileSystemLoader(HERE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    light, dark = style_colours()
    return environment.get_template(template).render(light=light, dark=dark, **values)


# --- CSV ---------------------------------------------------------------------------------------------


def runs_table(result):
    """A row a run."""
    rows = []
    for cell in result["cells"]:
        steps = cell.get("steps", [])
        row = {name: cell.get(name, "") for name in ("name", "group", "series", "x", "y", "seed")}
        row["verdict"] = R.judge(cell, result["data"])
        row["status"] = cell["status"].removeprefix("CELL_").lower()
        row.update({name: cell.get(name, 0) for name in ("exit_code", "parameters")})
        row["steps"] = steps[-1]["step"] if steps else 0
        row["first_nll"] = R.num(steps[0]["nll"]) if steps else None
        row.update({quantity: R.score(cell, quantity) for quantity in R.QUANTITIES})
        row["seconds"] = cell.get("seconds", 0)
        row["settings"] = " ".join(cell.get("sets", []))
        rows.append(row)
    return pd.DataFrame(rows)


def curves_table(result, folder):
    """A row a record of training or validation of each run, as metrics.jsonl has them."""
    rows = []
    for cell in result["cells"]:
        kinds = R.read_metrics(folder / "cells" / cell["name"])
        for kind in ("train", "validation"):
            for record in kinds.get(kind, []):
                plain = {name: value for name, value in record.items() if not isinstance(value, (list, dict))}
                rows.append({"name": cell["name"], "series": cell["series"], "x": cell["x"], "seed": cell["seed"], **plain})
    return pd.DataFrame(rows)
