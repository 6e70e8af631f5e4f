#!/usr/bin/env python3
"""The figures and tables of the DeepNet paper as experiments of one command each (docs/lab.md).

  launch/lab/lab.py list
  launch/lab/lab.py run fig6                          # runs/lab/fig6-small/report.html
  launch/lab/lab.py run fig6 --only keel --at 50      # joins what the folder has
  launch/lab/lab.py report runs/lab/*-small --html all.html
  launch/lab/lab.py report runs/quickstart runs/other  # any runs of `deepnet train`, side by side
  launch/lab/lab.py model-update                      # how far a few updates move models of several depths

An experiment is a file of launch/lab/experiments; a run of it is `deepnet train` and `deepnet evaluate`.
"""

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEBIAN_PYTHON = "/usr/bin/python3"

try:
    import looks
    import report
    import results
    import run_page
    import runs
    from experiments import METHODS, UserError, experiment_names, make_experiment
except ImportError as missing:  # pandas, matplotlib or jinja2: Debian's Python may have them
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON) and not os.environ.get("DEEPNET_LAB_PYTHON"):
        os.environ["DEEPNET_LAB_PYTHON"] = "tried"
        if os.access(DEBIAN_PYTHON, os.X_OK):
            os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
    sys.exit(f"error: {missing.msg}: launch/install_packages.sh --with-lab installs it, or pip in a venv")


def default_program():
    """The checkout's build, else what PATH has."""
    built = HERE.parent.parent / "build" / "release" / "deepnet"
    return str(built) if built.is_file() else shutil.which("deepnet") or "deepnet"


def make_setup(options, experiment):
    return runs.Setup(
        program=options.program or default_program(),
        out=options.out or f"runs/lab/{experiment.name}-{experiment.size}",
        root=options.root,
        recipes=options.recipes,
        data=options.data,
        imported=options.m2m100,
        launcher=launcher(options.launcher),
        sets=options.set,
        share=share(options.share),
    )


def launcher(text):
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--launcher: {text}: {error}") from error


def share(text):
    """(I, N) of "I/N"."""
    try:
        index, count = map(int, text.split("/"))
    except ValueError:
        index, count = 0, 0
    if not 0 <= index < count:
        raise UserError(f"--share: {text}: write I/N with I from 0 to N - 1")
    return index, count


def given_words(options):
    """--only, --at and what else changes what runs, as the user gave it."""
    words = [w for value in options.only for w in ("--only", value)] + [w for v in options.at for w in ("--at", v)]
    for flag, default in (("root", "."), ("recipes", "launch/recipes"), ("launcher", ""), ("program", ""), ("m2m100", "")):
        value = getattr(options, flag)
        words += [f"--{flag}", value] if value != default else []
    return words


def places(texts):
    try:
        return [float(text) for text in texts]
    except ValueError as error:
        raise UserError(f"--at: {error}") from error


def write_result(folder, result):
    """result.json, CSV and the page of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_file(folder / "result.json", runs.json.dumps(result) + "\n")
    runs.write_file(folder / "runs.csv", report.runs_table(result).to_csv(index=False))
    runs.write_file(folder / "curves.csv", report.curves_table(result, folder).to_csv(index=False))
    runs.write_file(folder / "report.html", report.make_report([result]))


def run(options):
    for flag in ("seeds", "jobs"):
        if getattr(options, flag) < 0:
            raise UserError(f"--{flag}: must be at least 1, or 0: the default")
    asked = make_experiment(options.experiment, options.size, options.seeds, options.only, places(options.at))
    setup = make_setup(options, asked)
    if options.plan or options.commands:
        jobs = runs.resolve(asked, setup)
        if options.plan:
            try:
                vocabulary = runs.describe_corpus(asked, setup, jobs)["vocabulary_size"]
            except UserError:
                vocabulary = runs.UNKNOWN_VOCABULARY
            runs.plan(setup, jobs, vocabulary)
            runs.print_plan(jobs)
        if options.commands:
            runs.print_commands(asked, setup, jobs)
        return 0
    result, code, why = runs.run_experiment(
        asked, setup, given_words(options), options.jobs, options.keep_models, lambda r: write_result(setup.folder, r)
    )
    print(results.findings_text(result) + f"{setup.out}/report.html", flush=True)
    if why:
        raise UserError(why, code)
    return code


def plan(options):
    options.plan, options.commands = True, False
    return run(options)


def is_experiment(options, folder):
    return (Path(options.root) / folder / "result.json").is_file()


def make_page(options):
    page = options.html or f"{options.folder[0]}/report.html"
    if not any(is_experiment(options, folder) for folder in options.folder):
        program = options.program or default_program()
        read = [run_page.read_run(folder, program, options.root) for folder in options.folder]
        runs.write_file(Path(options.root) / page, run_page.make_page(read))
        print(page)
        return 0
    read = [runs.read_result(Path(options.root) / folder) for folder in options.folder]
    runs.write_file(Path(options.root) / page, report.make_report(read))
    for result in read:
        print(results.findings_text(result), end="")
    print(page)
    return 0


def show_list(options):
    row = "{:<9}  {:<24}  {:>5}  {:>5}  {:>5}  {}"
    print(row.format("name", "answers", "small", "paper", "ranks", "what it shows"))
    for name in experiment_names():
        small = make_experiment(name)
        try:
            paper = len(make_experiment(name, "paper").cells)
        except UserError:
            paper = "-"
        ranks = runs.paper_ranks(name, Path(options.root) / options.recipes)
        print(row.format(name, small.answers, len(small.cells), paper, ranks, small.title))
    print(
        "\nsmall, paper: runs in that size. `lab.py run NAME` runs the small one.\n"
        "ranks: of a run in the size paper, what --launcher has to start; ?: no recipes."
    )
    return 0


def show_instruments(options):
    records = results.read_records(Path(options.root) / options.folder)["instruments"]
    if not records:
        raise UserError(
            f"{options.folder}: no instruments in its metrics.jsonl; a run has them with instruments.every_steps",
            runs.BAD_DATA,
        )
    print(results.instruments_text(records), end="")
    return 0


def lab_words(options, names, flags):
    """The command line of the command `names`; `flags` of ours that are its own, too."""
    words = [options.program or default_program(), *names, "--root", options.root]
    for flag in ("config", "set"):
        words += [word for value in getattr(options, flag) for word in (f"--{flag}", value)]
    return words + [word for flag in flags if str(getattr(options, flag)) for word in (f"--{flag}", str(getattr(options, flag)))]


def audit(options):
    words = lab_words(options, ["lab", "audit"], ["sample"]) + ["--tensors"] * options.tensors
    report, error = looks.asked(words, looks.AUDIT)
    scaling, _ = looks.asked(lab_words(options, ["describe", "--json"], []), looks.SCALING)
    print(looks.audit_text(scaling, report), end="", flush=True)
    if error:
        raise UserError(error, looks.PREFLIGHT)
    return 0


def model_update(options):
    words = lab_words(options, ["lab", "model-update"], ["data", "parameters", "steps"])
    schemes, depths = options.schemes.split(","), [number(depth) for depth in options.depths.split(",")]
    if options.seeds < 1:
        raise UserError("--seeds: must be at least 1")
    show = (lambda cell: print(cell, file=sys.stderr, flush=True)) if sys.stderr.isatty() else lambda cell: None
    print(looks.model_update(words, schemes, depths, options.seeds, show), end="")
    return 0


def number(text):
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--depths: {text}: must be layers a side, as in 6,18,50")
    return int(text)


def parser():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, function, text):
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("--root", default=".", metavar="FOLDER", help="what relative paths start from")
        added.set_defaults(function=function)
        return added

    def recipes(added):
        added.add_argument("--recipes", default="launch/recipes", metavar="FOLDER", help="where the recipes are")

    recipes(command("list", show_list, "which experiments there are, and how many runs each has"))
    for name, function, text in (
        ("run", run, "run an experiment, or go on with it, and write its report; one Ctrl-C saves and ends with code 75"),
        ("plan", plan, "print a line a run (ranks, parameters, GiB, FLOPs) and do nothing else: run --plan"),
    ):
        added = command(name, function, text)
        recipes(added)
        add = added.add_argument
        add("experiment", metavar="EXPERIMENT", help=", ".join(experiment_names()))
        add("--size", default="small", choices=["small", "paper"], help="paper: the published settings, for a cluster")
        add("--data", default="", metavar="FOLDER", help="prepared corpus; default: the recipe's")
        add("--out", default="", metavar="FOLDER", help="where results go; default: runs/lab/EXPERIMENT-SIZE")
        add("--seeds", type=int, default=0, metavar="N", help="runs that differ in their seed only; 0: its own number")
        any_method = "where methods are compared over depth any will do, the experiment's own or not: "
        add("--only", action="append", default=[], metavar="METHOD", help=f"only this one; {any_method}{', '.join(METHODS)}")
        add("--at", action="append", default=[], metavar="X", help="only at this place of the axis; any depth will do")
        add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change one field of every run")
        add(
            "--launcher",
            default="",
            metavar="WORDS",
            help="starts every run as several ranks: 'mpirun -n {ranks}', where {ranks} is what its cluster asks for; "
            "`evaluate` is started with {ranks} as 1, or without a launcher that does not say {ranks}",
        )
        add("--program", default="", metavar="FILE", help="the deepnet that trains and scores; default: build/release/deepnet")
        add("--m2m100", default="", metavar="FOLDER", help="M2M-100's weights for table3; default: runs/m2m100_12b")
        if name == "run":
            add("--jobs", type=int, default=0, metavar="N", help="runs side by side; 0: what cores and memory allow")
            add(
                "--share",
                default="0/1",
                metavar="I/N",
                help="only every N-th run, from number I on, the first being 0: for N tasks of a batch system's array, "
                "which may write into one folder at once",
            )
            add("--keep-models", action="store_true", help="keep the checkpoints of runs that are done")
            add("--plan", action="store_true", help="print a line a run and do nothing else")
            add("--commands", action="store_true", help="print the commands of all runs and do nothing else")
        else:
            added.set_defaults(jobs=0, keep_models=False, share="0/1")
    page = command("report", make_page, "make the page of experiments again, and print what they show; or the page of runs of `deepnet train`")
    page.add_argument("folder", nargs="+", metavar="FOLDER", help="of an experiment, or of a run, which has metrics.jsonl")
    page.add_argument("--html", default="", metavar="FILE", help="where it goes; default: report.html in the first folder")
    page.add_argument("--program", default="", metavar="FILE", help="the deepnet that reads checkpoints; default: build/release/deepnet")
    seen = command("instruments", show_instruments, "what the instruments of a run saw, a line a record")
    seen.add_argument("folder", metavar="FOLDER", help="a run's folder, or one of an experiment's cells")
    for name, function, text in (
        ("audit", audit, "compare the spread of a model's initial weights with theory; exit code 3 if anything is off"),
        ("model-update", model_update, "how far a few updates move models of several depths, as figure 5 of the paper"),
    ):
        added = command(name, function, text)
        add = added.add_argument
        add("--config", action="append", default=[], metavar="FILE", help="RunSpec of the model; a later file wins")
        add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change one field of it")
        add("--program", default="", metavar="FILE", help="the deepnet that looks; default: build/release/deepnet")
        if name == "audit":
            add("--sample", type=int, default=1000000, metavar="N", help="draw the first rows of a tensor, of so many elements")
            add("--tensors", action="store_true", help="list every tensor")
        else:
            add("--data", default="", metavar="FOLDER", help="a prepared corpus; without one, sentences of made-up pieces")
            add("--depths", default="6,18,30,50,70,100", metavar="N,N,...", help="layers a side")
            add("--schemes", default="DEEPNORM,POST_LN", metavar="NAME,...", help="values of model.residual")
            add("--parameters", default="matrices", choices=["matrices", "all"], help="what the updates move")
            add("--steps", type=int, default=3, metavar="N", help="updates after which the output is looked at")
            add("--seeds", type=int, default=3, metavar="N", help="models trained of each kind")
    return top


def main(words=None):
    options = parser().parse_args(words)
    try:
        return options.function(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return runs.BAD_DATA


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name may be no Unicode
    sys.exit(main())
