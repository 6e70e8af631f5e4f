"""What `deepnet lab audit` and `deepnet lab model-update` say of models, as tables."""

import itertools

import results as R
import runs
from experiments import UserError

SCALING = {"residual": R.TEXT, "encoder": R.FIELDS, "decoder": R.FIELDS}
AUDIT = {
    **{name: R.FINITE for name in ("std_tolerance", "sampling_errors")},
    "groups": [R.FIELDS],
    "tensors?": [R.FIELDS],
    "faults": [R.TEXT],
}
MOVED = {"per_token": R.FINITE, "per_element": R.FINITE}
PREFLIGHT = 3  # the exit code of a model that is not as theory wants


def asked(words, shape):
    """The JSON that `deepnet lab ...` or `describe` prints, and the error that it ends with: "", or what an audit found."""
    code, out, error = runs.call(words)
    if code not in (0, PREFLIGHT) or not out:
        raise UserError(error or f"--program: {words[0]}: its {words[1]} printed nothing", code or runs.BAD_DATA)
    return R.parsed(out, shape, f"--program: {words[0]}: its {words[1]}"), error if code else ""


def span(least, greatest):
    return f"{least:.4f}" if least == greatest else f"{least:.4f}..{greatest:.4f}"


def percent(ratio):
    return f"{100 * (ratio - 1):+.2f} %"


# --- audit -------------------------------------------------------------------------------------


def scaling_text(scaling):
    row = "{:<17} {:>14} {:>15} {:>15}\n".format
    text = row(scaling["residual"], "alpha", "beta", "q, k")
    for stack in ("encoder", "decoder"):
        of = scaling[stack]
        if of["layers"]:
            spans = (span(of[f"least_{x}"], of[f"greatest_{x}"]) for x in ("alpha", "beta", "query_key"))
            text += row(f"  {stack}", *spans)
    return text


def tensors_text(tensors):
    row = "{:<54} {:<17} {:>11} {:>10} {:>10} {:>10}\n".format
    text = row("tensor", "role", "looked at", "std", "by theory", "difference")
    for tensor in tensors:
        spread = tensor["spread"]
        exact = "wrong" if spread["fault"] else "exact"
        difference = percent(spread["std_ratio"]) if tensor["std_theory"] else exact
        drawn, theory = (f"{tensor[f'std_{x}']:.6f}" for x in ("drawn", "theory"))
        text += row(tensor["name"], tensor["role"], R.commas(spread["looked_at"]), drawn, theory, difference)
    return text + "\n"


def worst_text(group):
    worst = group["worst"]
    if group["drawn"]:
        return f"{group['worst_name']} {percent(worst['std_ratio'])} of {100 * worst['tolerance']:.1f} %"
    return group["worst_name"] if worst["fault"] else ""


def audit_text(scaling, report):
    """Scaling, tensors where the report has them, a row a group, and what is not as theory wants."""
    text = scaling_text(scaling) + "\n"
    if "tensors" in report:
        text += tensors_text(report["tensors"])
    row = "{:<17} {:<17} {:>8} {:>14} {:>15} {:>9} {:>7}  {}\n".format
    text += row("weights of", "role", "tensors", "looked at", "gain", "std", "within", "farthest tensor")
    for group in report["groups"]:
        every, drawn = group["all"], group["drawn"]
        text += row(
            group["layer"],
            group["role"],
            R.commas(group["tensors"]),
            R.commas(every["looked_at"]),
            span(group["least_gain"], group["greatest_gain"]) if drawn else "-",
            percent(every["std_ratio"]) if drawn else "one value",
            f"{100 * every['tolerance']:.1f} %" if drawn else "exact",
            worst_text(group),
        )
    text += (
        "\nstd: measured deviation beside that of the Inventory. A matrix, or all of a row together, may be\n"
        f"off by {100 * report['std_tolerance']:.0f} %, or by {report['sampling_errors']:.0f} sampling errors of the "
        "elements looked at where that is more.\n"
        "gain: of sqrt(2 / (in + out)); of embeddings: of width^(-1/2).\n"
    )
    faults = "".join(f"  {fault}\n" for fault in report["faults"])
    return text + ("NOT as theory wants:\n" + faults if faults else "All as theory wants.\n")


# --- model update over depth -------------------------------------------------------------------


def mean(values):
    return sum(values) / len(values)


def update_text(schemes, depths, moved):
    """`moved`: a list, one a seed, of per_token and per_element for each (scheme, depth)."""

    def row(name, values, width=5):
        return f"{name:<14}" + "".join(f"{value:9.{width}f}" for value in values)

    text = f"{'layers a side':<14}" + "".join(f"{depth:9}" for depth in depths) + f"{'max/min':>9}\n"
    for scheme in schemes:
        seeds = [[cell["per_token"] for cell in moved[scheme, depth]] for depth in depths]
        tokens = [mean(of) for of in seeds]
        text += row(scheme, tokens) + f"{max(tokens) / min(tokens):9.2f}\n"
        text += row("  an element", [mean([cell["per_element"] for cell in moved[scheme, depth]]) for depth in depths]) + "\n"
        if len(seeds[0]) > 1:
            text += f"{'  seeds apart':<14}" + "".join(f"{f'x{max(of) / min(of):.2f}':>9}" for of in seeds) + "\n"
    return text


def scheme_sets(scheme):
    """What makes a model one of `scheme`; settings of DEEPNORM are for it alone."""
    sets = ["--set", f"model.residual={scheme}"]
    return sets if scheme == "DEEPNORM" else [*sets, "--set", "model.deepnorm="]


def model_update(words, schemes, depths, seeds, show):
    """The table of figure 5: every scheme at every depth, mean over `seeds` runs of `deepnet lab model-update`."""
    moved = {}
    # Schemes innermost: one that is a mistake ends this before much is trained.
    for seed, depth, scheme in itertools.product(range(1, seeds + 1), depths, schemes):
        show(f"seed {seed}: {scheme} {depth}-{depth}")
        sets = (f"seed={seed}", f"model.encoder_layers={depth}", f"model.decoder_layers={depth}")
        cell = [*words, *scheme_sets(scheme), *(word for s in sets for word in ("--set", s))]
        moved.setdefault((scheme, depth), []).append(asked(cell, MOVED)[0])
    return update_text(schemes, depths, moved)
