"""Ranks that no MPI brings together: one hash whatever starts them, and mistakes that are named.

Programs: DEEPNET_PROGRAM, and DEEPNET_JOB_END (tests/mpi/job_end.cc), which joins a job within 3 s.
"""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN_WEIGHTS = "weights dc014a51db33def8"  # of golden_run_test.cc, on one rank
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "INIT_METHOD", "SLURM_", "OMPI_", "PMI")


def environment(**more):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return plain | {key: str(value) for key, value in more.items()}


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def listening_ports(process):
    """The ports at which a process accepts connections."""
    sockets, ports = set(), set()
    for link in os.scandir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            sockets.add(os.readlink(link.path))
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as lines:
            for words in map(str.split, list(lines)[1:]):
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def run_all(command, environments):
    """Runs a process for each environment at once; returns (exit code, output) of each."""
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=env, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for env in environments
    ]
    outputs = [process.communicate()[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


class Golden(unittest.TestCase):
    """The stored run of tests/golden, continued by several ranks."""

    def setUp(self):
        self.root = tempfile.mkdtemp()
        shutil.copytree(os.path.join(ROOT, "tests/golden/run-v1"), self.root, dirs_exist_ok=True)

    def tearDown(self):
        shutil.rmtree(self.root)

    def command(self, *settings):
        words = [os.environ["DEEPNET_PROGRAM"], "train", "--config", os.path.join(ROOT, "tests/launch/golden_run.textproto")]
        words += ["--root", self.root]
        for setting in settings:
            words += ["--set", setting]
        return words

    def expect_golden(self, outcomes):
        for code, output in outcomes:
            self.assertEqual(code, 0, output)
        self.assertIn(GOLDEN_WEIGHTS, outcomes[0][1])


class OneHash(Golden):
    def test_torchruns_variables_give_the_weights_of_one_process(self):
        base = dict(WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        outcomes = run_all(self.command(), [environment(RANK=r, **base) for r in range(2)])
        self.assertIn("2 ranks by TCP (torchrun's variables)", outcomes[0][1])
        self.expect_golden(outcomes)

    def test_slurms_variables_give_them_on_another_layout(self):
        base = dict(SLURM_STEP_NUM_TASKS=4, SLURM_JOB_ID=free_port(), SLURM_STEP_ID=0)
        base |= dict(SLURM_STEP_NODELIST="localhost", MASTER_PORT=free_port())
        settings = ("parallel.data_parallel_size=2",)
        outcomes = run_all(self.command(*settings), [environment(SLURM_PROCID=r, **base) for r in range(4)])
        self.assertIn("4 ranks by TCP (Slurm's variables)", outcomes[0][1])
        self.expect_golden(outcomes)

    def test_a_shared_file_gives_them_to_replicas(self):
        meet = os.path.join(self.root, "meet")
        base = dict(WORLD_SIZE=2, INIT_METHOD="file://" + meet)
        settings = ("parallel.pipeline_parallel_size=1", "parallel.data_parallel_size=2", "parallel.schedule=")
        settings += ("parallel.placement=", "parallel.virtual_pipeline_size=")
        self.expect_golden(run_all(self.command(*settings), [environment(RANK=r, **base) for r in range(2)]))

    def test_they_evaluate_as_one_process_does(self):
        command = [os.environ["DEEPNET_PROGRAM"], "evaluate", "--root", self.root, "--checkpoint", "run", "--json"]
        base = dict(WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
        alone = run_all(command, [environment()])
        outcomes = run_all(command, [environment(RANK=r, **base) for r in range(2)])
        for code, output in alone + outcomes:
            self.assertEqual(code, 0, output)
        scores = [re.search(r'"directions".*"nll":[^,}]*', output)[0] for _, output in (alone[0], outcomes[0])]
        self.assertEqual(scores[0], scores[1])
        self.assertNotIn("directions", outcomes[1][1])


class Torchrun(Golden):
    """PyTorch's own torchrun, DEEPNET_TORCHRUN: the label `peers`."""

    def start(self, agents, *words):
        command = [os.environ["DEEPNET_TORCHRUN"], "--no-python", "--nproc-per-node", "2", *words]
        return run_all(command, [environment()] * agents)

    def expect_hash(self, outcomes, ranks):
        for code, output in outcomes:
            self.assertEqual(code, 0, output)
        output = "".join(output for _, output in outcomes)  # rank 0's agent is any of them
        self.assertIn(f"{ranks} ranks by TCP (torchrun's variables)", output)
        self.assertIn(GOLDEN_WEIGHTS, output)

    def test_one_agent_gives_the_weights_of_one_process(self):
        self.expect_hash(self.start(1, *self.command()), 2)

    def test_two_agents_that_meet_by_c10d_give_them_on_another_layout(self):
        meet = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "1")
        self.expect_hash(self.start(2, *meet, *self.command("parallel.data_parallel_size=2")), 4)


class Rendezvous(unittest.TestCase):
    def join(self, environments):
        return run_all([os.environ["DEEPNET_JOB_END"], "join"], environments)

    def refused(self, environments, text):
        started = time.monotonic()
        for code, output in self.join(environments):
            self.assertEqual(code, 3, output)
            self.assertRegex(output, text)
            self.assertNotIn("[c10d]", output)  # LibTorch's warnings and backtraces
        self.assertLess(time.monotonic() - started, 60)

    def base(self, size, **more):
        return dict(WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()) | more

    def test_all_ranks_that_come_join(self):
        base = self.base(3)
        for code, output in self.join([environment(RANK=r, **base) for r in range(3)]):
            self.assertEqual(code, 0, output)

    def test_strangers_that_connect_hold_nobody_up(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
        base = self.base(2)
        command = [os.environ["DEEPNET_JOB_END"], "join"]
        first = subprocess.Popen(command, cwd=ROOT, env=environment(RANK=0, **base), encoding="utf-8", stderr=subprocess.PIPE)
        while first.poll() is None and len(listening_ports(first)) < 2:
            time.sleep(0.01)
        visitors = []
        try:
            for port in listening_ports(first):
                # LibTorch's store asks DNS for the name of each of its callers.
                times = 1 if port == base["MASTER_PORT"] else 100
                for word in [b"", b"GET / HTTP/1.1\r\n\r\n", b"deepnet3", b"\xff" * 10000] * times:
                    visitors.append(socket.create_connection(("127.0.0.1", port)))
                    visitors[-1].sendall(word)
                socket.create_connection(("127.0.0.1", port)).close()
            outcomes = self.join([environment(RANK=1, **base)])
            outcomes.append((first.wait(timeout=30), first.stderr.read()))
        finally:
            first.kill()
            first.communicate()
            for visitor in visitors:
                visitor.close()
        for code, output in outcomes:
            self.assertEqual(code, 0, output)

    def test_a_shared_file_serves_one_job_after_another(self):
        with tempfile.TemporaryDirectory() as folder:
            base = dict(WORLD_SIZE=2, INIT_METHOD=f"file://{folder}/meet")
            for _ in range(2):
                for code, output in self.join([environment(RANK=r, **base) for r in range(2)]):
                    self.assertEqual(code, 0, output)

    def test_a_restart_does_not_meet_the_ranks_of_before(self):
        with tempfile.TemporaryDirectory() as folder:
            base = dict(WORLD_SIZE=2, INIT_METHOD=f"file://{folder}/meet")
            before = environment(RANK=1, TORCHELASTIC_RESTART_COUNT=0, **base)
            self.refused([before], "rank 0 did not come to file ")
            for code, output in self.join([environment(RANK=r, TORCHELASTIC_RESTART_COUNT=1, **base) for r in range(2)]):
                self.assertEqual(code, 0, output)

    def test_a_rank_that_never_comes_is_named(self):
        base = self.base(3)
        ranks = [environment(RANK=r, **base) for r in (0, 1)]
        self.refused(ranks, r"ranks? .* did not come to 127\.0\.0\.1:\d+ \(MASTER_ADDR, MASTER_PORT\) within 3s")

    def test_a_rank_that_waits_says_for_whom_and_ends_at_a_signal(self):
        place = r"at 127\.0\.0\.1:\d+ \(MASTER_ADDR, MASTER_PORT\)"
        cases = ((0, "SIGTERM", "ranks 1, 2 of 3 "), (1, "SIGUSR1", "the store of rank 0 "), (0, "SIGINT", "ranks 1, 2 of 3 "))
        command = [os.environ["DEEPNET_PROGRAM"], "train", "--config", "tests/launch/golden_run.textproto"]
        for rank, name, whom in cases:
            env = environment(RANK=rank, **self.base(3))
            with subprocess.Popen(command, cwd=ROOT, env=env, encoding="utf-8", stderr=subprocess.PIPE) as process:
                try:
                    self.assertRegex(process.stderr.readline(), f"rank {rank} waits for {whom}{place}")
                    process.send_signal(getattr(signal, name))
                    self.assertEqual(process.wait(timeout=10), 75)
                    self.assertIn("ended by a signal before training began", process.stderr.read())
                finally:
                    process.kill()

    def test_rank_zero_that_never_comes_is_named(self):
        self.refused([environment(RANK=1, **self.base(2))], "rank 0 did not come: nobody answers at 127.0.0.1:")

    def test_a_port_in_use_is_named(self):
        with socket.socket() as other:
            other.bind(("", 0))
            other.listen()
            base = self.base(2, MASTER_PORT=other.getsockname()[1])
            self.refused([environment(RANK=0, **base)], r"rank 0 cannot listen at .*: the port is in use")

    def test_two_ranks_of_one_number_are_named(self):
        base = self.base(3)
        self.refused([environment(RANK=r, **base) for r in (0, 1, 1)], "two processes are rank 1: ")

    def test_another_world_size_is_named(self):
        base = self.base(2)
        ranks = [environment(RANK=0, **base), environment(RANK=1, **(base | dict(WORLD_SIZE=3)))]
        self.refused(ranks, "rank 1 .* was started as one of 3 ranks, rank 0 as one of 2")

    def test_an_interface_that_is_not_there_is_named(self):
        self.refused([environment(RANK=0, **self.base(2, GLOO_SOCKET_IFNAME="none0"))], "no network interface none0")

    def test_unlike_secrets_are_named(self):
        base = self.base(2)
        ranks = [environment(RANK=r, DEEPNET_JOB_SECRET=f"a secret of rank {r}", **base) for r in range(2)]
        self.refused(ranks, "has another job secret than .*: set DEEPNET_JOB_SECRET")


class Kubernetes(Golden):
    """The command lines of launch/kubernetes, with the variables that Kubernetes sets, on pretend hosts."""

    def pods(self, file):
        with open(os.path.join(ROOT, "launch/kubernetes", file), encoding="utf-8") as text:
            job = list(yaml.safe_load_all(text))[-1]["spec"]
        if "template" in job:
            self.assertEqual(job["completions"], job["parallelism"])
            return [job["template"]["spec"]["containers"][0]] * job["completions"]
        specs = job["pytorchReplicaSpecs"]
        return [specs[r]["template"]["spec"]["containers"][0] for r in specs for _ in range(specs[r]["replicas"])]

    def variables(self, pod, rank, size):
        """What the pod states itself, or the operator sets for it; rank 0's name is a pretend host's. A pod has a home
        folder of its own."""
        stated = {entry["name"]: entry for entry in pod.get("env", [])}
        self.assertEqual(stated["DEEPNET_JOB_SECRET"]["valueFrom"]["secretKeyRef"], dict(name="deepnet", key="job-secret"))
        own = dict(HOME=os.path.join(self.root, f"home{rank}"), DEEPNET_JOB_SECRET="the secret of a pretend cluster")
        if "RANK" not in stated:
            return own | dict(RANK=rank, WORLD_SIZE=size, MASTER_ADDR="k1", MASTER_PORT=23456)
        self.assertIn("job-completion-index", stated["RANK"]["valueFrom"]["fieldRef"]["fieldPath"])
        self.assertEqual(stated["WORLD_SIZE"]["value"], str(size))
        self.assertEqual(stated["MASTER_ADDR"]["value"], "deepnet-0.deepnet")
        return own | dict(RANK=rank, WORLD_SIZE=size, MASTER_ADDR="k1", MASTER_PORT=stated["MASTER_PORT"]["value"])

    def run_pods(self, file):
        hosts = [os.path.join(ROOT, "tests/mpi/testhosts.sh")]
        env = environment(TH_PREFIX="k", TH_NET="10.79.0")
        pods = self.pods(file)
        shutil.copy(os.path.join(ROOT, "tests/launch/golden_run.textproto"), os.path.join(self.root, "run.textproto"))
        subprocess.run(hosts + ["down"], env=env, check=True)
        subprocess.run(hosts + ["up", str(len(pods))], env=env, check=True)
        try:
            processes = []
            for rank, pod in enumerate(pods):
                words = [re.sub(r"^/shared", self.root, word) for word in pod["command"]]
                words[0] = os.environ["DEEPNET_PROGRAM"]
                words += ["--set", "parallel.data_parallel_size=2"]
                variables = {k: str(v) for k, v in self.variables(pod, rank, len(pods)).items()}
                processes.append(
                    subprocess.Popen(hosts + ["exec", f"k{rank + 1}"] + words, env=env | variables, encoding="utf-8",
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT))
            outputs = [process.communicate()[0] for process in processes]
            self.expect_golden([(p.returncode, output) for p, output in zip(processes, outputs)])
        finally:
            subprocess.run(hosts + ["down"], env=env, check=True)

    def test_an_indexed_job_gives_the_weights_of_one_process(self):
        self.run_pods("job.yaml")

    def test_a_pytorchjob_gives_the_weights_of_one_process(self):
        self.run_pods("pytorchjob.yaml")


if __name__ == "__main__":
    unittest.main()
