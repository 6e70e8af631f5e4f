"""The jobs of launch/slurm on a real Slurm of four pretend nodes: whatever happens to a job on its way, the weights at
its end are those of a run that nobody disturbed. DEEPNET_PROGRAM names the program. Needs root."""

import contextlib
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
train {{ steps: 200 validate_every_steps: 20 validate_sentences: 2 log_every_steps: 1
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
    done = subprocess.run([str(w) for w in words], text=True, capture_output=True, cwd=ROOT, timeout=LIMIT)
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
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="deepnet_slurm_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "run.textproto").write_text(RUN)
        (cls.folder / "site.sh").write_text(SITE)
        shutil.copy(ROOT / "tests/trainer/data/testdata/udhr.tsv", cls.folder)
        cls.config = ["--config", cls.folder / "run.textproto", "--root", cls.folder]
        call(PROGRAM, "prepare", *cls.config)
        alone = subprocess.run(
            [PROGRAM, "train", *map(str, cls.config), "--set", "folder=alone"], text=True, capture_output=True, check=True
        )
        cls.undisturbed = weights(alone.stderr)
        os.environ["SB_DIR"] = str(cls.folder / "box")
        os.environ["DEEPNET_SITE"] = str(cls.folder / "site.sh")
        cls.addClassCleanup(cls.box, "down")
        cls.box("up", NODES)

    @staticmethod
    def box(*words):
        return call(ROOT / "tests/launch/slurm/slurm_box.sh", *words)

    @contextlib.contextmanager
    def stopped_at(self, pattern):
        """The ranks stand still from when the log has `pattern`: however fast the machine, the run does not end."""
        self.await_line(pattern)
        ranks = pids(*self.config, f"folder={self.run_folder}")
        for sign in signal.SIGSTOP, signal.SIGCONT:
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            if sign == signal.SIGSTOP:
                yield

    def submit(self, *sbatch, arguments=()):
        """Sets `job` to the number of a job that trains in `run_folder`, a folder of the test, and `log` to its log."""
        options = ["--parsable", "--nodes", NODES, "--ntasks-per-node", 1, "--output", self.folder / "%x_%j.log", *sbatch]
        self.run_folder = self.id().split(".")[-1]
        run = [*self.config, "--set", f"folder={self.run_folder}", "--log-seconds", 0, *arguments]
        self.job = self.box("run", "sbatch", *options, "launch/slurm/train.sbatch", *run).strip()
        self.log = self.folder / f"train_{self.job}.log"

    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def await_line(self, pattern, times=1):
        """Waits until the log has `pattern` so often."""
        end = time.monotonic() + LIMIT
        while len(re.findall(pattern, self.said())) < times:
            self.assertLess(time.monotonic(), end, f"'{pattern}' did not come\n{self.said()}")
            time.sleep(0.01)

    def state(self, field="JobState"):
        return re.search(rf"\b{field}=(\S+)", self.box("run", "scontrol", "--oneliner", "show", "job", self.job))[1]

    def await_state(self, states):
        end = time.monotonic() + LIMIT
        while self.state() not in states:
            self.assertLess(time.monotonic(), end, f"{self.state()}\n{self.said()}")
            time.sleep(0.2)

    def await_end(self):
        self.await_state({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
        self.assertEqual(self.state(), "COMPLETED", self.said())
        self.assertEqual(weights(self.said()), self.undisturbed, self.said())

    def test_a_job_that_is_told_to_stop_saves_and_goes_on_as_the_same_job(self):
        self.submit()
        with self.stopped_at(r"step 2\d "):
            self.box("run", "scancel", "--signal=USR1", "--batch", self.job)
        self.await_state({"PENDING"})
        self.assertIn("ended with code 75", self.said())
        self.box("release", self.job)
        self.await_end()
        self.assertEqual(self.state("Restarts"), "1")

    def test_a_job_that_somebody_cancels_saves_and_does_not_rise_again(self):
        self.submit()
        with self.stopped_at(r"step 2\d "):
            self.box("run", "scancel", self.job)
        self.await_line("not put back into the queue")
        self.await_state({"CANCELLED"})
        self.assertIn("stopped and saved at step", self.said())

    def test_shellcheck_and_sbatch_accept_every_script(self):
        call("shellcheck", "-x", *sorted((ROOT / "launch/slurm").glob("*.sh")), *SCRIPTS, "launch/job.sh")
        for script in SCRIPTS:
            self.box("run", "sbatch", "--test-only", "--nodes", NODES, script, "--config", "run.textproto")


if __name__ == "__main__":
    unittest.main()
