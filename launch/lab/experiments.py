"""Experiments as data: which runs answer which figure or table, and what the paper published of it.

experiments/<name>.textproto describes one: `size` blocks (small, paper) with `runs`, panels that are drawn,
and the paper's own figures and tables. `runs` is recipe x methods x `at` x seeds:
  set: "FIELD=VALUE"   in every run       each: "FIELD={x}"   likewise; {x*4}, {x/32}, {y*0.5} are computed
  group: "rate"        panels of that group show it           family: "none"   only methods of these families
With `depths: A_SIDE` (layers of either stack) or BOTH (half in either) an experiment takes any method of
methods.tsv at any depth; what it has not itself is run with its settings.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_LAYERS, MAX_SEEDS = 1e5, 1000  # that anyone may ask for
DEPTHS = {"": 0, "A_SIDE": 1, "BOTH": 2}


class UserError(Exception):
    """What the user can mend; `code` is the exit status."""

    def __init__(self, message, code=2):
        super().__init__(message)
        self.code = code


# --- textproto ---------------------------------------------------------------------------------

TOKEN = re.compile(r'\s+|#[^\n]*|("(?:[^"\\\n]|\\.)*"|[A-Za-z_][\w.]*|[-+]?(?:\d[\w.+-]*|\.\d+|inf|nan)|.)')


def parse_textproto(text, place="text"):
    """A dict of each field's value; of a field that stands there more than once, the list of its values. Fails with a
    UserError that names the place."""
    tokens = [t for t in TOKEN.findall(text) if t]
    at = 0

    def value():
        nonlocal at
        token = tokens[at]
        at += 1
        if token[0] == '"':
            parts = [token]
            while at < len(tokens) and tokens[at][0] == '"':
                parts.append(tokens[at])
                at += 1
            return "".join(re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), p[1:-1]) for p in parts)
        if token in ("true", "false"):
            return token == "true"
        if re.match(r"[-+]?[\d.]", token) or token in ("nan", "inf", "-inf"):
            number = float(token)
            return int(token) if re.fullmatch(r"[-+]?\d+", token) else number
        if not re.match(r"\w", token):
            raise ValueError(f"unexpected '{token}'")
        return token  # an enum's name

    def message(end):
        nonlocal at
        fields = {}
        while at < len(tokens) and tokens[at] != end:
            name = tokens[at]
            at += 1
            if tokens[at] == ":":
                at += 1
            values = []
            if tokens[at] == "{":
                at += 1
                values.append(message("}"))
                at += 1
            elif tokens[at] == "[":
                at += 1
                while tokens[at] != "]":
                    values.append(value())
                    at += tokens[at] == ","
                at += 1
            else:
                values.append(value())
            fields.setdefault(name, []).extend(values)
        if end and at == len(tokens):
            raise ValueError(f"no '{end}' at the end")
        return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}

    try:
        return message(None)
    except (IndexError, ValueError, RecursionError) as error:
        raise UserError(f"{place}: no text format of protobuf: {error}") from error


def many(fields, name):
    """A field's values as a list, however often it stands there."""
    value = fields.get(name, [])
    return value if isinstance(value, list) else [value]


# --- methods -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    key: str  # in names of runs: "deepnet"
    label: str  # as the paper writes it: "DeepNet"
    residual: str = ""  # model.residual
    family: str = "post"  # deep, post, pre, none
    light: str = "#555555"
    dark: str = "#aaaaaa"
    dash: tuple = ()
    sets: tuple = ()


def read_methods():
    rows = [r.split("\t") for r in (HERE / "methods.tsv").read_text(encoding="utf-8").split("\n") if r and r[0] != "#"]
    methods = {}
    for key, label, residual, family, light, dark, dash, sets in rows[1:]:
        dashes = tuple(float(d) for d in dash.split()) if dash != "-" else ()
        fields = (f"model.residual={residual}", *(sets.split() if sets != "-" else []))
        methods[key] = Method(key, label, residual, family, light, dark, dashes, fields)
    return methods


METHODS = read_methods()


def method_of(key):
    """The method called `key`; for any other key a grey one that is labelled with it."""
    return METHODS.get(key) or Method(key, key)


# --- experiments -------------------------------------------------------------------------------


@dataclass
class Cell:
    """One run."""

    name: str  # of its folder
    series: str  # its line: a method's key
    x: float
    recipe: str  # file below launch/recipes
    sets: list  # FIELD=VALUE
    group: str = ""
    y: float = 0.0
    seed: int = 1
    checkpoint: str = ""  # of weights that others trained: the run is only scored


@dataclass
class Panel:
    """One drawing."""

    kind: str  # SCORE over x, CURVE over steps, LAYERS, GRID over x and y, MATRIX source by target
    quantity: str  # a key of results.QUANTITIES
    title: str
    x_label: str = ""
    y_label: str = ""
    group: str = ""
    log_x: bool = False
    log_y: bool = False
    at: float = 0.0  # CURVE, LAYERS: of the runs at this x; 0: at the largest
    step: int = 0  # of instruments: the first record from this step on; 0: the last
    fit: bool = False  # SCORE: also A log10(x) + B of each series


@dataclass
class Experiment:
    name: str
    size: str
    answers: str
    title: str
    claim: str
    depths: int = 0  # stacks that x counts the layers of; 0: x is something else
    cells: list = field(default_factory=list)
    panels: list = field(default_factory=list)
    evaluate: list = field(default_factory=list)  # words for `deepnet evaluate`; empty: nothing is scored
    paper: dict = field(default_factory=dict)  # what the paper trained with; empty: it has no such runs
    published: list = field(default_factory=list)  # its figures
    tables: list = field(default_factory=list)  # its tables

    @property
    def seeds(self):
        return max([1] + [cell.seed for cell in self.cells])


def experiment_names():
    """In the order of the paper, then what it does not have."""
    names = [p.stem for p in (HERE / "experiments").glob("*.textproto")]
    return sorted(names, key=lambda n: (not n.startswith("fig"), not n.startswith("table"), n))


def published_settings(name):
    text = (HERE / "published_settings.textproto").read_text(encoding="utf-8")
    blocks = {b["name"]: b for b in parse_textproto(text)["settings"]}
    block = blocks[name]
    return {**published_settings(block["like"]), **block} if "like" in block else dict(block)


def number(value):
    """A number as it stands in a field and a name: 0.0005, 18."""
    return f"{value:g}"


def filled(template, x, y):
    """`template` with {x}, {y}, {x*4}, {x/32} replaced."""

    def compute(match):
        value = x if match[1] == "x" else y
        other = float(match[3] or 1)
        return number(value / other if match[2] == "/" else value * other)

    return re.sub(r"\{([xy])(?:([*/])([\d.e-]+))?\}", compute, template)


def in_order(own, wanted):
    """`wanted` without repetitions, first those of `own`, in its order."""
    return list(dict.fromkeys([v for v in own if v in wanted] + list(wanted)))


def unknown(name, what, value, known):
    return UserError(f"{name} has no {what} '{value}', but {', '.join(known)}")


def check_depths(name, depths, stacks):
    for depth in depths:
        if not (stacks <= depth <= MAX_LAYERS and depth % stacks == 0):
            rule = "any number of layers a side"
            if stacks == 2:
                rule = "any even number of layers, half of them in either stack"
            raise UserError(f"{name} has no runs at '{number(depth)}', but at {rule}")


def cells_of(block, depths, seeds, methods, xs):
    """The runs of one `runs` block: small x first, so that a run that is stopped has whole columns."""
    families = block.get("family", "").split()
    group = block.get("group", "")
    cells = []
    for x in xs:
        for key in methods:
            method = METHODS[key]
            if families and method.family not in families:
                continue
            for y in many(block, "at_y") or [0.0]:
                sets = many(block, "set") + list(method.sets)
                if depths:
                    layers = int(x) // depths
                    sets += [f"model.encoder_layers={layers}", f"model.decoder_layers={layers}"]
                sets += [filled(each, x, y) for each in many(block, "each")]
                stem = "-".join([group] * bool(group) + [key, number(x)] + [number(y)] * ("at_y" in block))
                for seed in range(1, seeds + 1):
                    name = f"{stem}-s{seed}"
                    cells.append(Cell(name, key, float(x), block["recipe"], [*sets, f"seed={seed}"], group, float(y), seed))
    return cells


def imported_cell(block):
    name, series, x, recipe, checkpoint = (block[key] for key in ("name", "label", "at", "recipe", "checkpoint"))
    return Cell(name, series, float(x), recipe, ["seed=1"], checkpoint=checkpoint)


def make_experiment(name, size="small", seeds=0, only=(), at=()):
    """`only`: methods, `at`: places of the axis, `seeds`: of each; nothing: the experiment's own."""
    if name not in experiment_names():
        raise UserError(f"no experiment '{name}', but {', '.join(experiment_names())}")
    data = parse_textproto((HERE / "experiments" / f"{name}.textproto").read_text(encoding="utf-8"))
    sizes = {block["name"]: block for block in many(data, "size")}
    if size not in sizes:
        raise UserError(f"{name}: comes in the size {' and '.join(sizes)} only: the paper has no such experiment")
    block = sizes[size]
    experiment = Experiment(
        name,
        size,
        *(data[key] for key in ("answers", "title", "claim")),
        DEPTHS[data.get("depths", "")],
        panels=[Panel(**panel) for panel in many(block, "panel") + many(data, "panel")],
        evaluate=block.get("evaluate", "").split(),
        paper=published_settings(data["trained_as"]) if "trained_as" in data else {},
        published=many(data, "published"),
        tables=many(data, "table"),
    )
    seeds = seeds or block.get("seeds", 1)
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"{name} with {seeds} seeds: from 1 to {MAX_SEEDS}")
    blocks = many(block, "runs")
    if experiment.depths:
        for key in only:
            if key not in METHODS:
                raise unknown(name, "series", key, METHODS)
        check_depths(name, at, experiment.depths)
        own = [key for runs in blocks for key in runs["methods"].split()]
        methods = in_order(own, only) if only else None
        for runs in blocks:
            keys = methods or runs["methods"].split()
            experiment.cells += cells_of(runs, experiment.depths, seeds, keys, sorted(set(at)) or many(runs, "at"))
        experiment.cells.sort(key=lambda cell: cell.x)
        return experiment
    for runs in blocks:
        experiment.cells += cells_of(runs, 0, seeds, runs["methods"].split(), many(runs, "at"))
    experiment.cells += [imported_cell(imported) for imported in many(block, "imported")]
    for what, wanted, of in [("series", only, lambda c: c.series), ("runs at", at, lambda c: c.x)]:
        known = sorted({of(cell) for cell in experiment.cells})
        for value in wanted:
            if value not in known:
                texts = [v if what == "series" else number(v) for v in known]
                raise unknown(name, what, value if what == "series" else number(value), texts)
        experiment.cells = [cell for cell in experiment.cells if not wanted or of(cell) in wanted]
    if not experiment.cells:
        raise UserError(f"{name} has no run of these series there")
    return experiment


def published_lines(plot):
    """(method, label, [(x, y)], is_fit) of a published figure; y is nan where the paper says "diverged"."""
    lines = [(line["method"], "", list(zip(many(line, "x"), many(line, "y"))), False) for line in many(plot, "line")]
    for fit in many(plot, "fit"):
        points = [(x, fit["slope"] * math.log10(x) + fit["offset"]) for x in many(plot, "ticks")]
        lines.append((fit["method"], "A log d + B", points, True))
    return lines
