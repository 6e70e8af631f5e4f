"""What came out: records of runs, what is read off them, what may be said of them. Pure, but for reading files.

A result (result.json) is a dict: experiment, size, version, machine, data, seeds, cells_planned, command and
`cells`, a dict each: name, group, series, x, y, seed, status, exit_code, error, recipe, sets, commands, run (the
complete RunSpec), parameters, seconds and records as metrics.jsonl and `evaluate --json` have them: steps,
validations, instruments, test.
"""

import json
import math
import re
from pathlib import Path

from experiments import UserError, make_experiment, method_of, published_lines

DONE, DIVERGED, FAILED = "CELL_DONE", "CELL_DIVERGED", "CELL_FAILED"
MAX_STEPS = 300  # records of a run that a result keeps
MAX_INSTRUMENTS = 40
MAX_VALUES = 6  # of one setting, all named
BAD_DATA = 4  # exit status
MAX_NATS = 20.0  # log of 485 million: worse than an even guess among any vocabulary's pieces


def num(value):
    """A JSON number; protobuf writes those that are not finite as words."""
    return float(value)


def figure(record, name):
    """The record's number; None: it has none."""
    value = record.get(name)
    return None if value is None else num(value)


def is_plain(value):
    """Whether it is a number that can be drawn: it is finite, and so are its square and what lies around it."""
    return abs(value) < 1e150


# --- what comes from outside ---------------------------------------------------------------------

WHOLE, COUNT, FINITE, KNOWN, POSITIVE, NUMBER, FIGURE, TEXT, FIELDS = (
    "a whole number", "a count", "a finite number", "a finite number or null", "a number above 0", "a number", "a number or null",
    "text", "an object",
)  # fmt: skip
KINDS = {
    WHOLE: lambda v: type(v) is int and abs(v) < 1 << 63,
    COUNT: lambda v: type(v) in (int, str) and re.fullmatch("[0-9]{1,18}", str(v)),  # protobuf quotes those of 64 bits
    FINITE: lambda v: type(v) in (int, float) and abs(v) < 1e200,
    KNOWN: lambda v: v is None or KINDS[FINITE](v),
    POSITIVE: lambda v: type(v) in (int, float) and 1e-200 < v < 1e200,
    NUMBER: lambda v: v in ("NaN", "Infinity", "-Infinity") if isinstance(v, str) else type(v) is float or KINDS[WHOLE](v),
    FIGURE: lambda v: v is None or KINDS[NUMBER](v),
    TEXT: lambda v: isinstance(v, str),
    FIELDS: lambda v: isinstance(v, dict),
}


def checked(value, shape, place):
    """`value`, if it is of this shape: one of KINDS, [the shape of each], or {field: its shape}, where a field whose name
    ends in "?" may be absent. Else fails with a UserError that says where in `place` it is not."""
    kind = FIELDS if isinstance(shape, dict) else "a list" if isinstance(shape, list) else shape
    if not (isinstance(value, list) if kind == "a list" else KINDS[kind](value)):
        raise UserError(f"{place}: must be {kind}", BAD_DATA)
    if isinstance(shape, list):
        for number, each in enumerate(value):
            checked(each, shape[0], f"{place}[{number}]")
    elif isinstance(shape, dict):
        for name, of in shape.items():
            field = name.rstrip("?")
            if field in value or name == field:
                checked(value.get(field), of, f"{place}: {field}")
    return value


def parsed(text, shape, place):
    """JSON of this shape."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: no JSON: {error}", BAD_DATA) from error
    return checked(value, shape, place)


def read_json(path, shape):
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"'{path}': {error.strerror}", BAD_DATA) from error
    return parsed(data, shape, f"'{path}'")


def fields(kind, names):
    return {f"{name}?": kind for name in names.split()}


RUN = {  # of a RunSpec, what is read here
    **fields(TEXT, "folder"),
    "cluster?": fields(WHOLE, "nodes devices_per_node"),
    "compute?": fields(TEXT, "dtype device"),
    "data?": {**fields(TEXT, "folder"), **fields(WHOLE, "global_microbatches"), "microbatch?": fields(WHOLE, "max_target_tokens")},
    "model?": {
        **fields(WHOLE, "encoder_layers decoder_layers d_model ffn_dim num_heads vocabulary_size"),
        **fields(TEXT, "residual"),
        **fields(NUMBER, "dropout"),
        "deepnorm?": fields(TEXT, "beta_rule"),
        "scheme?": fields(NUMBER, "ds_exponent"),
    },
    "optim?": {
        **fields(NUMBER, "learning_rate beta1 beta2 epsilon weight_decay clip_norm label_smoothing"),
        **fields(WHOLE, "warmup_steps"),
        **fields(TEXT, "optimizer schedule"),
    },
    "train?": fields(WHOLE, "steps validate_sentences"),
}
TRAIN = {"step": WHOLE, "nll": NUMBER, **fields(FINITE, "seconds")}
SCORES = fields(FIGURE, "nll bleu bleu_to_english bleu_from_english spbleu")
TEST = {"directions?": [{"direction": TEXT, **fields(WHOLE, "sentences"), **SCORES}], **fields(FINITE, "seconds"), **SCORES}
VALIDATION = {"step": WHOLE, "nll": FIGURE}
INSTRUMENTS = {
    "step": WHOLE,
    "layers": [{"name": TEXT, "gradient_norm": NUMBER, "weight_norm": NUMBER, "update_norm": NUMBER}],
    "sublayers?": [{"name": TEXT, "stream_share": NUMBER, **fields(NUMBER, "norm_input")}],
    **fields(NUMBER, "model_update"),
}
RECORDS = {"train": TRAIN, "validation": VALIDATION, "instruments": INSTRUMENTS}  # of metrics.jsonl, by kind
CELL = {
    **{name: TEXT for name in ("name", "series", "status")},
    **{name: WHOLE for name in ("seed", "exit_code")},
    **fields(TEXT, "group error"),
    **fields(FINITE, "y seconds"),
    **fields(WHOLE, "parameters"),
    "x": POSITIVE,
    "sets": [TEXT],
    "commands?": [TEXT],
    "run": RUN,
    "steps?": [TRAIN],
    "validations?": [VALIDATION],
    "instruments?": [INSTRUMENTS],
    "test?": TEST,
}
CORPUS = {
    **fields(WHOLE, "pairs vocabulary_size"),
    "languages?": [TEXT],
    **fields(KNOWN, "word_frequency_nll word_frequency_dev_nll word_frequency_test_nll"),
}
RESULT = {
    **{name: TEXT for name in ("experiment", "size", "machine", "command")},
    **{name: WHOLE for name in ("seeds", "cells_planned")},
    "data": {**CORPUS, **fields(TEXT, "folder")},
    "cells": [CELL],
}


# --- files -------------------------------------------------------------------------------------


def thinned(records, most):
    """Every k-th record and the last one."""
    every = -(-len(records) // most)
    if every <= 1:
        return records
    return [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1]


def read_metrics(folder, shapes=RECORDS):
    """Records of metrics.jsonl by kind, of these shapes; lines that are no record, such as torn ones, are passed over."""
    path = Path(folder) / "metrics.jsonl"
    if not path.is_file():
        path = Path(folder) / "run" / "metrics.jsonl"
    kinds = {}
    lines = path.read_text(errors="replace", encoding="utf-8").split("\n") if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            kind = record["kind"]
            kinds.setdefault(kind, []).append(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if kind in shapes:
            checked(record, shapes[kind], f"'{path}', line {number}: {kind}")
    return kinds


def read_records(folder):
    """The records that a result keeps of the run in `folder`."""
    kinds = read_metrics(folder)
    records = {
        "steps": thinned(kinds.get("train", []), MAX_STEPS),
        "validations": kinds.get("validation", []),
        "instruments": thinned(kinds.get("instruments", []), MAX_INSTRUMENTS),
    }
    try:
        test = json.loads((Path(folder) / "evaluation.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return records
    return {**records, "test": checked(test, TEST, f"'{folder}/evaluation.json'")}


# --- quantities --------------------------------------------------------------------------------

# key: (unit beside an axis, what is measured in a sentence)
QUANTITIES = {
    "test_nll": ("nats a token", "loss on the test set"),
    "test_bleu": ("BLEU", "sacreBLEU on the test set"),
    "test_bleu_to_english": ("BLEU, X to English", "sacreBLEU from X to English"),
    "test_bleu_from_english": ("BLEU, English to X", "sacreBLEU from English to X"),
    "test_spbleu": ("spBLEU", "spBLEU on the test set"),
    "train_nll": ("nats a token", "loss while training"),
    "dev_nll": ("nats a token", "loss on the validation set"),
    "model_update": ("model update", "model update"),
    "gradient_norm": ("gradient norm", "gradient norm of decoder layers"),
    "ffn_norm_input": ("norm", "norm of what enters the norm behind feed-forward blocks"),
    "attention_norm_input": ("norm", "norm of what enters the norm behind attention"),
}


def unit(quantity):
    return QUANTITIES[quantity][0]


def is_loss(quantity):
    return quantity.endswith("_nll")


def is_bleu(quantity):
    return "bleu" in quantity


def is_off_the_scale(quantity, value):
    """Whether it is a loss that no model learns at: on an axis that reached it nothing else could be told apart."""
    return is_loss(quantity) and not value <= MAX_NATS


def score_of(record, quantity):
    """A direction's or a test's number; None: it has none."""
    return figure(record, quantity.removeprefix("test_"))


def word_frequency_level(data, quantity):
    """The loss of a model that knows only how often each piece occurs; 0: unknown, or no loss."""
    key = {"test_nll": "_test", "dev_nll": "_dev", "train_nll": ""}.get(quantity)
    return num(data.get(f"word_frequency{key}_nll") or 0) if key is not None else 0.0


def find_record(cell, step):
    """The first record of instruments from `step` on; 0: the last. None: there is none."""
    records = cell.get("instruments", [])
    if step > 0:
        return next((r for r in records if r["step"] >= step), None)
    return records[-1] if records else None


def decoder_gradients(record):
    """(layer, norm), layers counted from 1."""
    layers = [(re.match(r"decoder\.layers\.([0-9]{1,9})(?!\w)", layer["name"]), layer) for layer in record.get("layers", [])]
    return [(int(found[1]) + 1, num(layer["gradient_norm"])) for found, layer in layers if found]


def of_record(record, quantity):
    """A number of one record of instruments; None: it has none."""
    if quantity == "model_update":
        value = num(record.get("model_update", 0))
        return value if value > 0 else None
    if quantity == "gradient_norm":
        norms = decoder_gradients(record)
        return norms[-1][1] if norms else None
    attention = quantity == "attention_norm_input"
    inputs = [
        num(s["norm_input"])
        for s in record.get("sublayers", [])
        if s["name"].endswith("attn") == attention and num(s.get("norm_input", 0)) > 0
    ]
    return sum(inputs) / len(inputs) if inputs else None


def score(cell, quantity, step=0):
    """One number of a run; None: it has none."""
    if quantity.startswith("test_"):
        test = cell.get("test") or {}
        names = [d["direction"] for d in test.get("directions", [])]
        if quantity == "test_bleu_to_english":
            names = [n for n in names if n.endswith("-en")]
        if quantity == "test_bleu_from_english":
            names = [n for n in names if n.startswith("en-")]
        return score_of(test, quantity) if names else None
    if is_loss(quantity):
        records = cell.get("steps" if quantity == "train_nll" else "validations", [])
        return figure(records[-1], "nll") if records else None
    record = find_record(cell, step)
    return of_record(record, quantity) if record else None


def curve(cell, quantity):
    """[(step, value)] without what is off the scale."""
    if is_loss(quantity):
        records = cell.get("steps" if quantity == "train_nll" else "validations", [])
        points = [(r["step"], figure(r, "nll")) for r in records]
    else:
        points = [(r["step"], of_record(r, quantity)) for r in cell.get("instruments", [])]
    return [(x, y) for x, y in points if y is not None and not is_off_the_scale(quantity, y)]


def layer_curve(cell, quantity, step):
    record = find_record(cell, step)
    return decoder_gradients(record) if record and quantity == "gradient_norm" else []


# --- numbers as text ---------------------------------------------------------------------------


def commas(value):
    return f"{value:,}"


def short(value, digits=3):
    """ "28.9", "5e-4", "1,000": as many digits as a reader wants."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinite"
    size = abs(value)
    if 1000 <= size < 1e15:
        return commas(math.floor(size + 0.5) * (1 if value > 0 else -1))
    if 0 < size < 1e-3:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.0f}" if size >= 10**digits else f"{value:.{digits}g}"


def rounded(value, digits):
    return float(f"{value:.{digits - 1}e}")


def quantity_text(quantity, value):
    """As many digits as the quantity is worth."""
    plain = (is_loss(quantity) or is_bleu(quantity)) and math.isfinite(value)
    return f"{value:.2f}" if plain and not is_off_the_scale(quantity, value) else short(value)


def clock(seconds):
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- statistics --------------------------------------------------------------------------------


class Spread:
    """Mean, lowest, highest and standard deviation of the values that are finite."""

    def __init__(self, values):
        finite = [v for v in values if is_plain(v)]
        self.count = len(finite)
        self.mean = sum(v / self.count for v in finite) if finite else 0.0
        self.low, self.high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        squares = sum((v - self.mean) ** 2 for v in finite)
        self.deviation = math.sqrt(squares / (self.count - 1)) if self.count > 1 else 0.0


def fit_logarithm(xs, ys):
    """y = slope log10(x) + offset by least squares, with standard errors; None: fewer than two places."""
    points = [(math.log10(x), y) for x, y in zip(xs, ys) if x > 0 and math.isfinite(x) and math.isfinite(y)]
    count = len(points)
    if count < 2:
        return None
    mean_u, mean_v = sum(u for u, _ in points) / count, sum(v for _, v in points) / count
    uu = sum((u - mean_u) ** 2 for u, _ in points)
    if uu < 1e-12:
        return None
    fit = {"points": count, "slope": sum((u - mean_u) * (v - mean_v) for u, v in points) / uu}
    fit["offset"] = mean_v - fit["slope"] * mean_u
    squares = sum((v - fit["slope"] * u - fit["offset"]) ** 2 for u, v in points)
    fit["residual"] = math.sqrt(squares / count)
    variance = squares / (count - 2) if count > 2 else 0.0
    fit["slope_error"] = math.sqrt(variance / uu)
    fit["offset_error"] = math.sqrt(variance * (1 / count + mean_u**2 / uu))
    return fit


class Group:
    """Runs that differ in their seed only."""

    def __init__(self, series, x, y):
        self.series, self.x, self.y = series, x, y
        self.cells = []
        self.diverged = 0
        self.spread = Spread([])  # over the runs that ended as planned


def group_seeds(result, panel):
    """The groups of a panel, by x."""
    groups = {}
    for cell in result["cells"]:
        if cell.get("group", "") == panel.group:
            key = (cell["series"], cell["x"], cell.get("y", 0.0))
            groups.setdefault(key, Group(*key)).cells.append(cell)
    for group in groups.values():
        group.diverged = sum(cell["status"] == DIVERGED for cell in group.cells)
        values = [score(c, panel.quantity, panel.step) for c in group.cells if c["status"] == DONE]
        group.spread = Spread([v for v in values if v is not None])
    return sorted(groups.values(), key=lambda group: group.x)


def series_of(groups):
    return list(dict.fromkeys(group.series for group in groups))


def fit_series(groups, series):
    """Through a series' means; None: fewer than three depths."""
    means = [(g.x, g.spread.mean) for g in groups if g.series == series and g.spread.count]
    fit = fit_logarithm([x for x, _ in means], [y for _, y in means])
    return fit if fit and fit["points"] >= 3 else None


def representatives(result, panel):
    """The first seed of each series at the panel's x."""
    cells = [cell for cell in result["cells"] if cell.get("group", "") == panel.group]
    x = panel.at or max([0.0] + [cell["x"] for cell in cells])
    first = {}
    for cell in cells:
        if cell["x"] == x:
            first.setdefault(cell["series"], cell)
    return list(first.values())


# --- verdicts ----------------------------------------------------------------------------------

# In the order in which findings name them.
LEARNED, WORDS, STUCK, ROSE, GONE, BROKEN, SHORT = VERDICTS = (
    "learned",
    "word frequencies only",  # less than 0.05 nats better than a model that knows only these
    "did not leave its starting loss",  # it fell by less than 3 %
    "loss rose again",  # it ends 0.3 nats or more above its lowest
    "diverged",
    "failed",
    "too short to judge",  # nothing has learned anything in 100 steps
)
FEW_STEPS, STUCK_SHARE, RISE, WORD_MARGIN = 100, 0.97, 0.3, 0.05


def smooth_losses(cell):
    """Means of three neighbouring records; what is not finite is left out."""
    finite = [v for v in (num(r["nll"]) for r in cell.get("steps", [])) if math.isfinite(v)]
    windows = [finite[max(0, i - 1) : i + 2] for i in range(len(finite))]
    return [sum(w) / len(w) for w in windows]


def last_loss(cell, data):
    """(nats, what word frequencies alone give there): on the test set, else the dev set, else of training."""
    for quantity in ("test_nll", "dev_nll"):
        value = score(cell, quantity)
        if value is not None:
            return value, word_frequency_level(data, quantity)
    losses = smooth_losses(cell)
    return losses[-1] if losses else math.nan, word_frequency_level(data, "train_nll")


def judge(cell, data):
    """One of VERDICTS. Where `data` does not know the word frequencies, WORDS is not given."""
    if cell["status"] == DIVERGED:
        return GONE
    if cell["status"] != DONE:
        return BROKEN
    losses = smooth_losses(cell)
    if not losses or cell["steps"][-1]["step"] < FEW_STEPS:
        return SHORT
    if losses[-1] > STUCK_SHARE * num(cell["steps"][0]["nll"]):
        return STUCK
    if losses[-1] > min(losses) + RISE:
        return ROSE
    loss, words = last_loss(cell, data)
    return WORDS if words > 0 and loss > words - WORD_MARGIN else LEARNED


def verdict_text(cell, data):
    """The verdict with the numbers it rests on."""
    verdict = judge(cell, data)
    steps, losses = cell.get("steps", []), smooth_losses(cell)
    if verdict == BROKEN:
        return f"{verdict}, exit code {cell['exit_code']}: {cell.get('error', '')}"
    if verdict == GONE and steps:
        return f"{verdict}: not finite after step {steps[-1]['step']}"
    if verdict == STUCK:
        return f"{verdict}: {short(num(steps[0]['nll']))} to {short(losses[-1])}"
    if verdict == ROSE:
        return f"{verdict}: lowest {short(min(losses))}, {short(losses[-1])} at the end"
    if verdict == WORDS:
        loss, words = last_loss(cell, data)
        return f"{verdict}: {short(loss)}, they alone give {short(words)}"
    if verdict == SHORT and not steps and cell.get("test"):
        return "scored, not trained here"
    return verdict


# --- findings: sentences that follow from the numbers; none says why ------------------------------

NO_TRANSLATION = 1.0  # a published BLEU below it is no translation
TRAINED_SHARE = 0.5  # one of at least this share of the figure's best is; between them it is neither


def label(series):
    return method_of(series).label


def count_verdicts(group, data):
    """{verdict: runs of the group}, in the order of VERDICTS."""
    found = [judge(cell, data) for cell in group.cells]
    return {v: [c for c, f in zip(group.cells, found) if f == v] for v in VERDICTS if v in found}


def ends(result):
    parts = []
    for status, words in ((DONE, "ended as planned"), (DIVERGED, "diverged"), (FAILED, "failed")):
        count = sum(cell["status"] == status for cell in result["cells"])
        parts += [f"{count} {words}"] if count else []
    missing = result["cells_planned"] - len(result["cells"])
    parts += [f"{missing} not run yet"] if missing > 0 else []
    return f"{plural(result['cells_planned'], 'run')}: {', '.join(parts)}."


def not_run(experiment, result):
    there = {cell["series"] for cell in result["cells"]}
    lines = [line for plot in experiment.published for line in published_lines(plot)]
    missing = dict.fromkeys(label(method) for method, _, _, is_fit in lines if not is_fit and method not in there)
    return [f"In the paper's figure, but not run here: {', '.join(missing)}."] if missing else []


def trained_in_paper(experiment, group):
    """True, False, or None: the paper does not say."""
    for plot in experiment.published:
        lines = [line for line in published_lines(plot) if not line[3]]
        best = max([0.0] + [y for line in lines for _, y in line[2] if not math.isnan(y)])
        for method, _, points, _ in lines:
            for x, y in points:
                if method != group.series or x != group.x:
                    continue
                if math.isnan(y):
                    return False
                if plot["y_label"] != "BLEU":
                    return None
                return False if y < NO_TRANSLATION else True if y >= TRAINED_SHARE * best else None
    return None


def against_paper(experiment, result, groups):
    """Where runs learned, beside where the paper's did. Failed and short runs count for nothing."""
    places = {}  # (trained in the paper, here none/some/all): {(series, seeds): [x]}
    for group in groups:
        paper = trained_in_paper(experiment, group)
        verdicts = count_verdicts(group, result["data"])
        judged = sum(len(cells) for v, cells in verdicts.items() if v not in (BROKEN, SHORT))
        learned = len(verdicts.get(LEARNED, []))
        if paper is None or judged == 0:
            continue
        here = "none" if learned == 0 else "some" if learned < judged else "all"
        seeds = f"{learned} of {plural(judged, 'seed')}"
        places.setdefault((paper, here), {}).setdefault((group.series, seeds), []).append(short(group.x))
    other = ", with other sizes, data and steps" if experiment.size == "small" else ""
    sentences = []
    for paper, here, words in (
        (False, "none", "Did not train in the paper, and did not learn here"),
        (False, "all", "Did not train in the paper, but learned here" + other),
        (False, "some", "Did not train in the paper; here, some seeds learned" + other),
        (True, "none", "Trained in the paper, but did not learn here" + other),
        (True, "some", "Trained in the paper; here, only some seeds learned" + other),
    ):
        found = places.get((paper, here), {})
        texts = [
            f"{label(series)} at {', '.join(xs)} ({seeds}{' each' if len(xs) > 1 else ''})"
            for (series, seeds), xs in found.items()
        ]
        sentences += [f"{words}: {', '.join(texts)}."] if texts else []
    return sentences


def named(panel, group, cells, with_values):
    """ "DeepNet 5.40 (2 of 3 seeds, 5.35 to 5.45)": of `cells`, those of `group` that ended alike."""
    values = [score(cell, panel.quantity, panel.step) for cell in cells] if with_values else []
    spread = Spread([v for v in values if v is not None])
    text = label(group.series)
    if spread.count:
        text += " " + quantity_text(panel.quantity, spread.mean)
    more = []
    if len(cells) < len(group.cells):
        more.append(f"{len(cells)} of {len(group.cells)} seeds")
    if spread.count > 1:
        more.append(f"{quantity_text(panel.quantity, spread.low)} to {quantity_text(panel.quantity, spread.high)}")
    return f"{text} ({', '.join(more)})" if more else text


def verdicts_at(result, panel, groups, x):
    names = {}
    for group in groups:
        if group.x == x:
            for verdict, cells in count_verdicts(group, result["data"]).items():
                text = named(panel, group, cells, verdict not in (GONE, BROKEN))
                names.setdefault(verdict, []).append(text)
    parts = [f"{verdict}: {', '.join(names[verdict])}" for verdict in VERDICTS if verdict in names]
    return f"At {short(x)} {panel.x_label} ({unit(panel.quantity)}): {'; '.join(parts)}."


def score_findings(experiment, result, panel):
    groups = group_seeds(result, panel)
    if not groups:
        return []
    if not any(group.spread.count or group.diverged for group in groups):
        return [f"Nothing was recorded for “{panel.title}”."]
    sentences = []
    if panel.quantity == "model_update":
        for series in series_of(groups):
            means = Spread([g.spread.mean for g in groups if g.series == series and g.spread.count])
            if means.low > 0:
                ratio = short(rounded(means.high / means.low, 2))
                sentences.append(f"{label(series)}: the largest over depth is {ratio} times the smallest.")
    elif is_loss(panel.quantity) or is_bleu(panel.quantity):
        for x in sorted({groups[0].x, groups[-1].x}):
            sentences.append(verdicts_at(result, panel, groups, x))
        sentences += against_paper(experiment, result, groups)
    for series in series_of(groups) if panel.fit else []:
        fit = fit_series(groups, series)
        if fit:
            sentences.append(
                f"{label(series)}: ({fit['slope']:.3f} ± {fit['slope_error']:.3f}) log10({panel.x_label}) + "
                f"({fit['offset']:.2f} ± {fit['offset_error']:.2f}) {unit(panel.quantity)} through "
                f"{fit['points']} points, which lie {fit['residual']:.3f} off it (root mean square)."
            )
    if not any(group.spread.count > 1 for group in groups):
        return sentences + ["One seed each: how far chance alone moves these figures was not measured."]
    widest = max(groups, key=lambda group: group.spread.high - group.spread.low)
    apart = short(widest.spread.high - widest.spread.low, 2)
    return sentences + [f"Seeds lie at most {apart} apart ({label(widest.series)} at {short(widest.x)})."]


def grid_findings(result, panel):
    """The lowest and the highest value, and where not every seed learned."""
    groups = group_seeds(result, panel)

    def place(group):
        return f"at {panel.x_label} {short(group.x)}, {panel.y_label} {short(group.y)}"

    def text(group):
        return f"{quantity_text(panel.quantity, group.spread.mean)} {place(group)}"

    sentences = []
    measured = sorted((g for g in groups if g.spread.count), key=lambda group: group.spread.mean)
    if len(measured) > 1:
        lowest, highest = text(measured[0]), text(measured[-1])
        sentences.append(f"Lowest ({unit(panel.quantity)}): {lowest}; highest: {highest}.")
    places = {}
    for group in groups:
        for verdict, cells in count_verdicts(group, result["data"]).items():
            seeds = f" ({len(cells)} of {len(group.cells)} seeds)" if len(cells) < len(group.cells) else ""
            places.setdefault(verdict, []).append(place(group) + seeds)
    for verdict in VERDICTS[1:]:
        if verdict in places:
            sentences.append(f"{verdict[0].upper()}{verdict[1:]}: {'; '.join(places[verdict])}.")
    return sentences


def curve_findings(result, panel):
    """ "How far the model has moved on a fixed batch, step 30: Post-LN 3.3, DeepNet 0.15." """
    if is_loss(panel.quantity):
        return []  # losses have sentences of their own
    curves = [(label(c["series"]), curve(c, panel.quantity)) for c in representatives(result, panel)]
    last = [(name, points[-1]) for name, points in curves if points]
    if not last:
        return [f"Nothing was recorded for “{panel.title}”."]
    values = ", ".join(f"{name} {short(y)}" for name, (_, y) in last)
    return [f"{panel.title}, step {short(last[-1][1][0])}: {values}."]


def layer_findings(result, panel):
    ratios = []
    for cell in representatives(result, panel):
        points = layer_curve(cell, panel.quantity, panel.step)
        if len(points) > 1 and points[0][1] > 0:
            ratios.append(f"{label(cell['series'])} {short(rounded(points[-1][1] / points[0][1], 2))}")
    if not ratios:
        return [f"Nothing was recorded for “{panel.title}”."]
    return [f"{panel.title}, top layer over lowest: {', '.join(ratios)}."]


def matrix_findings(result, panel):
    sentences = []
    for group in group_seeds(result, panel):
        if group.spread.count:
            cell = next(c for c in group.cells if c["status"] == DONE and (c.get("test") or {}).get("directions"))
            sentences.append(
                f"{label(group.series)}: {short(group.spread.mean)} {unit(panel.quantity)} on average over "
                f"{len(cell['test']['directions'])} directions, {commas(cell.get('parameters') or 0)} parameters."
            )
    return sentences


def findings(experiment, result):
    """Sentences, none twice."""
    sentences = [ends(result)] + not_run(experiment, result)
    for panel in experiment.panels:
        if panel.kind == "SCORE":
            sentences += score_findings(experiment, result, panel)
        else:
            kinds = {"CURVE": curve_findings, "LAYERS": layer_findings, "GRID": grid_findings, "MATRIX": matrix_findings}
            sentences += kinds[panel.kind](result, panel)
    return list(dict.fromkeys(sentences))


def experiment_of(result):
    return make_experiment(result["experiment"], result["size"], seeds=1)


def findings_text(result):
    experiment = experiment_of(result)
    lines = [f"- {sentence}" for sentence in findings(experiment, result)]
    return "\n".join([f"{experiment.title}: what this run shows"] + lines) + "\n"


# --- what differs from the paper ------------------------------------------------------------------

SCHEDULES = {
    "INVERSE_SQRT": "inverse square root",
    "COSINE": "cosine",
    "CONSTANT": "constant",
    "SHIFTED_INVERSE_SQRT": "shifted inverse square root, no warm-up",
}
# Fields that rows of their own show, and fields that name a run or only look at it.
OWN_ROW = set(
    "model.encoder_layers model.decoder_layers model.d_model model.ffn_dim model.num_heads model.dropout "
    "data.global_microbatches data.microbatch.max_target_tokens optim.optimizer optim.learning_rate optim.schedule "
    "optim.warmup_steps optim.beta1 optim.beta2 optim.epsilon optim.weight_decay optim.clip_norm "
    "optim.label_smoothing compute.dtype train.steps".split()
)
NO_SETTING = set("name folder seed model.residual data.folder train.log_every_steps".split())


def field_of(run, path, default=0):
    """A field of a RunSpec by its path, "optim.learning_rate"."""
    for name in path.split("."):
        run = run.get(name, {}) if isinstance(run, dict) else {}
    return default if run in ({}, "", None) else run


def sizes_text(run):
    width, ffn, heads = (field_of(run, f) for f in ("model.d_model", "model.ffn_dim", "model.num_heads"))
    return f"{commas(width)} / {commas(ffn)} / {heads}"


def depth_text(run):
    encoder, decoder = field_of(run, "model.encoder_layers"), field_of(run, "model.decoder_layers")
    return f"{encoder}" if encoder == decoder else f"{encoder} + {decoder}"


def batch_text(run):
    return commas(field_of(run, "data.global_microbatches") * field_of(run, "data.microbatch.max_target_tokens"))


def clip_text(run):
    norm = num(field_of(run, "optim.clip_norm"))
    return f"{norm:g}" if norm else "off"


def rate_text(run):
    schedule = field_of(run, "optim.schedule", "INVERSE_SQRT")
    text = f"{short(num(field_of(run, 'optim.learning_rate')))}, {SCHEDULES.get(schedule, schedule)}"
    if schedule != "SHIFTED_INVERSE_SQRT":
        text += f", warm-up {commas(field_of(run, 'optim.warmup_steps'))}"
    return text


def adam_text(run):
    beta1, beta2, epsilon = (short(num(field_of(run, f"optim.{f}"))) for f in ("beta1", "beta2", "epsilon"))
    beside = "; beside the corrected root (ADAMW)" if field_of(run, "optim.optimizer") == "ADAMW" else ""
    return f"{beta1}, {beta2}; {epsilon}{beside}"


def precision_text(run):
    dtype = field_of(run, "compute.dtype", "AUTO")
    if dtype == "FLOAT32":
        return "float32"
    if dtype == "BFLOAT16" or field_of(run, "compute.device", "cpu") == "cuda":
        return "bfloat16 products, float32 sums"
    return "float32, or bfloat16 where that is faster"


def metric_text(experiment, result):
    text = ", ".join(dict.fromkeys(QUANTITIES[panel.quantity][1] for panel in experiment.panels))
    tests = [(cell.get("test") or {}).get("directions", []) for cell in result["cells"]]
    counts = {d["sentences"] for directions in tests for d in directions if d.get("sentences")}
    if not counts:
        return text
    most = f" to {max(counts)}" if len(counts) > 1 else ""
    return f"{text}; {min(counts)}{most} test sentences a direction"


def corpus_text(data):
    if not data.get("languages"):
        return "unknown"
    return f"the corpus in {data.get('folder')}: {commas(data.get('pairs') or 0)} pairs, {', '.join(data['languages'])}"


def fields_set(result, with_own_rows):
    """Every other field that was set on top of the recipe, with the values that it has then."""
    cells = {}  # field: {value: number of runs}
    for cell in result["cells"]:
        for name, value in dict(s.partition("=")[::2] for s in cell["sets"]).items():  # the last one counts
            if name in NO_SETTING or name.startswith("instruments.") or (with_own_rows and name in OWN_ROW):
                continue
            counts = cells.setdefault(name, {})
            counts[value] = counts.get(value, 0) + 1
    rows = []
    for name, values in sorted(cells.items()):
        texts = [
            (value or "all") + (f" in {count} runs" if count < len(result["cells"]) else "")
            for value, count in sorted(values.items())
        ]
        rows.append((f"set: {name}", "-", "; ".join(texts) if len(texts) <= MAX_VALUES else f"{len(texts)} values"))
    return rows


def differences(experiment, result):
    """(what, in the paper, here), rows that say the same left out."""
    if not result["cells"]:
        return []
    paper, data = experiment.paper, result["data"]
    if not paper:
        return fields_set(result, False)

    def of(text):
        values = list(dict.fromkeys(text(cell.get("run", {})) for cell in result["cells"]))
        if len(values) > MAX_VALUES:
            return f"{values[0]} … {values[-1]} ({len(values)} values)"
        return "; ".join(values)

    def plain(path):
        return of(lambda run: short(num(field_of(run, path))))

    rows = [
        ("corpus", paper["corpus"], corpus_text(data)),
        ("width / feed-forward / heads", paper["sizes"], of(sizes_text)),
        ("layers a side", paper["depth"], of(depth_text)),
        ("vocabulary", paper["vocabulary"], commas(data.get("vocabulary_size", 0))),
        ("steps", paper["steps"], of(lambda run: commas(field_of(run, "train.steps")))),
        ("target tokens a step, at most", paper["batch"], of(batch_text)),
        ("learning rate", paper["learning_rate"], of(rate_text)),
        ("dropout", paper["dropout"], of(lambda run: f"{num(field_of(run, 'model.dropout')):g}")),
        ("weight decay", paper["weight_decay"], plain("optim.weight_decay")),
        ("clipping at a gradient norm of", paper["clip_norm"], of(clip_text)),
        ("Adam's beta1, beta2; epsilon", paper["adam"], of(adam_text)),
        ("label smoothing", paper["label_smoothing"], plain("optim.label_smoothing")),
        ("precision", paper["precision"], of(precision_text)),
        ("what is measured", paper["metric"], metric_text(experiment, result)),
        ("seeds", paper["seeds"], str(result["seeds"])),
        ("machine", "graphics processors", result["machine"]),
    ]
    return [row for row in rows if row[1] != row[2]] + fields_set(result, True)


# --- which published form of a method a run is ------------------------------------------------------


def method_note(run):
    """Read from the run, so that a form chosen by --set is the one that is named. Empty: there is one form."""
    residual = field_of(run, "model.residual", "")
    if residual == "DEEPNORM":
        if field_of(run, "model.deepnorm.adam", False):
            return "the constants for Adam, (2N)^(1/2) and (2N)^(-1/2)."
        if field_of(run, "model.deepnorm.beta_rule") == "TORCHSCALE":
            return "the encoder's beta is that of the released library (1.15), not that of the paper (0.87)."
        return (
            "constants as the paper prints them; its released library starts the encoder's branches 1.32 times "
            "larger (model.deepnorm.beta_rule=TORCHSCALE)."
        )
    if residual == "ADMIN":
        if field_of(run, "model.scheme.admin_omega", []):
            return "omega starts from a measured profile, as it was published."
        return (
            "omega starts from one number a stack, as in its later released code (admin-torch), not from a profile, "
            "as it was published (deepnet lab admin-profile measures one)."
        )
    if residual == "DS_INIT":
        exponent = num(field_of(run, "model.scheme.ds_exponent")) or 0.5
        if exponent == 0.5:
            return (
                "layer l starts l^(-1/2) times smaller, as in its paper; its released code has l^(-1/4) "
                "(model.scheme.ds_exponent=0.25)."
            )
        return (
            f"layer l starts l^-{short(exponent)} times smaller; its paper has l^(-1/2), its released code l^(-1/4)."
        )
    if residual == "T_FIXUP":
        if field_of(run, "optim.schedule") == "SHIFTED_INVERSE_SQRT":
            return (
                "trained without warm-up, as its authors do; the DeepNet paper names one schedule for all methods."
            )
        return "trained with the schedule of the other methods; its authors train without warm-up."
    if residual == "REZERO":
        same = "; here all are float32." if field_of(run, "compute.dtype") == "FLOAT32" else "."
        return "published in float32, the other methods in float16" + same
    return {
        "POST_LN_INIT": "the paper gives it for an encoder; here the decoder does the same with its own depth.",
        "R_FIXUP": "its depth counts the sub-layers of both stacks everywhere; the decoder of its released code has "
        "cross-attention built for 12, whatever the depth.",
        "DLCL": "its Pre-LN form, as table 1 lists it; it was published with Post-LN as well.",
        "NORMFORMER": "factors of heads stand before the output matrix, as in its paper; released code has them "
        "behind, and in decoders of language models only.",
    }.get(residual, "")


def method_notes(result):
    notes = [(label(cell["series"]), method_note(cell.get("run", {}))) for cell in result["cells"]]
    return list(dict.fromkeys(f"{name}: {note}" for name, note in notes if note))


# --- instruments of one run -------------------------------------------------------------------------


def instruments_text(records):
    """A line a record of instruments, as metrics.jsonl has them."""

    def of_stack(record, stack):
        return [num(x["gradient_norm"]) for x in record["layers"] if x["name"].startswith(f"{stack}.layers.")]

    def ratio(values):
        return f"{max(values) / min(values):.3g}" if values and min(values) > 0 else "-"

    def span(values):
        return f"{min(values):.3g} to {max(values):.3g}" if values else "-"

    stacks = [stack for stack in ("encoder", "decoder") if of_stack(records[0], stack)]
    lines = [
        f"{'step':>8}"
        + "".join(f"  {stack:>16}" for stack in stacks)
        + f"  {'update / weight':>20}  {'share of the stream':>20}  {'model update':>12}"
    ]
    for record in records:
        updates = [num(x["update_norm"]) / num(x["weight_norm"]) for x in record["layers"] if num(x["weight_norm"]) > 0]
        shares = [num(x["stream_share"]) for x in record.get("sublayers", [])]
        moved = num(record.get("model_update", 0))
        lines.append(
            f"{record['step']:>8}"
            + "".join(f"  {ratio(of_stack(record, stack)):>16}" for stack in stacks)
            + f"  {span(updates):>20}  {span(shares):>20}  {f'{moved:.3g}' if moved > 0 else '-':>12}"
        )
    lines += ["", f"{', '.join(stacks)}: the largest gradient norm of a layer over the smallest."]
    return "\n".join(lines) + "\n"
