"""`lab.py run` with a script in the place of training and scoring: what it starts, what it makes of how that
ends, what a second start does. Planning and the corpus are the real program's, which DEEPNET_PROGRAM names."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path

from sample_results import E, R

import lab  # found by sample_results
import runs

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))

# Post-LN from 18 layers on diverges, the run of 50 layers of DeepNet fails as long as there is a file "broken". A run
# that is told to wait says so and waits to be stopped.
# What the real program answers is asked once for all tests and kept in the folder `answers`.
STAND_IN = f"""#!/bin/sh
ask() {{
  answer=answers/$(printf '%s\\n' "$@" | cksum | tr ' ' _)
  if ! [ -e $answer.code ]; then
    {PROGRAM} "$@" > $answer.$$ 2> $answer.$$.err
    code=$?
    mv $answer.$$ $answer.out; mv $answer.$$.err $answer.err
    echo $code > $answer.$$; mv $answer.$$ $answer.code
  fi
  cat $answer.out; cat $answer.err >&2
  exit $(cat $answer.code)
}}
case " $* " in
  *" --dump-config "*) ask "$@" ;;
  " train "*|" evaluate "*) ;;
  *) ask "$@" ;;
esac
command=$1
echo "$*" >> calls
for word in "$@"; do
  case $word in
    folder=*) folder=${{word#folder=}} ;;
    *wait-here*) wait=yes ;;
  esac
done
if [ $command = evaluate ]; then
  echo '{{"kind":"evaluate","nll":5.8,"directions":[{{"direction":"xx-en","nll":5.8}}]}}'
  exit 0
fi
mkdir -p "$folder"
echo '{{"kind":"train","step":10,"nll":8.9,"seconds":1}}' > "$folder/metrics.jsonl"
echo '{{"kind":"train","step":300,"nll":5.9,"seconds":30}}' >> "$folder/metrics.jsonl"
echo weights > "$folder/step-300"
if [ "$wait" = yes ] && [ -f hold ]; then
  trap 'exit 75' TERM
  echo waiting > waiting
  while :; do sleep 0.05; done
fi
case $folder in
  *post-ln-18*|*post-ln-50*) exit 7 ;;
  *deepnet-50*) [ -f broken ] && {{ echo "error: broken for a test" >&2; exit $(cat broken); }} ;;
esac
exit 0
"""



class Folder(unittest.TestCase):
    """A prepared corpus and the script, in a folder that is the current one while a test runs."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        folder = Path(cls.shared.name)
        (folder / "answers").mkdir()
        words = ["prepare", "--config", "launch/recipes/lab/deep_gradients.textproto", "--root", str(ROOT)]
        words += ["--set", f"data.folder={folder}/data", "--set", "prepare.tokenizer.vocab_size=300"]
        subprocess.run([PROGRAM, *words], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def setUp(self):
        self.old = os.getcwd()
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)
        os.symlink(Path(self.shared.name) / "data", "data")
        os.symlink(Path(self.shared.name) / "answers", "answers")
        self.script("deepnet.sh", STAND_IN)

    def tearDown(self):
        os.chdir(self.old)
        self.folder.cleanup()

    def script(self, name, text):
        Path(name).write_text(text, encoding="utf-8")
        os.chmod(name, 0o755)

    def lab(self, *words):
        """(exit status, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = lab.main(list(words))
        return code, out.getvalue(), err.getvalue()

    def words(self, experiment, *more):
        words = ["run", experiment, "--data", "data", "--out", "out", "--program", "./deepnet.sh"]
        return [*words, "--recipes", str(ROOT / "launch" / "recipes"), "--set", "data.directions=", *more]

    def run_here(self, experiment, *more):
        return self.lab(*self.words(experiment, *more))

    def run_six(self, *more):
        return self.run_here("fig6", "--only", "deepnet", "--at", "6", *more)

    def ablation(self, *more):
        """DeepNet and Post-LN at 18 and 50 layers: four runs."""
        return self.run_here("ablation", "--only", "deepnet", "--only", "post-ln", "--at", "18", "--at", "50", *more)

    def result(self):
        return json.loads(Path("out/result.json").read_text(encoding="utf-8"))

    def names(self):
        return [cell["name"] for cell in self.result()["cells"]]

    def calls(self, command):
        lines = Path("calls").read_text(encoding="utf-8").rstrip("\n").split("\n") if Path("calls").exists() else []
        return sum(line.startswith(command) for line in lines)


class Run(Folder):
    def test_every_cell_is_run_and_divergence_is_a_result(self):
        code, out, err = self.ablation()
        self.assertEqual(code, 0, err)
        result = self.result()
        self.assertEqual((len(result["cells"]), self.calls("train"), self.calls("evaluate")), (4, 4, 2))
        for cell in result["cells"]:
            gone = cell["series"] == "post-ln"
            self.assertEqual(cell["status"], R.DIVERGED if gone else R.DONE, cell["name"])
            self.assertEqual((len(cell["steps"]), cell["seconds"]), (2, 30))
            self.assertEqual("test" in cell, not gone)
            self.assertGreater(cell["parameters"], 100000)
        self.assertGreater(result["data"]["word_frequency_nll"], 0)
        self.assertIn("2 diverged", Path("out/report.html").read_text(encoding="utf-8"))
        self.assertEqual(Path("out/runs.csv").read_text(encoding="utf-8").count("\n"), 5)
        self.assertEqual(Path("out/curves.csv").read_text(encoding="utf-8").count("\n"), 9)
        # What is done is not run again and leaves no weights.
        self.assertEqual(self.ablation("--set", "prepare.threads=7")[0], 0)  # which changes nothing of a run
        self.assertEqual((self.calls("train"), len(self.result()["cells"])), (4, 4))
        self.assertFalse(Path("out/cells/deepnet-18-s1/run").exists())
        self.assertTrue(Path("out/cells/deepnet-18-s1/metrics.jsonl").exists())
        # Other settings want another folder.
        code, _, err = self.ablation("--set", "optim.learning_rate=1e-3")
        self.assertEqual(code, 2)
        self.assertIn("is of other settings", err)
        self.assertEqual(self.calls("train"), 4)

    def test_shares_of_a_request_make_one_result(self):
        for share, trained in ("0/3", 2), ("2/3", 3), ("1/3", 4):
            self.assertEqual(self.ablation("--share", share)[0], 0)
            self.assertEqual((self.calls("train"), len(self.result()["cells"])), (trained, trained))
        self.assertEqual(self.result()["cells_planned"], 4)
        self.assertIn("--share: 3/3: write I/N", self.ablation("--share", "3/3")[2])

    def test_models_stay_where_they_are_asked_for(self):
        self.assertEqual(self.run_six("--keep-models")[0], 0)
        self.assertTrue(Path("out/cells/deepnet-6-s1/run/step-300").exists())

    def test_a_failed_run_is_named_and_tried_again(self):
        Path("broken").write_text("139", encoding="utf-8")
        self.assertEqual(self.ablation()[0], 1)  # a code that is none of the program's
        self.assertTrue(Path("out/cells/deepnet-50-s1/run/step-300").exists())  # the next try goes on from it
        Path("broken").write_text("6", encoding="utf-8")
        code, _, err = self.ablation()
        self.assertEqual(code, 6)  # as the run that failed
        self.assertIn("1 of 4 runs failed", err)
        self.assertIn("failed, exit code 6: error: broken for a test", err)
        self.assertIn("1 failed", Path("out/report.html").read_text(encoding="utf-8"))
        Path("broken").unlink()
        self.assertEqual(self.ablation()[0], 0)
        self.assertEqual(self.calls("train"), 6)

    def test_mistakes_of_cells_are_all_named_before_anything_runs(self):
        code, _, err = self.ablation("--set", "optim.learning_rate=-1")
        self.assertEqual(code, 2)
        self.assertIn("deepnet-18-s1: optim.learning_rate", err)
        self.assertIn("post-ln-50-s1: optim.learning_rate", err)
        self.assertEqual(self.calls("train"), 0)

    def test_without_a_corpus_it_says_how_to_prepare_one(self):
        code, _, err = self.run_six("--set", "data.folder=nowhere")
        self.assertEqual(code, 4)
        self.assertIn("deepnet prepare --config launch/recipes/quickstart.textproto", err)

    def test_commands_are_printed_and_not_run(self):
        code, out, err = self.run_six("--commands", "--set", "model.encoder_layers=3")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, "(?m)^.* model.encoder_layers=6 .* model.encoder_layers=3 ")  # the user's come last, and win
        self.assertIn("train --root . --config ", out)
        self.assertIn("--set folder=out/cells/deepnet-6-s1/run", out)
        self.assertEqual(self.calls("train"), 0)

    def test_a_plan_is_a_line_a_run_and_runs_nothing(self):
        code, out, err = self.run_six("--at", "12", "--plan")
        self.assertEqual(code, 0, err)
        number = r"[0-9,.]+"
        self.assertRegex(out, rf"deepnet-6-s1 +any +{number} +{number} +{number}e\+\d+\ndeepnet-12-s1 +any ")
        self.assertIn("2 runs, ", out)
        self.assertEqual(self.calls("train"), 0)
        self.assertFalse(Path("out").exists())

    def test_a_report_of_several_folders(self):
        code, out, err = self.run_six()
        self.assertEqual(code, 0, err)
        self.assertIn("- 1 run: 1 ended as planned.", out)
        self.assertIn("out/report.html\n", out)
        Path("out/report.html").unlink()
        code, out, _ = self.lab("report", "out", "--html", "all.html")
        self.assertEqual(code, 0)
        self.assertIn("- 1 run: 1 ended as planned.", out)
        self.assertIn('<section id="fig6">', Path("all.html").read_text(encoding="utf-8"))
        self.assertEqual(self.lab("report", "nowhere")[0], 4)

    def test_a_damaged_result_is_named_by_its_field_and_never_overwritten(self):
        self.assertEqual(self.run_six()[0], 0)
        good = self.result()

        def changed(*path, to=None):
            result = json.loads(json.dumps(good))
            at = result
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] = to
            return json.dumps(result)

        for text, told in (
            ("{}", ": experiment: must be text"),
            ("[1,2]", ": must be an object"),
            ("{", ": no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
            ("[" * 100000, ": no JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
            (changed("size", to="huge"), ": fig6: comes in the size small and paper only: the paper has no such experiment"),
            (changed("data", "languages", to=7), ": data: languages: must be a list"),
            (changed("cells", 0, "x", to=0), ": cells[0]: x: must be a number above 0"),
            (changed("cells", 0, "steps", 1, "nll", to=[]), ": cells[0]: steps[1]: nll: must be a number"),
            (changed("cells", 0, "test", "directions", 0, "direction"), ": cells[0]: test: directions[0]: direction: must be text"),
            (changed("cells", 0, "run", "optim", "schedule", to={}), ": cells[0]: run: optim: schedule: must be text"),
        ):
            Path("out/result.json").write_text(text, encoding="utf-8")
            for words in (["report", "out"], self.words("fig6", "--only", "deepnet", "--at", "6")):
                self.assertEqual(self.lab(*words), (4, "", f"error: 'out/result.json'{told}\n"))
            self.assertEqual(Path("out/result.json").read_text(encoding="utf-8"), text)
        Path("out/result.json").unlink()
        cell, other = Path("out/cells/deepnet-6-s1/result.json"), json.dumps({**good["cells"][0], "name": "../../x"})
        for text, told in (("[]", ": must be an object"), ("{", ": no JSON: "), (other, ": is of another run, '../../x'")):
            cell.write_text(text, encoding="utf-8")
            code, _, err = self.run_six()
            self.assertEqual((code, err.count("\n")), (4, 1))
            self.assertIn(f"error: '{cell}'{told}", err)
        cell.write_text(json.dumps({**good["cells"][0], "seed": 10**9}), encoding="utf-8")
        self.assertIn("--out: out: fig6 with 1000000000 seeds", self.run_six()[2])
        self.assertEqual(self.calls("train"), 1)

    def test_a_program_that_answers_something_else_is_named(self):
        dumps = 'case " $* " in *" --dump-config "*) echo "folder: \\"a\\" '
        for script, told in (
            ('echo "$@"', "its train --dump-config: no text format of protobuf: unexpected '-'"),
            ("true", "its train --dump-config: folder: must be text"),
            (dumps + 'train: 7" ;; esac', "its train --dump-config: train: must be an object"),
            (dumps + '" ;; *" plan "*) echo "[]" ;; esac', "its plan: must be an object"),
        ):
            self.script("answers.sh", f"#!/bin/sh\n{script}\n")
            code, _, err = self.run_six("--plan", "--program", "./answers.sh")
            self.assertEqual((code in (2, 4), err.count("\n")), (True, 1), err)
            self.assertIn(f"error: --program: ./answers.sh: {told}", err)

    def test_a_stop_reaches_the_runs_and_the_same_command_goes_on(self):
        Path("hold").write_text("", encoding="utf-8")
        words = self.words("fig6", "--only", "deepnet", "--at", "6", "--at", "12", "--jobs", "2")
        words += ["--set", "name=wait-here"]  # overridden by the run's own, but the script sees it
        started = subprocess.Popen([sys.executable, lab.__file__, *words], stderr=subprocess.PIPE, encoding="utf-8")
        deadline = time.monotonic() + 120
        while not Path("waiting").exists() and time.monotonic() < deadline and started.poll() is None:
            time.sleep(0.05)
        started.send_signal(signal.SIGINT)
        err = started.communicate(timeout=120)[1]
        self.assertEqual(started.returncode, 75, err)
        self.assertIn("the same command goes on from here", err)
        self.assertEqual(self.names(), [])
        Path("hold").unlink()
        code, _, err = self.lab(*words)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.names(), ["deepnet-6-s1", "deepnet-12-s1"])


class Request(Folder):
    def test_a_method_that_the_figure_has_not_joins_those_of_the_folder(self):
        self.assertEqual(self.run_six()[0], 0)
        code, _, err = self.run_here("fig6", "--only", "branch-norm", "--at", "6", "--at", "10")
        self.assertEqual(code, 0, err)
        self.assertIn("fig6: 3 runs, 1 of them done", err)
        self.assertEqual(self.calls("train"), 3)
        self.assertEqual(self.names(), ["deepnet-6-s1", "branch-norm-6-s1", "branch-norm-10-s1"])
        self.assertIn("BranchNorm", Path("out/report.html").read_text(encoding="utf-8"))
        # Both requests together make this report.
        first, second = self.result()["command"].split("\n")
        self.assertIn("--only deepnet", first)
        self.assertIn("--only branch-norm --at 6 --at 10", second)
        # What joins other settings, and a folder of another experiment, are refused.
        code, _, err = self.run_here("fig6", "--only", "keel", "--at", "6", "--set", "optim.learning_rate=1e-3")
        self.assertEqual(code, 2)
        self.assertIn("deepnet-6-s1 is of other settings", err)
        code, _, err = self.run_here("ablation", "--only", "neither", "--at", "6")
        self.assertEqual(code, 2)
        self.assertIn("out holds fig6, size small; name another folder", err)
        self.assertEqual(self.calls("train"), 3)

    def test_more_seeds_join_those_of_the_folder(self):
        self.assertEqual(self.run_six("--seeds", "2")[0], 0)
        self.assertEqual(self.run_here("fig6", "--only", "post-ln", "--at", "6", "--seeds", "1")[0], 0)
        self.assertEqual(self.names(), ["deepnet-6-s1", "deepnet-6-s2", "post-ln-6-s1"])
        self.assertEqual(self.result()["seeds"], 2)

    def test_the_launcher_starts_training_and_one_process_scores(self):
        self.script("launch.sh", '#!/bin/sh\necho "$1 $3" >> launched; shift; exec "$@"\n')
        code, _, err = self.run_six("--set", "cluster.devices_per_node=8", "--launcher", "./launch.sh {ranks}")
        self.assertEqual(code, 0, err)
        self.assertEqual(Path("launched").read_text(encoding="utf-8"), "8 train\n1 evaluate\n")
        self.assertNotIn("threads_per_rank", Path("calls").read_text(encoding="utf-8"))
        self.assertIn("1 at once, by the launcher", err)
        # The exact command has every flag that changes what runs.
        command = self.result()["command"]
        for words in ("--recipes /", "--program ./deepnet.sh", "--data data", "--launcher './launch.sh {ranks}'"):
            self.assertIn(words, command)
        Path("launched").unlink()
        self.assertEqual(self.run_six("--out", "other", "--launcher", "./launch.sh 2")[0], 0)
        self.assertEqual(Path("launched").read_text(encoding="utf-8"), "2 train\n")
        self.assertEqual(self.calls("evaluate"), 2)

    def test_runs_of_several_ranks_want_a_launcher(self):
        code, _, err = self.run_six("--set", "cluster.devices_per_node=8")
        self.assertEqual(code, 2)
        self.assertIn("--launcher: required: runs of 8 ranks", err)
        self.assertEqual(self.calls("train"), 0)

    def test_commands_and_list_say_how_many_ranks(self):
        code, out, err = self.run_here("table2", "--size", "paper", "--commands", "--launcher", "mpirun -n {ranks}")
        self.assertEqual(code, 0, err)
        self.assertIn("# 128 ranks a run, one for `evaluate`\n", out)
        self.assertIn("mpirun -n 128 ./deepnet.sh train", out)
        self.assertIn("mpirun -n 1 ./deepnet.sh evaluate", out)
        _, out, _ = self.lab("list", "--recipes", str(ROOT / "launch" / "recipes"))
        self.assertRegex(out, r"fig8 +Figure 8 +\d+ +\d+ +128 ")
        self.assertRegex(out, r"table1 +Table 1 +\d+ +\d+ +8 ")
        self.assertRegex(self.lab("list", "--recipes", "nowhere")[1], r"fig8 +Figure 8 +\d+ +\d+ +\? ")

    def test_weights_of_others_are_only_scored(self):
        words = ("--size", "paper", "--only", "M2M-100")
        code, _, err = self.run_here("table3", *words)
        self.assertEqual(code, 5)
        self.assertIn("deepnet checkpoint import FOLDER --output runs/m2m100_12b", err)
        os.mkdir("imported")
        code, _, err = self.run_here("table3", *words, "--m2m100", "imported")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.calls("train"), 0)
        words = "evaluate --root . --checkpoint imported --json --data data --split test --any-to-any"
        self.assertIn(words, Path("calls").read_text(encoding="utf-8"))
        self.assertEqual(self.names(), ["m2m-100"])
        self.assertTrue(Path("imported").exists())

    def test_flags_that_make_no_sense_are_refused(self):
        self.assertEqual(self.run_six("--seeds", "-1")[0], 2)
        self.assertEqual(self.run_six("--at", "deep")[0], 2)
        self.assertEqual(self.run_six("--jobs", "-1")[0], 2)
        self.assertEqual(self.run_six("--seeds", "1000000000")[::2], (2, "error: fig6 with 1000000000 seeds: from 1 to 1000\n"))
        self.assertEqual(self.run_six("--launcher", "'")[::2], (2, "error: --launcher: ': No closing quotation\n"))

    def test_a_recipe_of_another_form_is_named(self):
        recipe = "recipes" / Path(E.make_experiment("fig8", "paper").cells[0].recipe)
        recipe.parent.mkdir(parents=True)
        for text, told in (("cluster {", "no text format of protobuf: "), ("cluster: 7", "cluster: must be an object")):
            recipe.write_text(text, encoding="utf-8")
            with self.assertRaisesRegex(E.UserError, f"'{recipe}': {told}"):
                runs.paper_ranks("fig8", "recipes")


class Children(unittest.TestCase):
    def child(self, script, scoring=False):
        with tempfile.TemporaryDirectory() as folder:
            child = runs.Child(None, ["sh", "-c", script], Path(folder), scoring, [])
            child.process.wait()
            return child.code(), {path.name: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}

    def test_a_signal_is_the_exit_code(self):
        self.assertEqual(self.child("kill -KILL $$")[0], 128 + 9)

    def test_output_and_log_are_two_files(self):
        code, files = self.child("echo result; echo words >&2", scoring=True)
        self.assertEqual((code, files), (0, {"evaluation.json": "result\n", "log.txt": "words\n"}))

    def asked(self, answer, function, *arguments):
        """Calls a function whose questions to the program get this answer. Returns what it returns, and the questions."""
        words, ask = [], runs.ask
        runs.ask = lambda question, shape: words.append(question) or (0, answer, "")
        try:
            return function(*arguments), words
        finally:
            runs.ask = ask

    def test_what_a_run_costs_is_that_of_its_plan(self):
        stages = [{"memory": {"total": str(100 + i), "weights": "400"}, "flops_per_step": 5.0} for i in range(4)]
        plan = {"stages": stages, "data_parallel_size": 2, "pipeline_parallel_size": 1, "parameters": "150"}
        run = {"train": {"steps": 3}, "model": {"vocabulary_size": 9}}
        for pipeline, parameters in (1, 200), (2, 150):
            job = runs.Job(E.Cell("a", "deepnet", 6.0, "a.textproto", []), [], run)
            self.asked({**plan, "pipeline_parallel_size": pipeline}, runs.plan, runs.Setup("deepnet", "out"), [job], 7)
            self.assertEqual((job.parameters, job.rank_bytes, job.bytes), (parameters, 103, runs.PROGRAM_BYTES + 406))
            self.assertEqual(job.flops, 3 * 4 * 5.0)

    def test_word_frequencies_are_of_the_sentences_that_runs_are_scored_on(self):
        run = {"data": {"folder": "c", "directions": ["de-en", "fr-en"]}, "train": {"validate_sentences": 7}}
        experiment = E.Experiment("fig6", "small", "", "", "", evaluate=["--sentences", "9"])
        setup = runs.Setup("deepnet", "out", root="r")
        found, (words,) = self.asked({"pairs": 1}, runs.describe_corpus, experiment, setup, [runs.Job(None, [], run)])
        self.assertEqual(found, {"folder": "c", "pairs": 1})
        expected = "deepnet lab corpus --root r --data c --direction de-en --direction fr-en --dev-sentences 7 --test-sentences 9"
        self.assertEqual(" ".join(words), expected)

    def test_a_run_starts_where_its_memory_fits_beside_the_others(self):
        for sizes, started in ([5, 5], 2), ([6, 5], 1), ([20, 1], 1), ([3, 3, 3], 2):
            pool = runs.Pool.__new__(runs.Pool)
            pool.waiting = [runs.Job(E.Cell("", "", 1.0, "", []), [], bytes=size) for size in sizes]
            pool.running, pool.stopping = [], False
            pool.jobs_at_once, pool.bytes = 2, 10
            pool.begin = lambda job, scoring, commands, pool=pool: pool.running.append(types.SimpleNamespace(job=job))
            pool.start_all()
            self.assertEqual(len(pool.running), started, sizes)

    def test_as_many_as_cores_and_memory_allow(self):
        setup, jobs = runs.Setup("deepnet", "out"), [runs.Job(None, [], bytes=3) for _ in range(8)]
        cores, memory = runs.usable_cores, runs.host_bytes
        try:
            for count, room, wanted, limits in (
                (4, 125, 0, (4, 1)),
                (16, 125, 0, (8, 2)),
                (16, 10, 0, (2, 8)),
                (16, 1, 0, (1, 16)),
                (4, 125, 2, (2, 2)),
            ):
                runs.usable_cores, runs.host_bytes = lambda c=count: c, lambda r=room: r
                at_once, _, threads = runs.limits_of(setup, jobs, wanted)
                self.assertEqual((at_once, threads), limits)
        finally:
            runs.usable_cores, runs.host_bytes = cores, memory
        setup.launcher = ["mpirun"]
        self.assertEqual(runs.limits_of(setup, jobs, 0), (1, float("inf"), 0))


class Paper(unittest.TestCase):
    def test_every_run_of_the_published_size_can_be_planned(self):
        """One method at each depth: what a method changes of the plan is little."""
        for name in E.experiment_names()[:-1]:
            experiment = E.make_experiment(name, "paper")
            first = {(cell.group, cell.x): cell for cell in reversed(experiment.cells)}
            experiment.cells = list(first.values())
            setup = runs.Setup(PROGRAM, "out", root=str(ROOT))
            jobs = runs.resolve(experiment, setup)
            runs.plan(setup, jobs, runs.UNKNOWN_VOCABULARY)
            for job in jobs:
                self.assertGreater(job.parameters, 10**6, job.cell.name)
                self.assertLess(job.rank_bytes, 80 * runs.GIB if not job.cell.checkpoint else 2**40, job.cell.name)


class Instruments(unittest.TestCase):
    def test_of_a_run_without_any_it_says_how_to_get_them(self):
        err = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(err):
            self.assertEqual(lab.main(["instruments", folder]), 4)
        self.assertIn("instruments.every_steps", err.getvalue())


if __name__ == "__main__":
    unittest.main()
