"""`lab.py audit` and `lab.py model-update`: the tables made of what `deepnet lab`, which DEEPNET_PROGRAM names, says."""

import contextlib
import io
import os
import tempfile
import unittest
from pathlib import Path

import sample_results  # noqa: F401  finds lab

import lab
import looks

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
TINY = str(ROOT / "tests" / "golden" / "describe" / "tiny.textproto")


def run(*words, program=PROGRAM):
    """(exit code, stdout, stderr) of `lab.py WORDS`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = lab.main([*words, "--program", program])
    return code, out.getvalue(), err.getvalue()


SMALL = [word for side in ("source", "target") for word in ("--set", f"data.microbatch.max_{side}_tokens=160")]


class Audit(unittest.TestCase):
    def test_it_has_the_scaling_of_the_scheme_and_groups_of_tensors(self):
        code, out, err = run("audit", "--config", TINY)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"decoder +1\.3161 +0\.5373 +1\.0000")
        self.assertRegex(out, r"encoder layer +feed-forward +4 +4,096 +0\.[0-9.]+ +[+-][0-9.]+ % +[0-9.]+ %  encoder\.")
        self.assertRegex(out, r"norm bias +[0-9]+ +[0-9]+ +- +one value +exact")
        self.assertIn("be off by 2 %, or by 6 sampling errors", out.replace("\n", " "))
        self.assertIn("All as theory wants.", out)
        self.assertNotIn("difference", out)
        code, out, err = run("audit", "--config", TINY, "--set", "model.residual=KEEL")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"encoder +4\.0000 +1\.0000 +1\.0000")

    def test_it_lists_every_tensor_where_asked_to(self):
        code, out, err = run("audit", "--config", TINY, "--tensors")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"encoder\.layers\.1\.self_attn\.v_proj\.weight +value +256 +0\.1[0-9]+ +0\.182895 +[+-][0-9.]+ %")
        self.assertRegex(out, r"decoder\.layers\.0\.fc2\.bias +feed-forward +16 +0\.000000 +0\.000000 +exact")

    def test_what_is_not_as_theory_wants_is_named_and_a_mistake_keeps_its_code(self):
        report, error = looks.asked([PROGRAM, "lab", "audit", "--config", TINY], looks.AUDIT)
        self.assertEqual(error, "")
        scaling, _ = looks.asked([PROGRAM, "describe", "--json", "--config", TINY], looks.SCALING)
        text = looks.audit_text(scaling, {**report, "faults": ["fc1.weight: deviates"]})
        self.assertTrue(text.endswith("NOT as theory wants:\n  fc1.weight: deviates\n"), text)
        with tempfile.TemporaryDirectory() as folder:
            finds = Path(folder, "finds")
            finds.write_text(f'#!/bin/sh\n{PROGRAM} "$@"\n[ $1 != lab ] || {{ echo "error: fc1 deviates" >&2; exit 3; }}\n', encoding="utf-8")
            finds.chmod(0o755)
            code, out, err = run("audit", "--config", TINY, program=str(finds))
        self.assertEqual((code, err), (3, "error: fc1 deviates\n"))
        self.assertIn("weights of ", out)
        code, out, err = run("audit", "--config", TINY, "--sample", "-1")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--sample: -1: must be at least 1", err)
        code, out, err = run("audit", "--config", TINY, "--sample", "0")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("--sample: 0: must be at least 1", err)


class ModelUpdate(unittest.TestCase):
    def test_it_has_a_row_a_scheme_and_a_column_a_depth(self):
        code, out, err = run("model-update", "--depths", "1,2", "--steps", "1", "--seeds", "2", *SMALL)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"layers a side +1 +2 +max/min\nDEEPNORM +0\.[0-9]{5} +0\.[0-9]{5} +[0-9.]+\n")
        self.assertRegex(out, r"\n  an element +0\.[0-9]{5} +0\.[0-9]{5}\n  seeds apart +x[0-9.]+ +x[0-9.]+\nPOST_LN ")

    def test_figures_are_means_over_seeds(self):
        sizes = {6: 6, 18: 18, 50: 2}
        moved = {("KEEL", depth): [{"per_token": size * f, "per_element": f} for f in (1, 3)] for depth, size in sizes.items()}
        lines = looks.update_text(["KEEL"], [*sizes], moved).split("\n")
        self.assertEqual(lines[1].split(), ["KEEL", "12.00000", "36.00000", "4.00000", "9.00"])
        self.assertEqual(lines[2].split()[2:], ["2.00000"] * 3)
        self.assertEqual(lines[3].split()[2:], ["x3.00"] * 3)

    def test_a_mistake_is_named(self):
        code, _, err = run("model-update", "--depths", "6,0")
        self.assertEqual((code, err), (2, "error: --depths: 0: must be layers a side, as in 6,18,50\n"))
        few = ["--depths", "1", "--steps", "1", "--seeds", "1000000", *SMALL]
        code, out, err = run("model-update", "--schemes", "DEEPNORM,NO_SUCH", *few)
        self.assertEqual((code, out), (2, ""))  # at once
        self.assertIn("NO_SUCH", err)
        code, _, err = run("model-update", "--steps", "0")
        self.assertEqual(code, 2)
        self.assertIn("--steps: 0: must be", err)

    def test_settings_of_deepnorm_do_not_reach_other_schemes(self):
        code, out, err = run(
            "model-update", "--depths", "1", "--steps", "1", "--seeds", "1", *SMALL, "--set", "model.deepnorm.adam=true")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"(?s)DEEPNORM .*\nPOST_LN ")


if __name__ == "__main__":
    unittest.main()
