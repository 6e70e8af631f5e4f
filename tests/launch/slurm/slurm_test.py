"""The jobs of launch/slurm on a real Slurm of four pretend nodes: whatever happens to a job on its way, the weights at
its end are those of a run that nobody disturbed. DEEPNET_PROGRAM names the program. Needs root."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
SCRIPTS = sorted((ROOT / "launch/slurm").glob("*.sbatch"))
NODES = 4
INTERVAL = 10  # steps between checkpoints
LIMIT = 120  # seconds that anything may take

RUN = f"""# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model {{ encoder_layers: 2 decoder_layers: 2 d_model: 32 ffn_dim: 64 num_heads: 2 residual: DEEPNORM dropout: 0.1 }}
data {{ folder: "corpus" max_sentence_tokens: 150 microbatch {{ max_target_tokens: 300 max_sentences: 16 }}
       global_microbatches: 4 }}
optim {{ learning_rate: 1e-3 warmup_steps: 4 virtual_replicas: 2 }}
compute {{ device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }}
train {{ validate_every_steps: 20 validate_sentences: 2 log_every_steps: 1
        checkpoint_every_steps: {INTERVAL} }}
decode {{ beam_size: 2 max_tokens: 8 }}
prepare {{ table {{ file: "udhr.tsv" languages: "de" languages: "fr" }} tokenizer {{ vocab_size: 300 }} }}
"""

# Four nodes share a machine: nobody binds or burns a core.
SITE = f"""deepnet={PROGRAM}
container=()
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"""


def call(*words):
    done = subprocess.run([str(w) for w in words], encoding="utf-8", capture_output=True, cwd=ROOT, timeout=LIMIT)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def weights(text):
    """The hash of the run's weights; `text` is all that it said."""
    return (re.findall(r"weights ([0-9a-f]{16})", text) or ["none"])[-1]


def pids(*arguments):
    """The ranks that were started with `arguments`, on all pretend nodes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if words[0] == PROGRAM.encode() and {str(argument).encode() for argument in arguments} <= set(words):
            found.append(int(path.parent.name))
    return found


class SlurmTest(unittest.TestCase):
    """Four nodes, a corpus, and the weights of the run that one process makes of it."""

    steps = 200

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="deepnet_slurm_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "run.textproto").write_text(RUN, encoding="utf-8")
        (cls.folder / "site.sh").write_text(SITE, encoding="utf-8")
        shutil.copy(ROOT / "tests/trainer/data/testdata/udhr.tsv", cls.folder)
        cls.config = ["--config", cls.folder / "run.textproto", "--root", cls.folder, "--set", f"train.steps={cls.steps}"]
        call(PROGRAM, "prepare", *cls.config)
        alone = subprocess.run(
            [PROGRAM, "train", *map(str, cls.config), "--set", "folder=alone"], encoding="utf-8", capture_output=True, check=True
        )
        cls.undisturbed = weights(alone.stderr)
        os.environ["SB_DIR"] = str(cls.folder / "box")
        os.environ["DEEPNET_SITE"] = str(cls.folder / "site.sh")
        os.environ["SB_CONF"] = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
        cls.addClassCleanup(cls.box, "down")
        cls.box("up", NODES)

    @staticmethod
    def box(*words):
        return call(ROOT / "tests/launch/slurm/slurm_box.sh", *words)

    def stop(self):
        """The ranks stand still: however fast the machine, nothing happens. Returns what lets them go on."""
        ranks = pids(*self.config, f"folder={self.run_folder}")

        def tell(sign):
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)

        tell(signal.SIGSTOP)
        return lambda: tell(signal.SIGCONT)

    def asked_to_stop(self):
        """If SIGUSR1 waits for a rank that stands still."""
        statuses = [Path(f"/proc/{p}/status").read_text(encoding="utf-8") for p in pids(*self.config, f"folder={self.run_folder}")]
        waiting = [int(re.search(r"ShdPnd:\s*(\w+)", status)[1], 16) for status in statuses]
        return any(mask >> (signal.SIGUSR1 - 1) & 1 for mask in waiting)

    @contextlib.contextmanager
    def stopped_at(self, pattern):
        """The ranks stand still from when the log has `pattern` until the end of the block."""
        self.await_line(pattern)
        go_on = self.stop()
        yield
        go_on()

    def submit(self, *sbatch, script="launch/slurm/train.sbatch", arguments=(), name="train"):
        """Sets `job` to the number of a job that trains in `run_folder`, a folder of the test, and `log` to its log."""
        self.run_folder = self.id().split(".")[-1]
        run = [*self.config, "--set", f"folder={self.run_folder}", "--log-seconds", 0, *arguments]
        self.start(name, script, *sbatch, arguments=run)

    def start(self, name, script, *sbatch, arguments=()):
        options = ["--parsable", "--job-name", name, "--output", self.folder / "%x_%j.log"]
        if script.endswith("train.sbatch"):
            options += ["--nodes", NODES, "--ntasks-per-node", 1]
        self.job = self.box("run", "sbatch", *options, *sbatch, script, *arguments).strip()
        self.log = self.folder / f"{name}_{self.job}.log"
        self.addCleanup(self.box, "run", "scancel", "--quiet", self.job)  # after a failure it may still run

    def no_pmix(self):
        """A site's settings that hide PMIx from the job."""
        site = self.folder / "no_pmix.sh"
        site.write_text(SITE + 'srun() { [[ $1 == --mpi=list ]] || exec srun "$@"; }\n', encoding="utf-8")
        return site

    def plan(self):
        """A job script for two nodes, by the planner."""
        script = self.folder / "planned.sbatch"
        sets = ["cluster.nodes=2", "parallel.data_parallel_size=1", f"folder={self.id().split('.')[-1]}"]
        call(PROGRAM, "plan", *self.config, *[w for s in sets for w in ("--set", s)], "--sbatch", script)
        return script

    def rank_on(self, node):
        """The process of the rank on that node in the job's latest start."""
        ranks = pids(*self.config, f"folder={self.run_folder}")
        return next(p for p in ranks if f"SLURMD_NODENAME={node}\0" in Path(f"/proc/{p}/environ").read_text(encoding="utf-8"))

    def steps_lost(self):
        """Of every restart, how many of the steps that the log has before it were taken again."""
        starts = re.split(r"restart \d+: \d+ ranks on", self.said())[1:]
        last = [max(map(int, re.findall(r" step (\d+)  loss", start)), default=0) for start in starts]
        begin = [int((re.findall(r"continuing at step (\d+)", start) or [0])[0]) for start in starts]
        return [end - again for end, again in zip(last, begin[1:])]

    def said(self):
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def await_line(self, pattern, times=1):
        """Waits until the log has `pattern` so often."""
        end = time.monotonic() + LIMIT
        while len(re.findall(pattern, self.said())) < times:
            self.assertLess(time.monotonic(), end, f"'{pattern}' did not come\n{self.said()}")
            time.sleep(0.01)

    def state(self, field="JobState"):
        return re.search(rf"(?m)^ +(?:\S+ )*{field}=(\S+)", self.box("run", "scontrol", "show", "job", self.job))[1]

    def await_state(self, states, limit=LIMIT):
        end = time.monotonic() + limit
        while self.state() not in states:
            self.assertLess(time.monotonic(), end, f"{self.state()}\n{self.said()}")
            time.sleep(0.2)

    def await_end(self, state="COMPLETED", limit=LIMIT):
        self.await_state({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, limit)
        self.assertEqual(self.state(), state, self.said())

    def goes_on_undisturbed(self, restarts=1, lost=INTERVAL):
        """The job goes back into the queue and ends with the right weights, however soon it starts again."""
        end = time.monotonic() + LIMIT
        while int(self.state("Restarts")) < restarts or self.state() == "COMPLETING":
            self.assertLess(time.monotonic(), end, f"{self.state()}\n{self.said()}")
            time.sleep(0.2)
        self.box("release", self.job)
        self.ends_undisturbed(restarts, lost)

    def ends_undisturbed(self, restarts=1, lost=INTERVAL):
        self.await_end()
        self.assertEqual(weights(self.said()), self.undisturbed, self.said())
        self.assertEqual(self.state("Restarts"), str(restarts), self.said())
        self.assertLessEqual(max(self.steps_lost(), default=0), lost, self.said())


class JobsTest(SlurmTest):
    steps = 60  # each is stopped in its twenties

    def test_a_job_that_is_told_to_stop_saves_and_goes_on_as_the_same_job(self):
        self.submit()
        with self.stopped_at(r"step 2\d "):
            self.box("run", "scancel", "--signal=USR1", "--batch", self.job)
        self.goes_on_undisturbed(lost=0)
        self.assertIn("ended with code 75", self.said())
        metrics = [json.loads(line) for line in (self.folder / self.run_folder / "metrics.jsonl").open(encoding="utf-8")]
        restarts = [record["restarts"] for record in metrics if record["kind"] == "train"]
        self.assertEqual((restarts[0], restarts[-1]), (0, 1))
        self.assertIn(f"job {self.job}, restart 1", self.said())

    def test_a_job_that_somebody_cancels_saves_and_does_not_rise_again(self):
        self.submit()
        with self.stopped_at(r"step 2\d "):
            self.box("run", "scancel", self.job)
        self.await_line("not put back into the queue")
        self.await_state({"CANCELLED"})
        self.assertIn("stopped and saved at step", self.said())

    def test_after_a_rank_is_killed_the_job_goes_on_without_its_node(self):
        name = """-o'brien "x" [a]* JobState=FAILED \\ 50% $(ls) two  words"""  # any will do
        self.submit("--nodes", 3, name=name)
        with self.stopped_at(r"step 2\d "):
            os.kill(self.rank_on("n2"), signal.SIGKILL)
        self.goes_on_undisturbed(lost=2 * INTERVAL)
        self.assertEqual((self.state("NodeList"), self.state("ExcNodeList")), ("n[1,3-4]", "n2"), self.said())
        logs = sorted((self.folder / f"{name}_{self.job}_ranks").glob("*_rank-1.log"))
        self.assertRegex(logs[0].read_text(encoding="utf-8"), r"^.* n2: .*\n(.*\n)*.* n2: ended with code 137\n$")
        self.assertRegex(logs[1].read_text(encoding="utf-8"), r" n3: ended with code 0\n$")

    def test_a_start_that_slurm_could_not_make_is_no_success(self):
        # srun ends with 0 where a node cannot launch its task.
        (self.folder / "no_start.sh").write_text(SITE + f"""
srun() {{
  [[ $* != *rank.sh* || -e {self.folder}/started ]] || {{ touch {self.folder}/started; return 0; }}
  command srun "$@"
}}
""", encoding="utf-8")
        self.submit("--export", f"ALL,DEEPNET_SITE={self.folder}/no_start.sh")
        self.ends_undisturbed(restarts=0)
        self.assertIn("no rank was started; trying again", self.said())

    def test_where_slurm_has_no_pmix_ranks_meet_by_tcp_with_the_same_weights(self):
        self.submit("--export", f"ALL,DEEPNET_SITE={self.no_pmix()}", "--nodes", 2, "--ntasks-per-node", 2)
        self.ends_undisturbed(restarts=0)
        self.assertRegex(self.said(), r"4 ranks on n\S+: srun --mpi=none ")
        self.assertRegex(self.said(), r"4 ranks by TCP \(Slurm's variables\), met at n\d:")

    def test_ranks_by_srun_translate_what_rank_zero_reads(self):
        with open(self.folder / "udhr.tsv", encoding="utf-8") as table:
            text = "".join(line.split("\t")[1] + "\n" for line in table)
        words = [PROGRAM, "translate", "--root", self.folder, "--checkpoint", "alone", "--from", "en", "--to", "de"]
        words += ["--sample", "1", "--scores"]
        alone = subprocess.run(words, input=text, encoding="utf-8", capture_output=True, check=True).stdout
        self.assertEqual(alone.count("\n"), text.count("\n"))
        srun = f"source {self.folder}/site.sh; export SLURM_PMIX_FENCE=tree; exec srun -N 3 -n 3 --input=0 "
        for kind in ("pmix", "none"):
            box = [ROOT / "tests/launch/slurm/slurm_box.sh", "run", "bash", "-c", f'{srun} --mpi={kind} "$@"', "srun"]
            ranks = subprocess.run([*map(str, box + words)], input=text, encoding="utf-8", capture_output=True, cwd=ROOT)
            self.assertEqual((ranks.returncode, ranks.stdout), (0, alone), ranks.stderr)
            self.assertIn("3 ranks by " + ("MPI" if kind == "pmix" else "TCP"), ranks.stderr)

    def test_a_share_of_the_laboratory_that_goes_on_later_deletes_nothing_where_it_was_submitted(self):
        here = self.folder / "submitted here"
        here.mkdir()
        (here / "failures").write_text("mine", encoding="utf-8")
        run = """scontrol() { :; }; srun() { :; }; source "$DEEPNET_HOME/launch/slurm/run.sh"
                 pass_signals() { return 75; }; requeue() { echo requeued; }; run_lab fig6"""
        job = {"DEEPNET_HOME": ROOT, "SLURM_JOB_ID": 1, "SLURM_JOB_NAME": "lab", "SLURM_NTASKS": 1}
        done = subprocess.run(["bash", "-c", run], cwd=here, env={**os.environ, **{k: str(v) for k, v in job.items()}},
                              encoding="utf-8", capture_output=True)  # fmt: skip
        self.assertEqual((done.returncode, done.stdout.endswith("requeued\n")), (75, True), done.stderr)
        self.assertEqual([path.name for path in here.iterdir()], ["failures"])

    def test_shellcheck_and_sbatch_accept_every_script(self):
        planned = self.plan()
        call("shellcheck", "-x", *sorted((ROOT / "launch/slurm").glob("*.sh")), *SCRIPTS, planned, "launch/job.sh")
        for script in [*SCRIPTS, planned]:
            self.box("run", "sbatch", "--test-only", script, "--config", "run.textproto")

    def test_tasks_of_an_array_take_an_item_or_a_share_each(self):
        shutil.copytree(self.folder / "alone", self.folder / "scored")
        os.environ["DEEPNET_ITEMS"] = "de-fr fr-de"
        arguments = ["--root", self.folder, "--checkpoint", "scored", "--direction", "{item}", "--split", "dev"]
        self.start("evaluate", "launch/slurm/evaluate.sbatch", "--array", "0-1", "--ntasks", 2, "--output", self.folder / "evaluate_%a", arguments=arguments)
        for task, direction in enumerate(os.environ["DEEPNET_ITEMS"].split()):
            self.log = self.folder / f"evaluate_{task}"
            self.await_line("ended with code 0")
            self.assertIn("2 ranks by MPI", self.said())
            self.assertRegex(self.said(), rf"(?m)^{direction} .*\d")
        self.start("prepare", "launch/slurm/prepare.sbatch", "--ntasks", 2, arguments=self.config)
        self.await_end()
        self.assertIn("already prepared from the same files", self.said())
        # Without a corpus it ends at once.
        lab = ["--array", "0-1", "--output", self.folder / "lab_%a"]
        self.start("lab", "launch/slurm/lab.sbatch", *lab, arguments=["fig6", "--root", self.folder / "none"])
        for task in range(2):
            self.log = self.folder / f"lab_{task}"
            self.await_line(rf"lab.py run fig6 .*--share {task}/2 ")


class FaultsTest(SlurmTest):
    """What takes longer: Slurm looks after its nodes and limits at leisure."""

    def fail_node(self, node, go_on):
        self.box("fail", node)
        self.addCleanup(self.box, "back", node)
        began = time.monotonic()
        go_on()
        while int(self.state("Restarts")) == 0 and self.state() != "COMPLETING":
            self.assertLess(time.monotonic(), began + LIMIT, f"{self.state()}\n{self.said()}")
            time.sleep(0.2)
        self.report("node lost", time.monotonic() - began)
        self.goes_on_undisturbed(lost=2 * INTERVAL)
        self.assertNotIn(node, self.box("run", "scontrol", "show", "hostnames", self.state("NodeList")).split())
        print(f"{self.id()}: steps lost {self.steps_lost()}", flush=True)

    def report(self, what, seconds):
        print(f"{self.id()}: {what} after {seconds:.1f} s", flush=True)

    def test_a_node_that_dies_in_a_step_is_replaced(self):
        self.submit("--nodes", 3)
        self.await_line("saved step 20:")
        self.await_line(r"step 2[5-9] ")
        self.fail_node("n2", self.stop())

    def test_a_node_that_dies_in_a_save_is_replaced(self):
        self.submit("--nodes", 3)
        run = self.folder / self.run_folder

        def saving():
            return list(run.glob("step-*.deepnet-unfinished"))

        end = time.monotonic() + LIMIT
        while True:
            self.assertLess(time.monotonic(), end, self.said())
            if not saving():
                continue
            go_on = self.stop()
            if saving():
                break
            go_on()  # it was committed meanwhile
        self.fail_node("n2", go_on)

    def test_a_node_that_dies_in_a_validation_is_replaced(self):
        # Translations of all 150 pieces: it takes long.
        slow = ["--set", "decode.max_tokens=150", "--set", "decode.beam_size=5"]
        self.submit("--nodes", 3, arguments=slow)
        end = time.monotonic() + LIMIT
        self.await_line("validate  25%")
        while True:
            self.assertLess(time.monotonic(), end, self.said())
            go_on = self.stop()
            if re.search(r"validate +\d+%.*\s*$", self.said()):
                break
            go_on()
            self.await_line("validate  25%", times=len(re.findall("validate  25%", self.said())) + 1)
        self.fail_node("n2", go_on)

    def test_a_job_that_is_preempted_comes_back(self):
        self.submit()
        with self.stopped_at(r"step 2\d "):
            urgent = ["--partition", "urgent", "--exclusive", "--nodes", NODES, "--output", "/dev/null", "--wrap", "sleep 3"]
            self.box("run", "sbatch", *urgent)
            began = time.monotonic()
            self.await_state({"COMPLETING", "PENDING"})
        self.report("preempted", time.monotonic() - began)
        self.goes_on_undisturbed(lost=INTERVAL)
        print(f"{self.id()}: steps lost {self.steps_lost()}", flush=True)

    def test_other_codes_and_too_many_failures_end_the_job(self):
        self.submit(arguments=["--set", "model.width=3"])
        self.await_end("FAILED")
        self.assertEqual((self.state("ExitCode"), self.state("Restarts")), ("2:0", "0"), self.said())
        self.submit("--export", "ALL,DEEPNET_RETRIES=0")
        with self.stopped_at(r"step 2\d "):
            os.kill(self.rank_on("n2"), signal.SIGKILL)
        self.await_end("FAILED")
        self.assertIn("failed too often in a row (DEEPNET_RETRIES); suspected: n2", self.said())
        self.assertEqual((self.state("ExitCode"), self.state("Restarts")), ("9:0", "0"), self.said())

    def test_a_planned_script_trains_as_it_is(self):
        self.start("planned", str(self.plan()))
        self.ends_undisturbed(restarts=0)
        self.assertRegex(self.said(), r"2 ranks on n.*--set cluster.nodes=2.*pipeline_parallel_size=2")

    def loses_a_rank(self, site, launcher):
        self.submit("--export", f"ALL,DEEPNET_SITE={site}", "--nodes", 3)
        with self.stopped_at(r"step 2\d "):
            os.kill(self.rank_on("n2"), signal.SIGKILL)
        self.goes_on_undisturbed(lost=2 * INTERVAL)
        self.assertIn(f"ranks on n[1,3-4]: {launcher}", self.said())

    def test_mpirun_starts_the_ranks_where_the_site_says_so(self):
        (self.folder / "mpirun.sh").write_text(SITE + "launcher=(mpirun)\n", encoding="utf-8")
        self.loses_a_rank(self.folder / "mpirun.sh", "mpirun")

    def test_after_a_rank_is_killed_ranks_by_tcp_go_on_without_its_node(self):
        self.loses_a_rank(self.no_pmix(), "srun --mpi=none")

    def test_a_rank_that_stands_still_is_noticed_and_its_node_left_out(self):
        self.submit("--nodes", 3, arguments=["--set", "parallel.comm_timeout_seconds=10"])
        self.await_line(r"step 2\d ")
        os.kill(self.rank_on("n2"), signal.SIGSTOP)
        began = time.monotonic()
        self.await_line("ended with code [89]")
        self.report("stopped rank noticed", time.monotonic() - began)
        self.await_line("another try without: n2\n")
        self.goes_on_undisturbed(lost=2 * INTERVAL)
        self.assertEqual((self.state("NodeList"), self.state("ExcNodeList")), ("n[1,3-4]", "n2"), self.said())
        print(f"{self.id()}: steps lost {self.steps_lost()}", flush=True)

    def test_a_run_longer_than_its_time_limit_is_a_chain_of_starts(self):
        self.submit("--time", 1)
        taken = r" step \d+  loss"
        for start in (1, 2):
            # Slurm looks at limits every 30 s; until it asks for the end, steps are not to be taken.
            self.await_line(taken, times=len(re.findall(taken, self.said())) + 1)
            began = time.monotonic()
            go_on = self.stop()
            end = began + 40
            while not self.asked_to_stop() and time.monotonic() < end:
                time.sleep(0.1)
            go_on()
            self.report(f"start {start} asked to stop", time.monotonic() - began)
            self.await_line("ended with code 75", times=start)
            began = time.monotonic()
            self.await_line("restart .* ranks on", times=start + 1)
            self.report("put back, started again", time.monotonic() - began)
        self.await_end(limit=8 * LIMIT)  # Slurm goes on asking; a slow machine takes more starts
        restarts = int(self.state("Restarts"))
        self.assertEqual(len(re.findall("ended with code 75", self.said())), restarts, self.said())
        self.assertGreaterEqual(restarts, 2)
        self.ends_undisturbed(restarts, lost=0)


del SlurmTest  # it has no tests of its own


if __name__ == "__main__":
    unittest.main()
