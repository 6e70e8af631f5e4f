"""Man pages and completion say what --help says. DEEPNET_PROGRAM names the program."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
sys.path.insert(0, str(ROOT / "launch"))

import help_pages as H  # noqa: E402

HELP = """deepnet toy: Play.

Usage: deepnet toy --config FILE [FLAGS]

First line
of a paragraph.

Flags:
  --with-a-name-too-long FILE
                          Starts on the next line,
                          and goes on. May be repeated.
  --colour red|blue       Which. [default: red]
  --help                  Print this.
"""


def complete(folder, *words):
    """What bash offers for the last word."""
    script = f"source {folder}/bash-completion/completions/deepnet; COMP_WORDS=(deepnet \"$@\"); COMP_CWORD=$#; "
    script += '_deepnet; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", *words], check=True, capture_output=True, encoding="utf-8")
    return done.stdout.split()


class HelpPages(unittest.TestCase):
    def test_help_is_read_flag_by_flag(self):
        page = H.parse_help(("toy",), HELP)
        self.assertEqual((page.summary, page.usage), ("Play.", "deepnet toy --config FILE [FLAGS]"))
        self.assertEqual(page.description, ["First line of a paragraph."])
        self.assertEqual([(f.name, f.value) for f in page.flags], [("--with-a-name-too-long", "FILE"), ("--colour", "red|blue"), ("--help", "")])
        self.assertEqual(page.flags[0].help, "Starts on the next line, and goes on. May be repeated.")
        self.assertEqual([H.choices(f) for f in page.flags], [[], ["red", "blue"], []])
        self.assertEqual(H.zsh_flag(page.flags[1]), "'--colour[Which. \\[default\\: red\\]]:red|blue:(red blue)'")

    def test_a_help_of_another_form_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'toy --help' has another form"):
            H.parse_help(("toy",), "deepnet toy: Play.\n\nOptions:\n  -x\n")
        for help_ in ("", "--help", "deepnet toy: Play.\n\nUsage: x\n\nFlags:\nx", "deepnet toy: Play.\n\nUsage: x\n\nCommands:\nx"):
            with self.assertRaisesRegex(ValueError, "'toy --help' has another form"):
                H.parse_help(("toy",), help_)

    def test_a_day_that_is_none_is_named(self):
        for seconds in ("today", "9" * 30):
            done = subprocess.run(
                [sys.executable, "-B", H.__file__, "--program", PROGRAM, "--out", "/nonexistent"], capture_output=True,
                encoding="utf-8", env={**os.environ, "SOURCE_DATE_EPOCH": seconds},
            )  # fmt: skip
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
            self.assertIn(f"error: SOURCE_DATE_EPOCH: '{seconds}': ", done.stderr)

    def test_every_command_has_a_page_and_its_words_are_offered(self):
        with tempfile.TemporaryDirectory() as folder:
            pages = H.read_all(PROGRAM)
            self.assertEqual(H.write_all(PROGRAM, folder), len(pages) + 2)
            train = Path(folder, "man/man1/deepnet-train.1").read_text(encoding="utf-8")
            for flag in next(page for page in pages if page.words == ("train",)).flags:
                self.assertIn(H.roff(flag.name), train)
            self.assertIn("\\fBdeepnet\\-checkpoint\\-list\\fR(1)", Path(folder, "man/man1/deepnet-checkpoint.1").read_text(encoding="utf-8"))
            self.assertEqual(complete(folder, "tr"), ["train", "translate"])
            self.assertEqual(complete(folder, "checkpoint", "exp"), ["export"])
            self.assertEqual(complete(folder, "checkpoint", "list", "--ver"), ["--verify"])
            self.assertEqual(complete(folder, "train", "--set", "a=1", "--progress", "b"), ["bar"])
            self.assertEqual(complete(folder, "train", "--config", f"{folder}/m"), [f"{folder}/man"])


if __name__ == "__main__":
    unittest.main()
