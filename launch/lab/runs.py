"""From an experiment's cells to runs: plan them, find what has ended, run what is left, keep the results.

An experiment's folder:
  result.json, runs.csv, curves.csv, report.html   everything that has ended (results.py, report.py)
  cells/<name>/result.json                         this run has ended
  cells/<name>/metrics.jsonl, evaluation.json, log.txt
  cells/<name>/run                                 its run folder; deleted once the run is done
"""

import concurrent.futures
import ctypes
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import results as R
from experiments import UserError, make_experiment, many, number, parse_textproto

RANKS = "{ranks}"  # stands for a run's number of ranks in the words of a launcher
GIB = 1 << 30
PROGRAM_BYTES = 300 << 20  # LibTorch's libraries and the corpus
UNKNOWN_VOCABULARY = 32000  # where there is no corpus to ask
MEMORY_SHARE = 0.8  # of this host, for runs
TRAIN_SHARE = 0.95  # of a run's work: the rest is its score
LOOK_SECONDS = 0.5  # between two looks at the runs under way
LINE_SECONDS = 20.0  # between lines of progress
BAD_CONFIG, BAD_DATA, BAD_CHECKPOINT, DIVERGED_CODE, SAVED = 2, R.BAD_DATA, 5, 7, 75
KNOWN_CODES = range(BAD_CONFIG, 11)  # that `deepnet` says; others are 1


@dataclass
class Setup:
    """What the user said, for all runs alike."""

    program: str
    out: str
    root: str = "."  # what relative paths start from
    recipes: str = "launch/recipes"
    data: str = ""  # prepared corpus; empty: what the recipe says
    imported: str = ""  # instead of Cell.checkpoint
    launcher: list = field(default_factory=list)  # starts `program` as many ranks
    sets: list = field(default_factory=list)  # FIELD=VALUE of the user, last
    share: tuple = (0, 1)  # (I, N): only every N-th run from number I on

    @property
    def folder(self):
        return Path(self.root) / self.out

    def cell_folder(self, name):
        return self.folder / "cells" / name


@dataclass
class Job:
    """One cell as it can be run."""

    cell: object
    sets: list  # after the recipe: the cell's, the corpus, the user's
    run: dict = field(default_factory=dict)  # the complete RunSpec, as `train --dump-config` prints it
    ranks: int = 0  # of the recipe's cluster; 0: as many as are started; 1 where it is only scored
    bytes: int = 0  # memory of all ranks, the program's own included
    rank_bytes: int = 0  # of the fullest rank, as `plan` counts
    flops: float = 0.0  # of all steps: what progress is counted in
    parameters: int = 0


def parallel_map(function, items):
    """In order, by a thread a core; each starts child programs."""
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(function, items))


def usable_cores():
    return len(os.sched_getaffinity(0))


def host_bytes():
    """This host's memory, or its cgroup's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return total


def call(words):
    """(exit code, stdout, the error that it named)."""
    try:
        done = subprocess.run(words, encoding="utf-8", capture_output=True, check=False)
    except OSError as error:
        raise UserError(f"--program: {words[0]}: {error.strerror}") from error
    errors = [line for line in done.stderr.split("\n") if line.strip()]
    first = next((i for i, line in enumerate(errors) if line.startswith("error: ")), max(0, len(errors) - 1))
    return done.returncode, done.stdout, "\n".join(errors[first:]).removeprefix("error: ")


def ask(words, shape):
    """(exit code, the JSON that it printed, the error that it named)."""
    code, out, error = call(words)
    return code, None if code else R.parsed(out, shape, f"--program: {words[0]}: its {words[1]}"), error


# --- planning ----------------------------------------------------------------------------------

SIZE = {"parameters": R.COUNT}  # what `describe` and `plan` answer
COST = {
    "stages": [{"memory": {"total": R.COUNT, "weights": R.COUNT}, "flops_per_step": R.FINITE}],
    "data_parallel_size": R.WHOLE,
    "pipeline_parallel_size": R.WHOLE,
}


def job_sets(setup, cell):
    sets = list(cell.sets)
    if setup.data:
        sets.append(f"data.folder={setup.data}")
    folder = f"{setup.out}/cells/{cell.name}/run"
    if cell.checkpoint:
        folder = setup.imported or cell.checkpoint
    return sets + setup.sets + [f"name={cell.name}", f"folder={folder}"]


def spec_words(setup, job):
    words = ["--root", setup.root, "--config", os.path.join(setup.recipes, job.cell.recipe)]
    return words + [word for s in job.sets for word in ("--set", s)]


def num_ranks(run):
    """What the run's cluster asks for; 0: it leaves that to the job."""
    nodes, devices = R.field_of(run, "cluster.nodes"), R.field_of(run, "cluster.devices_per_node")
    return max(1, nodes) * max(1, devices) if nodes or devices else 0


def resolve(experiment, setup):
    """Jobs with their complete RunSpecs, each checked as `train` checks it. Names every mistake."""
    jobs = [Job(cell, job_sets(setup, cell)) for cell in experiment.cells]

    def dump(job):
        code, out, error = call([setup.program, "train", *spec_words(setup, job), "--dump-config"])
        if code:
            return f"{job.cell.name}: {error}"
        place = f"--program: {setup.program}: its train --dump-config"
        job.run = R.checked(parse_textproto(out, place), {**R.RUN, "folder": R.TEXT}, place)
        job.ranks = 1 if job.cell.checkpoint else num_ranks(job.run)
        return ""

    mistakes = [mistake for mistake in parallel_map(dump, jobs) if mistake]
    if mistakes:
        raise UserError("\n".join(mistakes))
    return jobs


def plan(setup, jobs, vocabulary):
    """What each job costs, by `deepnet plan`, or by `describe` where it is only scored."""

    def cost(job):
        command = "describe" if job.cell.checkpoint else "plan"
        words = [setup.program, command, *spec_words(setup, job), "--json"]
        if not R.field_of(job.run, "model.vocabulary_size"):
            words += ["--set", f"model.vocabulary_size={vocabulary}"]
        code, answer, error = ask(words, COST if command == "plan" else SIZE)
        if code:
            return f"{job.cell.name}: {error}"
        if job.cell.checkpoint:
            job.parameters = int(answer["parameters"])
            job.rank_bytes = 4 * job.parameters  # weights alone
            job.bytes = PROGRAM_BYTES + job.rank_bytes
            return ""
        totals = [int(stage["memory"]["total"]) for stage in answer["stages"]]
        weights = sum(int(stage["memory"]["weights"]) for stage in answer["stages"])
        job.parameters = weights // 4 // max(1, answer["data_parallel_size"])
        if answer["pipeline_parallel_size"] > 1:  # a tied matrix may be held twice
            job.parameters = int(ask([setup.program, "describe", *words[2:]], SIZE)[1]["parameters"])
        job.rank_bytes, job.bytes = max(totals, default=0), PROGRAM_BYTES + sum(totals)
        step = sum(stage["flops_per_step"] for stage in answer["stages"])
        job.flops = float(step) * R.field_of(job.run, "train.steps")
        return ""

    mistakes = [mistake for mistake in parallel_map(cost, jobs) if mistake]
    if mistakes:
        raise UserError("\n".join(mistakes))


def describe_corpus(experiment, setup, jobs):
    """What `deepnet lab corpus` says of the jobs' corpus; a UserError that says how to get one."""
    run = jobs[0].run
    folder = R.field_of(run, "data.folder", "")
    words = [setup.program, "lab", "corpus", "--root", setup.root, "--data", folder]
    for direction in directions(run):
        words += ["--direction", direction]
    words += ["--dev-sentences", str(R.field_of(run, "train.validate_sentences"))]
    if "--sentences" in experiment.evaluate:
        words += ["--test-sentences", experiment.evaluate[experiment.evaluate.index("--sentences") + 1]]
    code, corpus, error = ask(words, {**R.CORPUS, "vocabulary_size": R.WHOLE})
    if code:
        raise UserError(
            f"{error}\nprepare it (the small size learns from the quick start's: deepnet prepare --config "
            "launch/recipes/quickstart.textproto), or name one by --data",
            BAD_DATA,
        )
    return {"folder": folder, **corpus}


# --- commands ----------------------------------------------------------------------------------


def directions(run):
    return [d for d in many(run.get("data", {}), "directions") if d]


def start_words(setup, ranks):
    return [word.replace(RANKS, str(max(1, ranks))) for word in setup.launcher] + [setup.program]


def thread_words(threads):
    return ["--set", f"compute.threads_per_rank={threads}"] if threads else []


def train_words(setup, job, threads=0):
    words = start_words(setup, job.ranks) + ["train", *spec_words(setup, job)]
    return words + thread_words(threads) + ["--progress", "lines", "--log-seconds", "60"]


def evaluate_words(setup, experiment, job, threads=0):
    """One process: a launcher starts it only where it can be told how many. Empty: nothing is scored."""
    if not experiment.evaluate:
        return []
    words = start_words(setup, 1) if RANKS in " ".join(setup.launcher) else [setup.program]
    words += ["evaluate", "--root", setup.root, "--checkpoint", job.run["folder"], "--json"]
    folder = R.field_of(job.run, "data.folder", "")
    if job.cell.checkpoint:  # it names no corpus itself
        words += ["--data", folder]
    words += [word.replace("{data}", folder) for word in experiment.evaluate]
    for direction in directions(job.run):
        words += ["--direction", direction]
    return words + thread_words(threads)


def print_plan(jobs):
    width = max([3] + [len(job.cell.name) for job in jobs])
    print(f"{'run':<{width}}  {'ranks':>5}  {'parameters':>14}  {'GiB a rank':>10}  {'FLOPs':>9}")
    for job in jobs:
        flops = f"{job.flops:.2e}" if job.flops else "scored"
        print(
            f"{job.cell.name:<{width}}  {job.ranks or 'any':>5}  {job.parameters:>14,}  "
            f"{job.rank_bytes / GIB:>10.2f}  {flops:>9}"
        )
    print(
        f"\n{len(jobs)} runs, {sum(job.flops for job in jobs):.2e} FLOPs. GiB: of the fullest rank; any: on one rank. "
        "FLOPs: of training, what is computed twice to save memory not counted."
    )


def print_commands(experiment, setup, jobs):
    said = 0
    for job in jobs:
        if not job.cell.checkpoint:
            if job.ranks != said:
                print(f"# {R.plural(job.ranks, 'rank')} a run, one for `evaluate`")
                said = job.ranks
            print(shlex.join(train_words(setup, job)))
        evaluate = evaluate_words(setup, experiment, job)
        if evaluate:
            print(shlex.join(evaluate))


# --- what the folder has -------------------------------------------------------------------------


def write_file(path, text):
    """Whole or not at all, whoever else writes it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    new = Path(path).parent / f".deepnet-{secrets.token_hex(8)}"
    with open(new, "x", encoding="utf-8", errors="replace") as file:  # of names and texts that are no Unicode
        file.write(text)
    new.replace(path)


def read_result(folder):
    """What `run` has written there."""
    path = Path(folder) / "result.json"
    result = R.read_json(path, R.RESULT)
    try:
        R.experiment_of(result)
    except UserError as error:
        raise UserError(f"'{path}': {error}", BAD_DATA) from error
    return result


def earlier_cells(folder):
    """Runs that have ended there, by name; failed ones are run again."""
    cells = {}
    for path in sorted((Path(folder) / "cells").glob("*/result.json")):
        cell = R.read_json(path, R.CELL)
        if cell["name"] != path.parent.name:  # it will be part of a path
            raise UserError(f"'{path}': is of another run, '{cell['name']}'", BAD_DATA)
        if cell["status"] in (R.DONE, R.DIVERGED):
            cells[path.parent.name] = cell
    return cells


def with_earlier(asked, earlier, folder):
    """The cells asked for and those that ended in the folder after earlier requests, in the experiment's order."""
    if not earlier:
        return asked
    only, at, seeds = [], [], asked.seeds
    if asked.depths:
        only = [c.series for c in asked.cells] + [c["series"] for c in earlier.values()]
        at = [c.x for c in asked.cells] + [c["x"] for c in earlier.values()]
    seeds = max([seeds] + [int(cell["seed"]) for cell in earlier.values()])
    try:
        whole = make_experiment(asked.name, asked.size, seeds, only, at)
    except UserError as error:
        raise UserError(f"--out: {folder}: {error}; name another folder") from error
    names = {cell.name for cell in asked.cells} | set(earlier)
    whole.cells = [cell for cell in whole.cells if cell.name in names]
    return whole


def settings_of(run):
    """A RunSpec without what changes nothing: defaults of zero, preparation of the corpus."""

    def clean(value):
        if isinstance(value, dict):
            fields = {name: clean(v) for name, v in value.items()}
            return {name: v for name, v in fields.items() if v not in ({}, [], "", 0, False, None)}
        return [clean(v) for v in value] if isinstance(value, list) else value

    return clean({name: value for name, value in run.items() if name != "prepare"})


def check_launcher(setup, jobs):
    """Whether the launcher starts as many ranks as the jobs' clusters have, as far as it says."""
    launcher = " ".join(setup.launcher)
    ranks = sorted({job.ranks for job in jobs if job.ranks > 0 and not job.cell.checkpoint})
    if RANKS in launcher or not ranks or (len(ranks) == 1 if launcher else ranks[-1] == 1):
        return
    raise UserError(
        f"--launcher: {launcher or 'required'}: runs of {', '.join(map(str, ranks))} ranks (nodes x devices_per_node "
        "of their cluster): write for example 'mpirun -n {ranks}', or --set cluster.nodes=... for another cluster, "
        "or let a batch system start what --commands prints"
    )


def check_imported(setup, jobs):
    for job in jobs:
        folder = job.run["folder"]
        if job.cell.checkpoint and not (Path(setup.root) / folder).exists():
            raise UserError(
                f"{job.cell.name}: no checkpoint in {folder}; make it of the published weights (safetensors, in "
                f"Hugging Face's layout): deepnet checkpoint import FOLDER --output {folder}, name another one by "
                "--m2m100, or leave it out by --only",
                BAD_CHECKPOINT,
            )


class Work:
    """What a request finds: the corpus, the runs that have ended in its folder, and those still to do."""

    def __init__(self, asked, setup):
        self.setup = setup
        self.earlier_command = ""
        if (setup.folder / "result.json").is_file():
            result = read_result(setup.folder)
            if (result["experiment"], result["size"]) != (asked.name, asked.size):
                raise UserError(
                    f"--out: {setup.out} holds {result['experiment']}, size {result['size']}; name another folder"
                )
            self.earlier_command = result["command"]
        earlier = earlier_cells(setup.folder)
        self.experiment = with_earlier(asked, earlier, setup.folder)
        self.extends = len(self.experiment.cells) > len(asked.cells)
        self.jobs = resolve(self.experiment, setup)
        self.data = describe_corpus(self.experiment, setup, self.jobs)
        self.ended = {}
        for job in self.jobs:
            name = job.cell.name
            if name not in earlier:
                continue
            if settings_of(earlier[name]["run"]) != settings_of(job.run):
                raise UserError(
                    f"--out: {setup.out}/cells/{name} is of other settings than {name} has now; name another folder"
                )
            self.ended[name] = earlier[name]
        index, count = setup.share
        mine = [job for i, job in enumerate(self.jobs) if i % count == index]
        self.pending = [job for job in mine if job.cell.name not in self.ended]
        check_launcher(setup, self.pending)
        check_imported(setup, self.pending)
        plan(setup, self.pending, self.data["vocabulary_size"])


# --- running -------------------------------------------------------------------------------------


def limits_of(setup, jobs, wanted):
    """(runs at once, bytes, threads of each; 0: a launcher's)."""
    if setup.launcher:
        return max(1, wanted), float("inf"), 0
    cores, room = usable_cores(), MEMORY_SHARE * host_bytes()
    count = wanted
    if count <= 0:
        fit, total = 0, 0
        for job_bytes in sorted((job.bytes for job in jobs), reverse=True):
            total += job_bytes
            if total > room:
                break
            fit += 1
        count = max(1, min(cores, len(jobs), fit))
    return count, room, max(1, cores // count)


def become_child(parent):
    """In the child, before it becomes the program: a group of its own, so that a Ctrl-C at the terminal reaches it
    by way of this program only, once; and SIGTERM if this program dies."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Child:
    """A phase of a run, training or scoring, as a program that writes to the end of log.txt."""

    def __init__(self, job, words, folder, scoring, commands):
        self.job, self.scoring = job, scoring
        self.commands = commands + [shlex.join(words)]
        parent = os.getpid()
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            output = open(folder / "evaluation.json", "w", encoding="utf-8") if scoring else log
            try:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=log, preexec_fn=lambda: become_child(parent)
                )
            except OSError as error:
                raise UserError(f"{words[0]}: {error.strerror}") from error
            finally:
                if scoring:
                    output.close()

    def code(self):
        """None while it runs; that of the program, or 128 and the signal that ended it."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()


def last_line(path):
    try:
        lines = [line for line in Path(path).read_text(errors="replace", encoding="utf-8").split("\n") if line.strip()]
    except OSError:
        return ""
    return lines[-1] if lines else ""


def drop_models(folder):
    """Keeps metrics.jsonl and deletes the rest of the run folder: checkpoints."""
    run = folder / "run"
    if (run / "metrics.jsonl").is_file():
        (run / "metrics.jsonl").replace(folder / "metrics.jsonl")
    shutil.rmtree(run, ignore_errors=True)


class Progress:
    """Lines on stderr, at most one in LINE_SECONDS; redrawn on a terminal."""

    def __init__(self):
        self.live = sys.stderr.isatty()
        self.shown = time.monotonic()

    def say(self, text):
        print(("\r\x1b[K" if self.live else "") + time.strftime("%H:%M:%S ") + text, file=sys.stderr, flush=True)

    def show(self, text):
        if self.live:
            print("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.shown >= LINE_SECONDS:
            self.shown = time.monotonic()
            self.say(text)

    def end(self):
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Pool:
    """One loop: end what has ended, start what fits, show where it all stands, wait."""

    def __init__(self, work, limits, keep_models, ended):
        self.work, self.setup, self.experiment = work, work.setup, work.experiment
        self.jobs_at_once, self.bytes, self.threads = limits
        self.keep_models, self.ended = keep_models, ended  # ended: called with each run's result
        self.waiting, self.running = list(work.pending), []
        self.progress = Progress()
        self.stopping = False
        self.count, self.num_ended, self.done = len(self.waiting), 0, 0.0
        self.flops = sum(job.flops for job in self.waiting)
        # What was done before this start does not tell how fast this machine is.
        self.before = sum(self.share(job, False) * job.flops for job in self.waiting)
        self.start = time.monotonic()

    def stop(self, *_):
        if self.stopping:  # a second Ctrl-C: at once
            for child in self.running:
                child.process.kill()
            os._exit(130)
        self.stopping = True

    def run(self):
        """False: stopped; the same command goes on from here."""
        old = {s: signal.signal(s, self.stop) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        try:
            while self.waiting or self.running:
                if self.stopping:
                    self.waiting.clear()
                    for child in self.running:
                        child.stop()
                self.end_all()
                self.start_all()
                self.show()
                if self.running:
                    try:
                        self.running[0].process.wait(LOOK_SECONDS)
                    except subprocess.TimeoutExpired:
                        pass
        finally:
            for child in self.running:  # an error of this program leaves no run behind
                child.stop()
                child.process.wait()
            for number_, handler in old.items():
                signal.signal(number_, handler)
            self.progress.end()
        return not self.stopping

    def folder(self, job):
        return self.setup.cell_folder(job.cell.name)

    def share(self, job, scoring):
        if scoring:
            return TRAIN_SHARE
        path = self.folder(job) / "run" / "metrics.jsonl"
        try:
            step = R.parsed(last_line(path), {"step": R.WHOLE}, path)["step"]
        except UserError:
            step = 0
        return TRAIN_SHARE * min(1.0, step / max(1, R.field_of(job.run, "train.steps")))

    def evaluate(self, job):
        return evaluate_words(self.setup, self.experiment, job, self.threads)

    def begin(self, job, scoring, commands):
        words = self.evaluate(job) if scoring else train_words(self.setup, job, self.threads)
        self.folder(job).mkdir(parents=True, exist_ok=True)
        self.running.append(Child(job, words, self.folder(job), scoring, commands))

    def start_all(self):
        while self.waiting and not self.stopping:
            job = self.waiting[0]
            used = sum(child.job.bytes for child in self.running)
            fits = len(self.running) < self.jobs_at_once and used + job.bytes <= self.bytes
            if self.running and not fits:
                return
            self.begin(self.waiting.pop(0), bool(job.cell.checkpoint), [])

    def end_all(self):
        for child in list(self.running):
            code = child.code()
            if code is None:
                continue
            self.running.remove(child)
            lacks_score = code == 0 and not child.scoring and bool(self.evaluate(child.job))
            if self.stopping and (code != 0 or lacks_score):
                continue  # the next start goes on with it
            if lacks_score:
                self.begin(child.job, True, child.commands)
            else:
                self.end(child, code)

    def end(self, child, code):
        job, folder = child.job, self.folder(child.job)
        spec = job.cell
        cell = {
            **{name: getattr(spec, name) for name in ("name", "group", "series", "x", "y", "seed")},
            "status": R.DONE if code == 0 else R.FAILED,
            "exit_code": code,
            "error": "",
            "recipe": spec.recipe,
            "sets": job.sets,
            "commands": child.commands,
            "run": job.run,
            "parameters": job.parameters,
            **R.read_records(folder),
        }
        cell["seconds"] = R.num(cell["steps"][-1].get("seconds", 0)) if cell["steps"] else 0.0
        cell["seconds"] += R.num(cell.get("test", {}).get("seconds", 0))
        if code == DIVERGED_CODE and not child.scoring:
            cell["status"] = R.DIVERGED
        if cell["status"] == R.FAILED:
            cell["error"] = last_line(folder / "log.txt")
        write_file(folder / "result.json", json.dumps(cell) + "\n")
        if cell["status"] != R.FAILED and not self.keep_models:
            drop_models(folder)
        self.done += job.flops
        self.num_ended += 1
        self.progress.say(self.summary(cell))
        self.ended(cell)

    @staticmethod
    def summary(cell):
        if cell["status"] == R.DIVERGED:
            return f"{cell['name']}: diverged"
        if cell["status"] == R.FAILED:
            return f"{cell['name']}: failed, exit code {cell['exit_code']}: {cell['error']}"
        scores = [R.score(cell, quantity) for quantity in ("test_nll", "dev_nll", "train_nll")]
        loss = next((f", nll {R.short(value, 4)}" for value in scores if value is not None), "")
        return f"{cell['name']}: done in {R.clock(cell['seconds'])}{loss}"

    def show(self):
        done = self.done + sum(self.share(c.job, c.scoring) * c.job.flops for c in self.running)
        names = ", ".join(child.job.cell.name for child in self.running)
        fraction = min(1.0, done / max(1.0, self.flops))
        text = f"{self.experiment.name}  {100 * fraction:.0f}%  {self.num_ended} of {self.count} runs  {names}"
        if done - self.before > 0.01 * self.flops:
            left = (time.monotonic() - self.start) * (self.flops - done) / (done - self.before)
            text += f"  {R.clock(left)} left"
        self.progress.show(text)


def machine_text(setup, threads):
    if setup.launcher:
        return "by " + " ".join(setup.launcher)
    return f"{R.plural(usable_cores(), 'core')}, {threads} a run"


def command_text(setup, experiment, given):
    """The request as one types it; `given`: further words of the user."""
    words = ["launch/lab/lab.py", "run", experiment.name, "--size", experiment.size, "--seeds", str(experiment.seeds)]
    words += ["--out", setup.out] + (["--data", setup.data] if setup.data else []) + given
    return shlex.join(words + [word for s in setup.sets for word in ("--set", s)])


def run_experiment(asked, setup, given, jobs_wanted, keep_models, write):
    """Runs what is left and returns (result, whole, exit status, what to say of that). `write` keeps a result."""
    work = Work(asked, setup)
    experiment = work.experiment
    limits = limits_of(setup, work.pending or work.jobs, jobs_wanted)
    command = command_text(setup, asked, given)
    commands = (work.earlier_command.split("\n") if work.extends else []) + [command]
    code, out, _ = call([setup.program, "--version"])
    result = {
        "experiment": experiment.name,
        "size": experiment.size,
        "version": out.strip().removeprefix("deepnet ") if code == 0 else "",
        "machine": machine_text(setup, limits[2]),
        "data": work.data,
        "seeds": experiment.seeds,
        "cells_planned": len(experiment.cells),
        "cells": [],
        "command": "\n".join(dict.fromkeys(commands)),
    }
    cells = dict(work.ended)

    def keep(cell=None):
        if setup.share[1] > 1:  # others work in the folder
            cells.update(earlier_cells(setup.folder))
        if cell:
            cells[cell["name"]] = cell
        result["cells"] = [cells[c.name] for c in experiment.cells if c.name in cells]
        write(result)

    pool = Pool(work, limits, keep_models, keep)
    how = f"threads each: {limits[2]}" if limits[2] else "by the launcher"
    pool.progress.say(
        f"{experiment.name}: {len(work.jobs)} runs, {len(work.ended)} of them done; {limits[0]} at once, {how}"
    )
    whole = pool.run()
    keep()
    if not whole:
        return result, SAVED, "stopped: the same command goes on from here"
    failed = [cell for cell in result["cells"] if cell["status"] == R.FAILED]
    if not failed:
        return result, 0, ""
    code = failed[0]["exit_code"]
    return (
        result,
        code if code in KNOWN_CODES else 1,
        f"{len(failed)} of {len(work.jobs)} runs failed; their log.txt in {setup.out}/cells says why; run the same "
        "again to try them again",
    )


def paper_ranks(name, recipes):
    """What a launcher must start for a run of the size paper: "1", "8", "1 to 128"; "?": no recipes."""
    try:
        cells = [cell for cell in make_experiment(name, "paper").cells if not cell.checkpoint]
    except UserError:
        return "-"
    ranks = set()
    for cell in cells:
        path = Path(recipes) / cell.recipe
        try:
            text = path.read_text(errors="replace", encoding="utf-8")
        except OSError:
            return "?"
        run = R.checked(parse_textproto(text, f"'{path}'"), R.RUN, f"'{path}'")
        cluster = dict(run.get("cluster", {}))
        for s in cell.sets:
            if s.startswith("cluster."):
                cluster[s.split("=")[0].removeprefix("cluster.")] = float(s.split("=")[1])
        ranks.add(int(num_ranks({"cluster": cluster})))
    return number(min(ranks)) if len(ranks) == 1 else f"{min(ranks)} to {max(ranks)}"
