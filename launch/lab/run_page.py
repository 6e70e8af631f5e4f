"""The page of one or several training runs, from what is in their folders: `lab.py report RUN...`.

A run's folder has metrics.jsonl, checkpoints and perhaps traces; its settings are those of its newest checkpoint.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

import report
import results as R
import runs
from experiments import METHODS, UserError

LOOKS = ("deepnet", "pre-ln", "rezero", "admin", "post-ln-cold", "dlcl", "post-ln", "keel")  # of the first runs
FORWARD, BACKWARD, WEIGHTS = (METHODS[key].light for key in ("pre-ln", "deepnet", "rezero"))
COLOURS = {"F": (FORWARD, "forward"), "B": (BACKWARD, "backward"), "W": (WEIGHTS, "weight gradients")}
MAX_POINTS = 400  # of a line
MIB, HOUR = 2**20, 3600


# --- reading -----------------------------------------------------------------------------------------

DIRECTION = {"direction": R.TEXT, "bleu": R.FIGURE}
SAMPLE = {**{name: R.TEXT for name in ("direction", "source", "reference", "translation")}, "line": R.WHOLE}
RECORDS = {  # those of which a page says something
    "train": {
        **R.TRAIN,
        "target_tokens": R.WHOLE,
        "seconds": R.FINITE,
        "resident_bytes": R.WHOLE,
        **R.fields(R.WHOLE, "skipped_steps restarts"),
        **R.fields(R.NUMBER, "loss gradient_norm learning_rate tokens_per_second loss_scale bubble"),
    },
    "validation": {**R.VALIDATION, "bleu": R.FIGURE, "directions": [DIRECTION], "samples?": [SAMPLE]},
    "instruments": R.INSTRUMENTS,
    "spike": {"spike_step": R.WHOLE, "action": R.TEXT, "loss": R.NUMBER, "loss_limit": R.NUMBER},
    "save": {"step": R.WHOLE, **R.fields(R.TEXT, "error")},
}
ACTION = {"name": R.TEXT, "pid": R.WHOLE, "ts": R.FINITE, "dur": R.FINITE, "args": {"step": R.WHOLE}}  # of a trace


def read_run(folder, program, root):
    """A dict: name, kinds (records by kind), settings (field: value), planned (bytes of the fullest rank, or 0), trace."""
    path = Path(root) / folder
    kinds = R.read_metrics(path, RECORDS)
    if not kinds.get("train"):
        raise UserError(f"'{folder}': neither result.json of an experiment nor metrics.jsonl of a run", runs.BAD_DATA)
    spec = spec_of(path, program)
    return {
        "name": str(folder).rstrip("/").encode("utf-8", "replace").decode(),
        "kinds": kinds,
        "settings": flat(spec),
        "planned": planned_bytes(spec, program) if spec else 0,
        "trace": newest(path.glob("trace-*.json")),
    }


def newest(paths):
    return max(filter(Path.is_file, paths), key=lambda path: path.stat().st_mtime, default=None)


def spec_of(path, program):
    """The RunSpec of the newest checkpoint; {} where there is none."""
    steps = sorted(path.glob("step-*"))
    if not steps:
        return {}
    words = [program, "checkpoint", "inspect", "--spec", "--json", str(steps[-1])]
    code, answer, _ = runs.ask(words, {"manifest": {"run": R.FIELDS}})
    return answer["manifest"]["run"] if code == 0 else {}


def flat(fields, path=""):
    """{"optim.learning_rate": "0.001"}: what is set, lists as they are."""
    rows = {}
    for name, value in (fields or {}).items():
        if isinstance(value, dict):
            rows.update(flat(value, f"{path}{name}."))
        elif value not in (None, [], ""):
            rows[path + name] = value if isinstance(value, str) else json.dumps(value)
    return rows


def planned_bytes(spec, program):
    """Tensors of the rank that needs most, as `plan` foresees them; 0 where it cannot."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(json.dumps(spec))
        file.flush()
        code, answer, _ = runs.ask([program, "plan", "--config", file.name, "--json"], runs.COST)
    stages = answer["stages"] if code == 0 else []
    return max((int(stage["memory"]["total"]) for stage in stages), default=0)


# --- tables ------------------------------------------------------------------------------------------


HEADER = "run|steps|target tokens|hours|nll|dev nll|dev BLEU|skipped|spikes|restarts|planned MiB|resident MiB".split("|")


def summary_row(run):
    last, checks = run["kinds"]["train"][-1], run["kinds"].get("validation", [])
    cells = [run["name"], R.commas(last["step"]), R.commas(last["target_tokens"]), f"{last['seconds'] / HOUR:.2f}"]
    cells.append(f"{R.num(last['nll']):.3f}")
    losses = [nll for nll in (R.figure(v, "nll") for v in checks) if nll is not None]
    scores = [bleu for bleu in (R.figure(v, "bleu") for v in checks) if bleu is not None]
    cells.append(f"{min(losses):.3f}" if losses else "-")
    cells.append(f"{max(scores):.2f}" if scores else "-")
    cells += [last.get("skipped_steps", 0), len(run["kinds"].get("spike", [])), last.get("restarts", 0)]
    cells.append(f"{run['planned'] / MIB:,.0f}" if run["planned"] else "-")
    return [*cells, f"{last['resident_bytes'] / MIB:,.0f}"]


def settings_that_differ(read):
    """(header, rows): fields whose values are not the same in all runs."""
    names = list(dict.fromkeys(name for run in read for name in run["settings"]))
    rows = [[name, *(run["settings"].get(name, "-") for run in read)] for name in names if name not in ("name", "folder")]
    return ["field", *(run["name"] for run in read)], [row for row in rows if len(set(row[1:])) > 1]


def scores_by_direction(read):
    """(header, rows): BLEU of each direction at each run's last validation."""
    last = [{d["direction"]: d for d in (run["kinds"].get("validation") or [{"directions": []}])[-1]["directions"]} for run in read]
    names = sorted(set().union(*last))
    scores = [[R.figure(of.get(name, {}), "bleu") for of in last] for name in names]
    rows = [[name, *("-" if score is None else f"{score:.2f}" for score in row)] for name, row in zip(names, scores)]
    return ["direction", *(run["name"] for run in read)], rows


def samples(read):
    """(header, rows): dev sentences and what the runs' last validations made of them; those of a run follow those before."""
    texts = {}
    for column, run in enumerate(read):
        for s in (run["kinds"].get("validation") or [{}])[-1].get("samples", []):
            key = (s["direction"], f"{s['line']:,}", s["source"], s["reference"])
            texts.setdefault(key, ["-"] * len(read))[column] = s["translation"]
    names = [run["name"] for run in read] if len(read) > 1 else ["translation"]
    return ["direction", "line", "source", "reference", *names], [[*key, *row] for key, row in texts.items()]


def events(read):
    """Sentences: spikes, failed saves, steps that changed nothing."""
    texts = []
    for run in read:
        for spike in run["kinds"].get("spike", []):
            loss, limit = R.short(R.num(spike["loss"])), R.short(R.num(spike["loss_limit"]))
            done = spike["action"].lower().replace("_", " ")
            texts.append(f"{run['name']}: spike at step {spike['spike_step']:,}, loss {loss} (limit {limit}): {done}")
        for save in run["kinds"].get("save", []):
            if save.get("error"):
                texts.append(f"{run['name']}: no checkpoint of step {save['step']:,}: {save['error']}")
    return texts


# --- figures -----------------------------------------------------------------------------------------


def looks_of(read):
    """A look for each run, in turn."""
    looks = [METHODS[LOOKS[i % len(LOOKS)]] for i in range(len(read))]
    return [replace(look, label=Path(run["name"]).name, family="post") for look, run in zip(looks, read)]


def curves(read, kind, x, y):
    """A report.Line a run; `x` and `y` take a record, of which some have no `y`."""
    lines = []
    for look, run in zip(looks_of(read), read):
        records = R.thinned(run["kinds"].get(kind, []), MAX_POINTS)
        line = report.Line("", [(x(r), R.num(y(r))) for r in records if y(r) is not None])
        line.method, line.label = look, look.label
        lines.append(line)
    return lines


def depth_lines(read):
    """Gradient norms of layers, from the encoder's first to the decoder's last, in the last record of instruments."""
    lines = []
    for look, run in zip(looks_of(read), read):
        layers = (run["kinds"].get("instruments") or [{"layers": []}])[-1]["layers"]
        norms = [R.num(layer["gradient_norm"]) for layer in layers if ".layers." in layer["name"]]
        line = report.Line("", list(enumerate(norms, 1)))
        line.method, line.label = look, look.label
        lines.append(line)
    return lines


def field(name):
    return lambda record: record.get(name, 0)


def plots(read):
    """(kicker, caption, drawing) of each plot that has something to show."""
    step, tokens = field("step"), lambda r: r["target_tokens"] / 1e6
    wanted = [
        ("loss", "Negative log-likelihood while training, over steps", "train", step, field("nll"), "step", "nats a token", {}),
        ("loss", "The same over target tokens", "train", tokens, field("nll"), "million target tokens", "nats a token", {}),
        ("loss", "The same over time", "train", lambda r: r["seconds"] / HOUR, field("nll"), "hours", "nats a token", {}),
        ("smoothed", "What training minimises: label-smoothed", "train", step, field("loss"), "step", "nats a token", {}),
        ("dev", "Negative log-likelihood at validations", "validation", step, field("nll"), "step", "nats a token", {}),
        ("dev", "sacreBLEU at validations, mean over directions", "validation", step, field("bleu"), "step", "BLEU", {}),
        ("norm", "Gradient norm before clipping", "train", step, field("gradient_norm"), "step", "norm", {"log_y": True}),
        ("rate", "Learning rate", "train", step, field("learning_rate"), "step", "rate", {}),
        ("speed", "Source and target tokens a second", "train", step, field("tokens_per_second"), "step", "tokens a second", {}),
        ("skips", "Steps that changed nothing, so far", "train", step, field("skipped_steps"), "step", "steps", {}),
        ("scale", "Loss scale of float16", "train", step, field("loss_scale"), "step", "scale", {"log_y": True}),
        ("bubble", "Share of the pipeline's time without work", "train", step, field("bubble"), "step", "share", {}),
    ]
    figures = []
    for number, (kicker, caption, kind, x, y, x_label, y_label, more) in enumerate(wanted):
        lines = curves(read, kind, x, y)
        if any(value for line in lines for _, value in line.points):
            drawn = report.draw_lines(f"plot{number}", caption, lines, x_label, y_label, marks=False, **more)
            figures.append((kicker, caption, drawn))
    lines = depth_lines(read)
    if any(line.points for line in lines):
        caption = "Gradient norm of each layer at the last measurement, encoder first"
        drawn = report.draw_lines("depth", caption, lines, "layer", "norm", log_y=True, marks=False)
        figures.append(("depth", caption, drawn))
    return figures


def draw_timeline(identity, path):
    """(caption, drawing) of the first step in a trace: what each rank computed when; None where there is none."""
    events = R.read_json(path, {"traceEvents": [R.FIELDS]})["traceEvents"]
    actions = [(number, event) for number, event in enumerate(events) if event.get("cat") == "compute"]
    actions = [R.checked(event, ACTION, f"'{path}': traceEvents[{number}]") for number, event in actions]
    if not actions:
        return None
    first = min(action["args"]["step"] for action in actions)
    work = [action for action in actions if action["args"]["step"] == first]
    ranks = sorted({e["pid"] for e in work})
    begin = min(e["ts"] for e in work)
    height = 68 + 20 * len(ranks)
    figure = plt.figure(figsize=(report.WIDTH / 72, height / 72))
    axes = figure.add_axes((44 / report.WIDTH, 56 / height, (report.WIDTH - 54) / report.WIDTH, (height - 62) / height))
    for row, rank in enumerate(ranks):
        for kind, (colour, _) in COLOURS.items():
            bars = [((e["ts"] - begin) / 1e3, e["dur"] / 1e3) for e in work if e["pid"] == rank and kind in e["name"]]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, edgecolor=report.CARD, linewidth=0.4)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.set_xlabel("milliseconds", labelpad=2)
    shown = [(colour, text) for kind, (colour, text) in COLOURS.items() if any(kind in e["name"] for e in work)]
    for column, (colour, text) in enumerate(shown):
        figure.text((6 + 100 * column) / report.WIDTH, 6 / height, f"■ {text}", color=colour)
    caption = f"What each rank computed in step {first:,}"
    return caption, report.svg_of(figure, identity, caption, height)


# --- the page ----------------------------------------------------------------------------------------


def make_page(read):
    """The page of runs: the same folders give the same bytes."""
    figures = plots(read)
    for number, run in enumerate(read):
        drawn = draw_timeline(f"timeline{number}", run["trace"]) if run["trace"] else None
        if drawn:
            figures.append(("timeline", f"{drawn[0]}: {run['name']}", drawn[1]))
    differ = settings_that_differ(read)
    return report.render(
        "run_page.html.j2",
        names=[run["name"] for run in read],
        summary=(HEADER, [summary_row(run) for run in read]),
        events=events(read),
        figures=figures,
        differ=differ if len(read) > 1 and differ[1] else None,
        scores=scores_by_direction(read),
        samples=samples(read),
        settings=[(run["name"], sorted(run["settings"].items())) for run in read],
    )
