"""`deepnet train` for a few steps, in a folder of its own that is thrown away. Imported by the
comparisons beside it; needs a built build/release/deepnet."""
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Open MPI: as root too, and without binding or counting cores.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


class Failed(Exception):
    """The program ended with `code`, and said the text."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def train(config, fields, ranks):
    """(records of kind "train", hash of the weights); under mpirun with more than one rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command += ["build/release/deepnet", "train", "--config", config]
        for field in fields + [f"folder={folder}/run", "train.max_train_minutes=0",
                               "train.validate_every_steps=-1", "train.validate_sentences=1",
                               "decode.beam_size=1", "decode.max_tokens=4"]:
            command += ["--set", field]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **MPI}, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            errors = re.findall(r"^error: (.*)$", done.stdout, re.M)
            raise Failed(done.returncode,
                         errors[0] if errors else f"{' '.join(command)}\n{done.stdout}")
        records = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl", encoding="utf-8")]
        return ([record for record in records if record["kind"] == "train"],
                re.findall(r"weights (\w+)", done.stdout)[-1])
