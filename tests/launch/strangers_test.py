"""What another user plants in a folder that he may write into leads nowhere. Needs root, and DEEPNET_PROGRAM.

The stranger is user 65534; the victim is root, whose folder `home` the stranger can neither read nor enter.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 65534
UNFINISHED = ".deepnet-unfinished"


def snapshot(folder):
    """Everything below the folder: its bytes, owner, mode and time."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        found[str(path)] = (info.st_uid, info.st_mode, info.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


class Strangers(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp())
        self.root.chmod(0o755)
        self.home = self.root / "home"
        self.home.mkdir(mode=0o700)
        for name in ("thesis", ".bashrc", "step-00000001/manifest.pb"):
            (self.home / name).parent.mkdir(exist_ok=True)
            (self.home / name).write_text(f"{name} of the victim\n", encoding="utf-8")
        self.group = self.root / "group"  # everybody's, and not sticky
        shutil.copytree(ROOT / "tests/golden/run-v1", self.group)
        for path in [self.group, *self.group.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        text = (ROOT / "tests/launch/golden_run.textproto").read_text(encoding="utf-8")
        (self.root / "config").write_text(re.sub(r"\nparallel \{.*?\n\}", "", text, flags=re.S), encoding="utf-8")
        self.before = snapshot(self.home)

    def tearDown(self):
        shutil.rmtree(self.root)

    def plant(self, *links):
        """As the stranger: makes each link, and moves away what is there. `links`: (name, what it leads to)."""
        script = "set -e\n"
        for name, target in links:
            script += f"[ ! -e {name} -a ! -L {name} ] || mv -T {name} {name}.away\n"
            script += f"mkdir -p $(dirname {name}); ln -s {target} {name}\n"
        subprocess.run(["bash", "-c", script], cwd=self.group, check=True, user=STRANGER, group=STRANGER, extra_groups=[])

    def deepnet(self, *words):
        done = subprocess.run(
            [os.environ["DEEPNET_PROGRAM"], *map(str, words)], cwd=ROOT, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )
        self.assertEqual(snapshot(self.home), self.before, f"{words}: {done.stdout}")
        return done

    def train(self):
        return self.deepnet("train", "--config", self.root / "config", "--root", self.group)

    def test_what_a_run_does_not_use_is_left_alone(self):
        names = ("step-00000001.tmp", "step-00000002.old", "notes", "step-00000003" + UNFINISHED, "step-00000020",
                 "step-00000004.deepnet-replaced", "step-00000030/notes", "step-00000036" + UNFINISHED)
        self.plant(*((f"run/{name}", self.home) for name in names))
        done = self.train()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue((self.group / "run/step-00000036/manifest.pb").is_file())
        self.assertFalse((self.group / "run/step-00000036").is_symlink())

    def test_a_run_folder_whose_files_are_links_is_refused_by_name(self):
        for name, target in (("metrics.jsonl", ".bashrc"), ("metrics.jsonl.new", ".bashrc"), ("latest", ".bashrc"),
                             ("latest.tmp", "new"), ("best-nll", "new"), ("lock", "new"), ("tokenizer.model", "thesis"),
                             ("languages.txt", "new"), ("model_update.bin", "new")):
            with self.subTest(name=name):
                self.plant((f"run/{name}", self.home / target))
                done = self.train()
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(f"{name}' is a symbolic link", done.stdout)
                (self.group / "run" / name).unlink()

    def test_a_folder_for_tensorboard_that_is_a_link_gets_nothing(self):
        self.plant(("run/tensorboard", self.home))
        self.assertIn("is a symbolic link", self.train().stdout)

    def test_pruning_deletes_links_alone(self):
        self.assertEqual(self.train().returncode, 0)
        self.plant(("run/step-00000010/notes", self.home), ("run/step-00000020", self.home))
        done = self.deepnet("checkpoint", "prune", self.group / "run", "--keep", 1)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertFalse((self.group / "run/step-00000010").exists())
        self.assertFalse((self.group / "run/step-00000020").is_symlink())

    def test_an_export_is_written_where_it_was_asked_for(self):
        self.plant(("out.tmp", self.home), ("out" + UNFINISHED, self.home))
        done = self.deepnet("checkpoint", "export", self.group / "run", "--output", self.group / "out")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertFalse((self.group / "out").is_symlink())
        self.assertTrue((self.group / "out/config.json").is_file())

    def test_prepare_enters_no_link(self):
        lines = [f"the sentence number {i} is here\tder Satz Nummer {i} ist hier\n" for i in range(400)]
        (self.root / "text.tsv").write_text("".join(lines), encoding="utf-8")
        words = ["prepare", "--tsv", self.root / "text.tsv", "--from", "en", "--to", "de"]
        words += ["--set", "prepare.tokenizer.vocab_size=60", "--set", f"data.folder={self.group / 'data'}"]
        self.plant(("data.tmp", self.home), ("data.old", self.home), ("data" + UNFINISHED, self.home))
        done = self.deepnet(*words)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue((self.group / "data/manifest.textproto").is_file())
        self.assertFalse((self.group / "data").is_symlink())
        self.plant((f"data{UNFINISHED}/.deepnet-scratch", self.home), ("data", self.home))
        self.assertEqual(self.deepnet(*words, "--set", "prepare.replace=true").returncode, 4)
        self.plant((".data.lock", self.home / "thesis"))
        self.assertEqual(self.deepnet(*words).returncode, 4)


if __name__ == "__main__":
    unittest.main()
