"""The commands of every page of docs/howto, typed in an empty folder that has `launch` in it. Indented blocks are run;
fenced ones need packages of PyPI and are run too where DEEPNET_PEERS says so (label `peers`).

Programs: DEEPNET_PROGRAM; mpirun in PATH.
"""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "docs/howto").glob("*.md") if page.name != "README.md")
PEERS = os.environ.get("DEEPNET_PEERS")  # bin folder of a virtual environment with CTranslate2


def commands(page):
    """Returns the blocks of a page as one script."""
    script, fenced = [], False
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif PEERS if fenced else line.startswith("    "):
            script.append(line if fenced else line[4:])
    return "set -euo pipefail\n" + "\n".join(script) + "\n"


class Howto(unittest.TestCase):
    def run_page(self, page):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "launch").symlink_to(ROOT / "launch")
            paths = [os.path.dirname(os.environ["DEEPNET_PROGRAM"]), os.environ["PATH"]]
            environment = dict(
                os.environ, PATH=":".join(([PEERS] if PEERS else []) + paths), OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
            )  # fmt: skip
            done = subprocess.run(["bash", "-c", commands(page)], cwd=folder, env=environment, encoding="utf-8",
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
            self.assertEqual(done.returncode, 0, f"{page.name}:\n{done.stdout[-3000:]}")

    def test_every_page_is_listed_and_links_are_those_of_pages(self):
        listed = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs/howto/README.md").read_text(encoding="utf-8"))
        self.assertEqual(sorted(listed), [page.name for page in PAGES])


def test_of(page):
    return lambda self: self.run_page(page)


for _page in PAGES:
    setattr(Howto, f"test_{_page.stem}", test_of(_page))

if __name__ == "__main__":
    unittest.main()
