"""launch/slurm/run.sh without Slurm: which exit codes of the ranks put a job back into the queue, and how often."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

SITE = """deepnet=$BOX/program
container=()
launcher=($BOX/launch)
"""
# Two ranks on two nodes; the code of each is a word of CODES. Ends as srun does, with the highest.
LAUNCH = """#!/usr/bin/env bash
shift 2
echo "$*" >> "$BOX/starts"
read -ra codes <<< "$CODES"
highest=0
for rank in 0 1; do
  code=0
  SLURM_PROCID=$rank SLURMD_NODENAME=node$rank CODE=${codes[rank]} "$@" || code=$?
  [[ $code -le $highest ]] || highest=$code
done
exit $highest
"""
SCONTROL = """#!/usr/bin/env bash
case $* in
  *"show job"*)
    echo "JobId=7 JobName=job"
    printf '   %s\\n' "JobState=${STATE:-RUNNING} Reason=None" "EndTime=${END:-Unknown}" \\
      "ExcNodeList=${EXCLUDED:-(null)}" "StdOut=$BOX/log" ;;
  *"show hostnames"*) printf 'node0\\nnode1\\n' ;;
  *) echo "$*" >> "$BOX/asked" ;;
esac
"""
# Without PMIx. It says what ranks get of the job's environment.
SRUN = """#!/usr/bin/env bash
[[ $1 != --mpi=list ]] || { echo "MPI plugin types are: none pmi2"; exit 0; }
echo "${DEEPNET_JOB_SECRET:-} ${SRUN_CPUS_PER_TASK:-} ${SLURM_JOB_END_TIME:-}" >> "$BOX/environment"
while [[ $1 != -n ]]; do shift; done
exec "$BOX/launch" "$@"
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        box = tempfile.TemporaryDirectory(prefix="deepnet_slurm_run_")
        self.addCleanup(box.cleanup)
        self.box = Path(box.name)
        for name, text in {"site": SITE, "launch": LAUNCH, "scontrol": SCONTROL, "program": 'exit "$CODE"\n',
                           "sinfo": 'printf "$UNREACHABLE"\n', "srun": SRUN}.items():
            path = self.box / name
            path.write_text(text if text.startswith("#!") else "#!/usr/bin/env bash\n" + text, encoding="utf-8")
            path.chmod(0o755)

    def start(self, codes, run="run_ranks train", **variables):
        """Runs a start of the job; returns its exit code and what it asked of Slurm."""
        asked = self.box / "asked"
        asked.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-c", f'source "$DEEPNET_HOME/launch/slurm/run.sh"; {run}'], encoding="utf-8",
            capture_output=True, timeout=60, cwd=self.box,
            env={"PATH": f"{self.box}:{os.environ['PATH']}", "BOX": str(self.box), "DEEPNET_HOME": str(ROOT),
                 "DEEPNET_SITE": str(self.box / "site"), "CODES": codes, "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job",
                 "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_NUM_NODES": "2", **variables})
        self.said = done.stdout
        return done.returncode, asked.read_text(encoding="utf-8").rstrip("\n").split("\n") if asked.exists() else []

    def lines(self, name):
        return len((self.box / name).read_text(encoding="utf-8").rstrip("\n").split("\n"))

    def test_goes_back_into_the_queue_after_a_save_a_hang_and_a_lost_rank_alone(self):
        for code in (0, 1, 2, 7, 8, 9, 75):
            with self.subTest(code=code):
                ended, asked = self.start(f"{code} {code}")
                self.assertEqual(ended, code)
                self.assertEqual("requeue 7" in asked, code in (8, 9, 75))

    def test_what_other_ranks_say_counts_where_the_launcher_says_a_signal(self):
        for codes, expected in {"137 8": 8, "137 9": 9, "137 137": 9, "75 137": 75}.items():
            with self.subTest(codes=codes):
                (self.box / "starts").unlink(missing_ok=True)
                ended, asked = self.start(codes)
                self.assertEqual(ended, expected)
                self.assertIn("requeue 7", asked)
                self.assertEqual(self.lines("starts"), 1)  # ranks that began are not started again

    def test_the_fourth_failure_in_a_row_is_the_last_unless_it_was_told_to_stop_in_between(self):
        queued = [bool(self.start(f"{code} {code}")[1]) for code in (8, 9, 8, 75, 9, 8, 9, 8)]
        self.assertEqual(queued, 7 * [True] + [False])
        self.assertFalse(self.start("8 8", DEEPNET_RETRIES="0")[1])

    def test_a_number_that_is_none_is_named_before_anything_is_started(self):
        for word in ("three", "", "-1", "08", "1.5", "9" * 20, f"x[$(touch {self.box}/ran)]"):
            for name in ("DEEPNET_RETRIES", "SLURM_NTASKS"):
                self.assertEqual(self.start("8 8", **{name: word}), (2, []))
                self.assertTrue(self.said.endswith(f"{name}: '{word}' is no number from 0 to 999999999\n"), self.said)
        self.assertFalse((self.box / "ran").exists())

    def test_the_nodes_that_seem_to_have_ended_it_join_those_that_are_left_out(self):
        for variables, nodes in (({}, "node1"), ({"EXCLUDED": "node7,node[3-4]"}, "node1,node7,node[3-4]")):
            self.assertEqual(self.start("8 137", **variables), (8, ["requeue 7", f"update JobId=7 ExcNodeList={nodes}"]))
        # Not where they are most of the nodes: then it is something else.
        self.assertEqual(self.start("8 137", UNREACHABLE="node0\\nnode1\\n"), (8, ["requeue 7"]))

    def test_ranks_without_pmix_get_a_secret_cores_and_the_end_of_the_job(self):
        (self.box / "site").write_text("deepnet=$BOX/program\ncontainer=()\n", encoding="utf-8")
        end = {"END": "2100-01-01T00:00:00", "TZ": "UTC"}
        self.assertEqual(self.start("0 0", SLURM_CPUS_PER_TASK="3", **end)[0], 0)
        self.assertEqual(self.start("0 0", SLURM_JOB_END_TIME="17", DEEPNET_JOB_SECRET="given", **end)[0], 0)
        self.assertEqual(self.start("0 0")[0], 0)
        first, second, third = (self.box / "environment").read_text(encoding="utf-8").rstrip("\n").split("\n")
        self.assertRegex(first, "^[0-9a-f]{64} 3 4102444800$")
        self.assertEqual(second, "given  17")
        self.assertRegex(third, "^[0-9a-f]{64}  $")

    def test_a_task_of_an_array_takes_its_item_or_ends(self):
        item = {"DEEPNET_ITEMS": "de-en fr-en", "run": "run_ranks evaluate --direction '{item}'"}
        self.assertEqual(self.start("0 0", SLURM_ARRAY_TASK_ID="1", **item)[0], 0)
        self.assertIn("evaluate --direction fr-en\n", self.said)
        self.assertEqual(self.start("0 0", SLURM_ARRAY_TASK_ID="2", **item)[0], 2)
        self.assertIn("DEEPNET_ITEMS has no word 2, counted from 0: 'de-en fr-en'", self.said)

    def test_tasks_of_an_array_share_the_runs_of_an_experiment(self):
        def share(task, count, least, most, ranks):
            array = dict(zip(("ID", "COUNT", "MIN", "MAX"), (task, count, least, most)))
            variables = {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in array.items()}
            return self.start("", run="pass_signals() { return 7; }; run_lab fig6", SLURM_NTASKS=str(ranks), **variables)[0]

        self.assertEqual(share(1, 3, 0, 2, 1), 7)
        self.assertIn(f"launch/lab/lab.py run fig6 --share 1/3 --program {self.box}/program\n", self.said)
        self.assertEqual(share(1, 3, 0, 2, 4), 7)
        self.assertIn(f"--share 1/3 --program {self.box}/program --launcher {self.box}/launch -n {{ranks}}\n", self.said)
        for gaps in ((2, 2, 0, 2), (1, 2, 1, 2)):
            self.assertEqual(share(*gaps, 1), 2)
            self.assertIn("--array has to be 0-N without gaps", self.said)

    def test_a_job_that_was_cancelled_stays_out_of_the_queue(self):
        self.assertEqual(self.start("75 75", STATE="CANCELLED"), (75, []))


class Suspects(unittest.TestCase):
    def suspects(self, *logs):
        """What the script says of four nodes; `logs`: of each rank its node, and the last line of its file."""
        with tempfile.TemporaryDirectory() as folder:
            for rank, (node, line) in enumerate(logs):
                first = f"2026-01-01 10:00:00 {node}: program"
                Path(folder, f"start_rank-{rank}.log").write_text(f"{first}\n{line}\n", encoding="utf-8")
            words = ["awk", "-v", "nodes=n0\nn1\nn2\nn3", "-f", ROOT / "launch/slurm/suspects.awk"]
            done = subprocess.run([*words, *sorted(Path(folder).iterdir())], encoding="utf-8", capture_output=True, check=True)
        return sorted(done.stdout.split())

    def test_are_the_first_to_be_killed_else_the_silent_else_the_named_and_where_none_began(self):
        killed = "2026-01-01 10:00:0{} x: ended with code 137".format
        lost, silent, names = "2026-01-01 10:00:09 x: ended with code 9", "step 7", "seems to wait for rank 3"
        for lines, expected in (
            ((lost, killed(8), killed(5), lost), ["n2"]),
            ((lost, silent, lost, lost), ["n1"]),
            ((silent, silent, silent, silent), []),
            ((names, silent, silent, silent), ["n3"]),
            ((lost, lost), ["n2", "n3"]),
        ):
            with self.subTest(lines=lines):
                self.assertEqual(self.suspects(*((f"n{i}", line) for i, line in enumerate(lines))), expected)


if __name__ == "__main__":
    unittest.main()
