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
    printf '   %s\\n' "JobState=${STATE:-RUNNING} Reason=None" EndTime=Unknown "ExcNodeList=(null)" "StdOut=$BOX/log" ;;
  *"show hostnames"*) printf 'node0\\nnode1\\n' ;;
  *) echo "$*" >> "$BOX/asked" ;;
esac
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        box = tempfile.TemporaryDirectory(prefix="deepnet_slurm_run_")
        self.addCleanup(box.cleanup)
        self.box = Path(box.name)
        for name, text in {"site": SITE, "launch": LAUNCH, "scontrol": SCONTROL, "program": 'exit "$CODE"\n',
                           "sinfo": "exit 0\n"}.items():
            path = self.box / name
            path.write_text(text if text.startswith("#!") else "#!/usr/bin/env bash\n" + text, encoding="utf-8")
            path.chmod(0o755)

    def start(self, codes, **variables):
        """Runs a start of the job; returns its exit code and what it asked of Slurm."""
        asked = self.box / "asked"
        asked.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-c", 'source "$DEEPNET_HOME/launch/slurm/run.sh"; run_ranks train'], encoding="utf-8",
            capture_output=True, timeout=60, cwd=self.box,
            env={"PATH": f"{self.box}:{os.environ['PATH']}", "BOX": str(self.box), "DEEPNET_HOME": str(ROOT),
                 "DEEPNET_SITE": str(self.box / "site"), "CODES": codes, "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "job",
                 "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_NUM_NODES": "2", **variables})
        self.said = done.stdout
        return done.returncode, asked.read_text(encoding="utf-8").rstrip("\n").split("\n") if asked.exists() else []

    def test_goes_back_into_the_queue_after_a_save_a_hang_and_a_lost_rank_alone(self):
        for code in (0, 1, 2, 7, 8, 9, 75):
            with self.subTest(code=code):
                ended, asked = self.start(f"{code} {code}")
                self.assertEqual(ended, code)
                self.assertEqual("requeue 7" in asked, code in (8, 9, 75))

    def test_what_other_ranks_say_counts_where_the_launcher_says_a_signal(self):
        for codes, expected in {"137 8": 8, "137 9": 9, "137 137": 9, "75 137": 75}.items():
            with self.subTest(codes=codes):
                ended, asked = self.start(codes)
                self.assertEqual(ended, expected)
                self.assertIn("requeue 7", asked)

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

    def test_a_job_that_was_cancelled_stays_out_of_the_queue(self):
        self.assertEqual(self.start("75 75", STATE="CANCELLED"), (75, []))


if __name__ == "__main__":
    unittest.main()
