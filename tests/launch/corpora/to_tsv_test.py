"""to_tsv.py and `deepnet prepare --tsv`: rows from files as people have them become a corpus."""

import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
COLUMNS = ["--source", "translation.de", "--target", "translation.en"]
ROWS = [
    {"translation": {"de": f"Satz Nummer {i} über {i * 37 % 91} Häuser", "en": f"sentence number {i} on {i * 37 % 91} houses"},
     "score": 1 + i % 10 / 100}
    for i in range(1000)
]  # fmt: skip
TSV = "".join(f"{row['translation']['de']}\t{row['translation']['en']}\t{row['score']}\n" for row in ROWS)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def to_tsv(self, *words, code=0):
        command = [sys.executable, "-B", ROOT / "launch/corpora/to_tsv.py", *words]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, encoding="utf-8")
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def write_lines(self, name, rows):
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (self.folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


class JsonLines(InFolder):
    def test_rows_keep_their_order_and_nested_columns_are_found(self):
        for name in ("a.jsonl", "a.jsonl.gz", "a.json"):
            self.write_lines(name, ROWS)
            self.assertEqual(self.to_tsv(name, *COLUMNS, "--score", "score"), TSV)
        self.assertEqual(self.to_tsv("a.jsonl", "a.json", *COLUMNS, "--score", "score"), TSV + TSV)

    def test_separators_become_spaces_and_rows_without_a_value_are_left_out(self):
        values = [("a\tb\nc", "x\u2028y"), (None, "x"), ("d", "z")]
        self.write_lines("a.jsonl", [{"translation": {"de": de, "en": en}} for de, en in values])
        self.assertEqual(self.to_tsv("a.jsonl", *COLUMNS), "a b c\tx y\nd\tz\n")
        self.write_lines("b.jsonl", [{"s": "a", "t": "b", "score": None}, {"s": "c", "t": "d", "score": 0}])
        self.assertEqual(self.to_tsv("b.jsonl", "--source", "s", "--target", "t", "--score", "score"), "c\td\t0\n")

    def test_a_reader_that_leaves_is_an_error(self):
        self.write_lines("a.jsonl", ROWS * 20)
        words = [sys.executable, "-B", ROOT / "launch/corpora/to_tsv.py", "a.jsonl", *COLUMNS]
        with subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as left:
            left.stdout.close()
            self.assertEqual((left.stderr.read(), left.wait()), (b"", 4))

    def test_errors_name_file_line_and_column(self):
        (self.folder / "a.jsonl").write_text('{"s": "x", "t": "y"}\n{"s": "x"\n', encoding="utf-8")
        self.assertIn("a.jsonl:2: ", self.to_tsv("a.jsonl", "--source", "s", "--target", "t", code=4))
        text = self.to_tsv("a.jsonl", "--source", "s", "--target", "u", code=4)
        self.assertIn("a.jsonl, row 1: no column 'u'; there are: s, t", text)
        self.write_lines("e.jsonl", [{"s\x1b[2J\x07é": "x"}])
        self.assertIn("there are: s\ufffd[2J\ufffdé\n", self.to_tsv("e.jsonl", *COLUMNS, code=4))
        self.assertIn("missing/a.jsonl", self.to_tsv("missing/a.jsonl", *COLUMNS, code=4))
        self.write_lines("b.jsonl", [{"s": "x", "t": 7}])
        self.assertIn("'t' is int, not text", self.to_tsv("b.jsonl", "--source", "s", "--target", "t", code=4))
        (self.folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"s": "x", "t": "y"}\n' * 9)[:-9])
        self.assertIn("c.jsonl.gz: after line ", self.to_tsv("c.jsonl.gz", "--source", "s", "--target", "t", code=4))
        (self.folder / "d.jsonl.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 99)
        self.assertEqual(self.to_tsv("d.jsonl.gz", *COLUMNS, code=4).count("\n"), 1)
        (self.folder / "f.jsonl").write_text("[" * 100000, encoding="utf-8")
        self.assertIn("error: f.jsonl:1: maximum recursion depth", self.to_tsv("f.jsonl", *COLUMNS, code=4))

    def test_a_saved_dataset_is_in_its_own_folder(self):
        (self.folder / "saved").mkdir()
        self.write_lines("x.jsonl", ROWS)
        for name in ("../x.jsonl", str(self.folder / "x.jsonl"), "a/x.jsonl", "..", "", "x\0.jsonl", 7, None):
            state = json.dumps({"_data_files": [{"filename": name}]})
            (self.folder / "saved/state.json").write_text(state, encoding="utf-8")
            text = self.to_tsv("saved", *COLUMNS, code=4)
            self.assertEqual(text, f"error: saved/state.json: filename {json.dumps(name)}: must be the name of a file beside it\n")
        for state in ("[]", "7", "{", '{"_data_files": [7]}', "[" * 100000):
            (self.folder / "saved/state.json").write_text(state, encoding="utf-8")
            text = self.to_tsv("saved", *COLUMNS, code=4)
            self.assertIn("error: saved/state.json: not the state of a saved dataset: ", text)
            self.assertEqual(text.count("\n"), 1)


class Prepare(InFolder):
    SETTINGS = ["--from", "de", "--to", "en", "--set", "prepare.tokenizer.vocab_size=150"]

    def prepare(self, *words, text="", code=0, launcher=()):
        command = [*launcher, PROGRAM, "prepare", "--root", self.folder, *self.SETTINGS, *words]
        done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", cwd=ROOT)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def corpus(self, name):
        shards = sorted((self.folder / name).glob("*.pairs"))
        self.assertTrue(shards)
        return [shard.read_bytes() for shard in shards]

    def test_standard_input_is_as_good_as_a_file(self):
        (self.folder / "a.tsv").write_text(TSV, encoding="utf-8")
        self.prepare("--tsv", "a.tsv", "--set", "data.folder=file")
        self.prepare("--tsv", "-", "--set", "data.folder=new/piped", text=TSV)
        self.assertEqual(self.corpus("new/piped"), self.corpus("file"))
        ranks = ["tests/mpi/mpirun.sh", "2"]
        self.prepare("--tsv", "-", "--set", "data.folder=ranks", text=TSV, launcher=ranks)
        self.assertEqual(self.corpus("ranks"), self.corpus("file"))
        pipe = ["bash", "-c", 'exec "$@" --tsv <(cat "$0")', self.folder / "a.tsv"]
        self.prepare("--set", "data.folder=pipe", launcher=pipe)
        self.assertEqual(self.corpus("pipe"), self.corpus("file"))
        kept = (self.folder / "new/piped.tsv").stat().st_mtime_ns
        again = self.prepare("--tsv", "-", "--set", "data.folder=new/piped", text=TSV)
        self.assertIn("already prepared", again)
        self.assertEqual((self.folder / "new/piped.tsv").stat().st_mtime_ns, kept)

    def test_the_only_copy_of_a_corpus_text_is_not_replaced_by_another(self):
        self.prepare("--tsv", "-", "--set", "data.folder=a/", text=TSV)
        for words, code in ((), 4), (("--dry-run",), 4), (("--dry-run", "--extend"), 4), (("--extend",), 0):
            self.assertEqual((self.folder / "a.tsv").read_text(encoding="utf-8"), TSV)
            said = self.prepare("--tsv", "-", "--set", "data.folder=a", *words, text=TSV[:-20] + "\n", code=code)
            self.assertEqual("a.tsv has another text" in said, code == 4, said)
            self.assertFalse((self.folder / "a.tsv.tmp").exists())

    def test_pairs_below_the_threshold_are_dropped(self):
        self.prepare("--tsv", "-", "--score-threshold", "1.05", "--set", "data.folder=a", text=TSV)
        better = "".join(line for line in io.StringIO(TSV) if float(line.split("\t")[2]) >= 1.05)
        self.prepare("--tsv", "-", "--set", "data.folder=b", text=better)
        self.assertEqual(self.corpus("a"), self.corpus("b"))

    def test_errors_name_the_flag_or_the_line(self):
        nothing = self.prepare("--tsv", "-", "--set", "data.folder=a", code=4)
        self.assertIn("--tsv -: nothing comes from standard input", nothing)
        self.assertFalse(list(self.folder.iterdir()))
        self.assertIn("--from: only with --tsv", self.prepare("--config", "a.textproto", code=2))
        same = self.prepare("--tsv", "-", "--to", "de", "--set", "data.folder=a", text=TSV, code=2)
        self.assertIn("prepare.text[0].target_language: 'de': must differ", same)


class Arrow(InFolder):
    """Needs pyarrow: the label `peers`."""

    def test_parquet_arrow_zst_and_saved_datasets_give_the_rows_of_json(self):
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pylist(ROWS)
        pyarrow.parquet.write_table(table, self.folder / "a.parquet", row_group_size=70)
        with pyarrow.ipc.new_file(self.folder / "a.arrow", table.schema) as out:
            out.write_table(table)
        with pyarrow.output_stream(self.folder / "a.jsonl.zst") as out:
            out.write("".join(json.dumps(row) + "\n" for row in ROWS).encode())
        saved = self.folder / "saved"
        saved.mkdir()
        names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
        for name, part in zip(names, (table.slice(0, 300), table.slice(300))):
            with pyarrow.ipc.new_stream(saved / name, table.schema) as out:
                out.write_table(part)
        (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}), encoding="utf-8")
        for name in ("a.parquet", "a.arrow", "a.jsonl.zst", "saved"):
            self.assertEqual(self.to_tsv(name, *COLUMNS, "--score", "score"), TSV, name)
        (self.folder / "cut.parquet").write_bytes((self.folder / "a.parquet").read_bytes()[:300])
        text = self.to_tsv("a.parquet", "--source", "translation.de", "--target", "target", code=4)
        self.assertIn("a.parquet: no column 'target'; there are: translation, score", text)
        self.assertIn("cut.parquet: ", self.to_tsv("cut.parquet", *COLUMNS, code=4))


if __name__ == "__main__":
    unittest.main()
