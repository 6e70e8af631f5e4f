"""The page of training runs: what is read from their folders, what of it is drawn, how mistakes are named."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from sample_results import R

import lab  # found by sample_results
import run_page

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
RECIPE = ["--config", "launch/recipes/lab/deep_gradients.textproto", "--root", str(ROOT)]
MIB = 2**20


def train_record(step, nll, **more):
    return {
        "kind": "train", "step": step, "nll": nll, "loss": float(nll) + 1, "target_tokens": 1000 * step, "seconds": 36.0 * step,
        "resident_bytes": 64 * MIB, "gradient_norm": 1.5, **more,
    }  # fmt: skip


def run_of(name, records, settings=None):
    kinds = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    return {"name": name, "kinds": kinds, "settings": settings or {}, "planned": 0, "trace": None}


def lab_said(words):
    """(exit code, what was printed, what was printed as an error)."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = lab.main(list(map(str, words)))
    return code, out.getvalue(), error.getvalue()


def page_of(words):
    return lab_said(["report", "--program", PROGRAM, *words])


class RunPage(unittest.TestCase):
    def test_tables_name_what_differs_and_what_was_reached(self):
        spike = {"kind": "spike", "spike_step": 7, "action": "ROLL_BACK", "loss": 9.5, "loss_limit": 6.0}
        checks = [
            {"kind": "validation", "step": step, "nll": nll, "bleu": bleu, "directions": [{"direction": "de-en", "bleu": bleu}]}
            for step, nll, bleu in ((5, 5.0, 3.0), (10, 5.5, 2.0))
        ]
        first = run_of("runs/one", [train_record(5, 6.0), train_record(10, 5.25), spike, *checks], {"seed": "1", "a.b": "2"})
        second = run_of("runs/two", [train_record(10, 4.0)], {"seed": "1", "a.b": "3", "c": "x"})
        row = dict(zip(run_page.HEADER, run_page.summary_row(first)))
        self.assertEqual(row["steps"], "10")
        self.assertEqual(row["target tokens"], "10,000")
        self.assertEqual(row["hours"], "0.10")
        self.assertEqual((row["nll"], row["dev nll"], row["dev BLEU"], row["spikes"]), ("5.250", "5.000", "3.00", 1))
        self.assertEqual(dict(zip(run_page.HEADER, run_page.summary_row(second)))["dev BLEU"], "-")
        self.assertEqual(run_page.settings_that_differ([first, second])[1], [["a.b", "2", "3"], ["c", "-", "x"]])
        self.assertEqual(run_page.scores_by_direction([first, second])[1], [["de-en", "2.00", "-"]])
        self.assertEqual(run_page.events([first, second]), ["runs/one: spike at step 7, loss 9.5 (limit 6): roll back"])

    def test_a_figure_that_does_not_exist_is_not_the_best(self):
        none = {"kind": "validation", "step": 5, "nll": None, "bleu": None, "directions": [{"direction": "de-en", "bleu": None}]}
        some = {**none, "step": 10, "nll": 5.5, "bleu": 2.0}
        first, second = run_of("one", [train_record(10, 5.25), none]), run_of("two", [train_record(10, 4.0), none, some])
        rows = [dict(zip(run_page.HEADER, run_page.summary_row(run))) for run in (first, second)]
        self.assertEqual([(row["dev nll"], row["dev BLEU"]) for row in rows], [("-", "-"), ("5.500", "2.00")])
        self.assertEqual(run_page.scores_by_direction([first, second])[1], [["de-en", "-", "-"]])
        lines = run_page.curves([first, second], "validation", lambda r: r["step"], run_page.field("nll"))
        self.assertEqual([line.points for line in lines], [[], [(10, 5.5)]])

    def test_sample_translations_stand_side_by_side_as_text(self):
        def check(step, *texts):
            samples = [
                {"direction": "de-en", "line": line, "source": f"s{line}", "reference": f"r{line}", "translation": text}
                for line, text in texts
            ]
            return {"kind": "validation", "step": step, "nll": 1.0, "bleu": 1.0, "directions": [], "samples": samples}

        first = run_of("one", [train_record(9, 1.0), check(4, (1, "old")), check(8, (1, "<script>"), (1500, "b"))])
        second = run_of("two", [train_record(9, 1.0), check(8, (1, "c"))])
        older = run_of("old", [train_record(9, 1.0), {"kind": "validation", "step": 1, "nll": 1, "bleu": 1, "directions": []}])
        header, rows = run_page.samples([first, second, older])
        self.assertEqual(header, ["direction", "line", "source", "reference", "one", "two", "old"])
        self.assertEqual(rows[0], ["de-en", "1", "s1", "r1", "<script>", "c", "-"])
        self.assertEqual(rows[1], ["de-en", "1,500", "s1500", "r1500", "b", "-", "-"])
        self.assertEqual(run_page.samples([first])[0][-1], "translation")
        self.assertEqual(run_page.samples([older])[1], [])
        page = run_page.make_page([first])
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("<script>", page)

    def test_lines_have_the_records_values_and_plots_without_any_are_left_out(self):
        runs = [run_of("runs/one", [train_record(1, 6.0), train_record(2, 5.0)]), run_of("two", [train_record(1, "NaN")])]
        lines = run_page.curves(runs, "train", lambda r: r["step"], lambda r: r["nll"])
        self.assertEqual([line.points for line in lines], [[(1, 6.0), (2, 5.0)], []])
        self.assertEqual([line.label for line in lines], ["one", "two"])
        self.assertNotEqual(lines[0].method.light, lines[1].method.light)
        kickers = [kicker for kicker, _, _ in run_page.plots(runs)]
        self.assertEqual(kickers, ["loss", "loss", "loss", "smoothed", "norm"])

    def test_a_timeline_has_a_bar_for_each_action_of_the_first_step(self):
        def action(rank, step, name, start):
            return {"cat": "compute", "pid": rank, "name": name, "ts": start, "dur": 900.0, "args": {"step": step}}

        events = [action(0, 4, "0F0", 0), action(1, 4, "1F0", 1000), action(1, 4, "1B0", 2000), action(0, 5, "0F0", 9000)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace-4-5.json"
            path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
            caption, drawn = run_page.draw_timeline("t", path)
        self.assertEqual(caption, "What each rank computed in step 4")
        for colour, bars in ((run_page.FORWARD, 2), (run_page.BACKWARD, 1)):
            variable = f"fill: var(--plot-{colour[1:]})"
            self.assertEqual(str(drawn).count(variable), bars + 1)  # and the square of its name
        self.assertIn("rank 1", drawn)

    def test_folders_that_are_no_runs_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            code, _, error = page_of([folder])
            self.assertEqual(code, 4)
            self.assertIn(f"error: '{folder}': neither result.json of an experiment nor metrics.jsonl of a run", error)

    def test_a_damaged_file_of_a_run_is_named_by_line_and_field(self):
        def without(record, *path):
            record = json.loads(json.dumps(record))
            at = record
            for name in path[:-1]:
                at = at[name]
            del at[path[-1]]
            return record

        train = train_record(1, 6.0)
        check = {"kind": "validation", "step": 5, "nll": 5.0, "bleu": 1.0, "directions": [{"direction": "de-en", "bleu": 3.0}]}
        seen = {"kind": "instruments", "step": 1, "layers": [{"name": "decoder.layers.0", **dict.fromkeys(
            ("gradient_norm", "weight_norm", "update_norm"), 1.0)}]}  # fmt: skip
        action = {"cat": "compute", "pid": 0, "name": "0F0", "ts": 1, "dur": 900.0, "args": {"step": 4}}
        with tempfile.TemporaryDirectory() as folder:
            metrics, trace = Path(folder) / "metrics.jsonl", Path(folder) / "trace-1-2.json"
            for command, record, told in (
                ("report", without(train, "target_tokens"), "train: target_tokens: must be a whole number"),
                ("report", {**train, "seconds": "NaN"}, "train: seconds: must be a finite number"),
                ("report", {**train, "nll": None}, "train: nll: must be a number"),
                ("report", {**train, "step": 10**400}, "train: step: must be a whole number"),
                ("report", {**check, "bleu": "1"}, "validation: bleu: must be a number or null"),
                ("report", {**check, "samples": 7}, "validation: samples: must be a list"),
                ("report", {"kind": "spike"}, "spike: spike_step: must be a whole number"),
                ("instruments", without(seen, "layers"), "instruments: layers: must be a list"),
                ("instruments", without(seen, "layers", 0, "name"), "instruments: layers[0]: name: must be text"),
                ("instruments", {**seen, "layers": [7]}, "instruments: layers[0]: must be an object"),
            ):
                metrics.write_text(f'{json.dumps(train)}\n{{"torn\n[]\n{json.dumps(record)}\n', encoding="utf-8")
                code, _, error = lab_said([command, folder])
                self.assertEqual((code, error), (4, f"error: '{metrics}', line 4: {told}\n"))
            metrics.write_text(json.dumps(train) + "\n", encoding="utf-8")
            for text, told in (
                ("[]", ": must be an object"),
                ("{}", ": traceEvents: must be a list"),
                ('{"traceEvents": [7]}', ": traceEvents[0]: must be an object"),
                (json.dumps({"traceEvents": [{}, without(action, "args")]}), ": traceEvents[1]: args: must be an object"),
                (json.dumps({"traceEvents": [without(action, "args", "step")]}), ": traceEvents[0]: args: step: must be a whole number"),
                ("[" * 100000, ": no JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string"),
            ):
                trace.write_text(text, encoding="utf-8")
                code, _, error = page_of([folder])
                self.assertEqual((code, error), (4, f"error: '{trace}'{told}\n"))
            trace.unlink()
            trace.symlink_to("nowhere")
            self.assertEqual(page_of([folder])[0], 0)

    def test_a_folder_whose_name_is_no_unicode_has_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            run = os.fsencode(folder) + b"/\xff"
            os.mkdir(run)
            with open(run + b"/metrics.jsonl", "w", encoding="utf-8") as file:
                file.write(json.dumps(train_record(1, 6.0)) + "\n")
            done = subprocess.run([sys.executable, "-B", lab.__file__, "report", run], capture_output=True)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            with open(run + b"/report.html", encoding="utf-8") as file:
                self.assertIn("deepnet runs", file.read())

    def test_a_page_that_cannot_be_written_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "metrics.jsonl").write_text(json.dumps(train_record(1, 6.0)) + "\n", encoding="utf-8")
            code, _, error = page_of([folder, "--html", f"{folder}/metrics.jsonl/x.html"])
        self.assertEqual(code, 4)
        self.assertIn(f"error: [Errno 17] File exists: '{folder}/metrics.jsonl'", error)

    def test_a_run_is_read_line_by_line_as_utf_8_in_a_locale_of_another_encoding(self):
        sample = {"direction": "el-en", "line": 1, "source": "β – ğ\u2028", "reference": "b", "translation": "ß"}
        check = {"kind": "validation", "step": 1, "nll": 1, "bleu": 1, "directions": [], "samples": [sample]}
        with tempfile.TemporaryDirectory() as folder:
            locale = "tr_TR.ISO-8859-9"
            subprocess.run(["localedef", "-i", "tr_TR", "-f", "ISO-8859-9", f"{folder}/{locale}"], check=True)
            run = Path(folder) / "β"
            run.mkdir()
            records = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in (train_record(1, 1.0), check))
            (run / "metrics.jsonl").write_text(records, encoding="utf-8")
            done = subprocess.run(
                [sys.executable, "-B", lab.__file__, "report", run], capture_output=True,
                env={**os.environ, "LOCPATH": folder, "LC_ALL": locale},
            )  # fmt: skip
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            page = (run / "report.html").read_text(encoding="utf-8")
        self.assertIn("β – ğ", page)

    def test_settings_are_those_of_the_newest_checkpoint_and_memory_is_that_of_the_fullest_rank(self):
        asked = []
        stages = [{"memory": {"total": total}} for total in ("5", "9", "7")]

        def ask(words, shape):
            asked.append(words)
            return 0, {"manifest": {"run": {"seed": 1}}, "stages": stages}, ""

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(run_page.runs, "ask", ask):
            for step in (2, 10, 9):
                Path(folder, f"step-{step:08}").mkdir()
            self.assertEqual(run_page.spec_of(Path(folder), "deepnet"), {"seed": 1})
            self.assertEqual(asked[0][-1], f"{folder}/step-00000010")
            self.assertEqual(run_page.planned_bytes({"seed": 1}, "deepnet"), 9)

    def test_real_runs_give_a_page_with_their_settings_and_planned_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            sets = [f"data.folder={folder}/data", "prepare.tokenizer.vocab_size=300", "train.steps=4", "train.log_every_steps=1"]
            sets += [f"model.{name}=2" for name in ("encoder_layers", "decoder_layers")] + ["instruments.every_steps=2"]
            words = [*RECIPE, *(w for s in sets for w in ("--set", s))]
            subprocess.run([PROGRAM, "prepare", *words], check=True, capture_output=True)
            for name, rate in (("slow", "1e-4"), ("fast", "1e-2")):
                more = ["--set", f"folder={folder}/{name}", "--set", f"optim.learning_rate={rate}", "--trace", "2..3"]
                subprocess.run([PROGRAM, "train", *words, *more], check=True, capture_output=True)
            pages = []
            for _ in range(2):
                code, out, error = page_of([f"{folder}/slow", f"{folder}/fast"])
                self.assertEqual((code, error), (0, ""))
                self.assertEqual(out, f"{folder}/slow/report.html\n")
                pages.append(Path(f"{folder}/slow/report.html").read_text(encoding="utf-8"))
            read = [run_page.read_run(f"{folder}/{name}", PROGRAM, ".") for name in ("slow", "fast")]
        self.assertEqual(pages[0], pages[1])
        self.assertEqual(
            run_page.settings_that_differ(read)[1], [["optim.learning_rate", "0.0001", "0.01"]]
        )
        self.assertGreater(read[0]["planned"], MIB)
        self.assertGreater(R.num(read[0]["kinds"]["train"][-1]["resident_bytes"]), read[0]["planned"])
        for text in ("What each rank computed in step 2", "Gradient norm of each layer", "optim.warmup_steps"):
            self.assertIn(text, pages[0])


if __name__ == "__main__":
    unittest.main()
