"""fetch.py against a server of this machine: archives have the layout of the public ones, and a few sentences."""

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "launch" / "corpora"))

from server import File, Server

import fetch

PROGRAM = os.environ.get("DEEPNET_PROGRAM", str(ROOT / "build" / "release" / "deepnet"))
WORDS = {
    "en": "the house river stone bread water friend garden window letter morning winter".split(),
    "de": "das Haus Fluss Stein Brot Wasser Freund Garten Fenster Brief Morgen Winter".split(),
    "fr": "la maison rivière pierre pain eau ami jardin fenêtre lettre matin hiver".split(),
}


def text(language, count, salt):
    """`count` lines of four words; line n of two languages says the same, and no line stands in two texts."""
    words = WORDS[language]
    lines = []
    for n in range(count):
        n += 1000 * salt
        lines.append(" ".join(words[n // 12**k % 12] for k in range(4)) + ".")
    return "\n".join(lines).encode() + b"\n"


def sgm(language, count, salt):
    lines = text(language, count, salt).decode().rstrip("\n").split("\n")
    segments = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines))
    return f'<srcset setid="newstest">\n<doc docid="a">\n<p>\n{segments}</p>\n</doc>\n</srcset>\n'.encode()


def tar_gz(members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", encoding="utf-8") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(made.getvalue(), compresslevel=0)


def zip_file(members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def opus100(pair, lines=400):
    members = {}
    for salt, (split, count) in enumerate({"train": lines, "dev": 10, "test": 10}.items()):
        for language in pair.split("-"):
            name = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.{language}"
            members[name] = text(language, count, salt)
    return tar_gz(members)


def zero_shot(pair):
    name = f"opus-100-corpus/v1.0/zero-shot/{pair}/opus.{pair}-test."
    return tar_gz({name + language: text(language, 10, 3) for language in pair.split("-")})


def ccmatrix(pair, lines=400, salt=0):
    first, second = pair.split("-")
    return zip_file({
        "README": b"mined",
        "LICENSE": b"terms",
        f"CCMatrix.{pair}.{first}": text(first, lines, salt),
        f"CCMatrix.{pair}.{second}": text(second, lines, salt),
        f"CCMatrix.{pair}.scores": b"1.1\n" * lines,
    })


def flores():
    codes = {"en": "eng_Latn", "de": "deu_Latn", "fr": "fra_Latn"}
    splits = {"dev": 1, "devtest": 2}
    return tar_gz({
        f"./flores200_dataset/{split}/{code}.{split}": text(language, 20, salt)
        for split, salt in splits.items() for language, code in codes.items()
    })


def wmt17():
    """The four archives by name."""
    training = {"europarl-v7": "training/", "commoncrawl": "", "nc-v12": "training/"}
    names = {"europarl-v7": "europarl-v7", "commoncrawl": "commoncrawl", "nc-v12": "news-commentary-v12"}
    archives = {}
    for salt, (archive, folder) in enumerate(training.items()):
        members = {f"{folder}{names[archive]}.de-en.{x}": text(x, 150, salt) for x in ("de", "en")}
        members[f"{folder}{names[archive]}.cs-en.cs"] = b"ahoj\n"
        archives[f"training-parallel-{archive}.tgz"] = tar_gz(members)
    dev = {f"dev/newstest2013.{x}": text(x, 10, 4) for x in ("de", "en")}
    for salt, test in enumerate(("newstest2014", "newstest2017"), 5):
        dev |= {f"dev/{test}-deen-{side}.{x}.sgm": sgm(x, 10, salt) for side, x in (("src", "de"), ("ref", "en"))}
    archives["dev.tgz"] = tar_gz(dev)
    return archives


class Fetch(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.out = self.folder / "corpus"
        self.servers = []
        self.addCleanup(lambda: [server.stop() for server in self.servers])

    def serve(self, **files):
        """A server of {name: bytes or File}; archives.tsv then has those of opus100, flores and wmt17."""
        files = {name: f if isinstance(f, File) else File(f) for name, f in files.items()}
        rows = []
        for name, file in files.items():
            corpus = "opus100" if "opus-100" in name else "flores" if "flores" in name else "wmt17"
            if not name.endswith(".zip"):
                sha256 = hashlib.sha256(file.data).hexdigest()
                rows.append(f"{corpus}\thttp://nowhere.invalid/{name}\t{len(file.data)}\t{sha256}\n")
        (self.folder / "archives.tsv").write_text("".join(rows), encoding="utf-8")
        self.servers.append(Server(files))
        return files

    def words(self, *words):
        mirrors = [word for server in self.servers for word in ("--url", server.url)]
        quick = ["--pause", "0.01", "--retries", "3", "--timeout", "20"]
        return [*mirrors, *quick, "--out", str(self.out), "--archives", str(self.folder / "archives.tsv"), *words]

    def fetch(self, *words):
        """(exit code, standard output, standard error)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = fetch.main(self.words(*words))
            except SystemExit as exit:
                code = exit.code
        return code, out.getvalue(), err.getvalue()

    def assert_fetched(self, *words):
        code, out, err = self.fetch(*words)
        self.assertEqual(code, 0, err)
        return out, err

    def prepare(self, recipe, *sets):
        """The pairs of languages in a corpus that the real program makes of OUT with a recipe."""
        (self.folder / "launch").symlink_to(ROOT / "launch")
        words = [w for s in [*sets, "prepare.tokenizer.vocab_size=200", "data.folder=data"] for w in ("--set", s)]
        words = [PROGRAM, "prepare", "--config", f"launch/recipes/{recipe}.textproto", "--root", ".", *words]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "data" / "report.json").read_text(encoding="utf-8"))
        return {(p["first_language"], p["second_language"], p["split"]): int(p["kept"]) for p in report["pairs"]}


class Layouts(Fetch):
    def test_opus100_is_what_the_recipes_prepare(self):
        self.serve(**{f"opus-100-corpus-{pair}-v1.0.tar.gz": opus100(pair) for pair in ("de-en", "en-fr")},
                   **{"opus-100-corpus-zeroshot-v1.0.tar.gz": zero_shot("de-fr")})
        out, _ = self.assert_fetched("opus100", "--langs", "de,fr")
        self.assertIn("license", out)
        self.assertIn("arXiv:2004.11867", out)
        pairs = self.prepare("deepnet_100l")  # names the folder `supervised`
        self.assertEqual(pairs["de", "en", "train"], 400)
        self.assertEqual(pairs["en", "fr", "test"], 10)
        shutil.rmtree(self.folder / "data")
        (self.folder / "launch").unlink()
        pairs = self.prepare("deepnet_100l", "prepare.opus100_folder=corpus/opus-100-corpus/v1.0")
        self.assertEqual(pairs["de", "fr", "test"], 10)  # of `zero-shot`

    def test_ccmatrix_gets_its_dev_and_test_sets_from_flores(self):
        self.serve(**{"de-en.txt.zip": ccmatrix("de-en"), "flores200_dataset.tar.gz": flores()})
        self.assert_fetched("ccmatrix", "--pairs", "en-de")
        self.assertEqual((self.out / "ccmatrix/de-en/opus.de-en-train.scores").read_bytes(), b"1.1\n" * 400)
        self.assert_fetched("flores", "--langs", "de", "--into", "ccmatrix")
        pairs = self.prepare("paper/languages102", "prepare.opus100_folder=corpus/ccmatrix")
        self.assertEqual(pairs, {("de", "en", "train"): 400, ("de", "en", "dev"): 20, ("de", "en", "test"): 20})

    def test_flores_has_each_text_once_and_links_for_each_pair(self):
        file = self.serve(**{"flores200_dataset.tar.gz": flores()})["flores200_dataset.tar.gz"]
        self.assert_fetched("flores", "--langs", "de")
        self.assert_fetched("flores", "--langs", "de,fr")  # which lacks one language
        for pair in ("de-en", "de-fr", "en-fr"):
            for split, salt in (("dev", 1), ("test", 2)):
                for language in pair.split("-"):
                    path = self.out / "flores" / pair / f"opus.{pair}-{split}.{language}"
                    self.assertEqual(path.read_bytes(), text(language, 20, salt))
                    self.assertTrue(path.is_symlink())
        self.assert_fetched("flores", "--langs", "de", "--into", "other")  # nothing to download
        self.assertEqual(len(file.asked), 2)
        self.assertTrue((self.out / "other/de-en/opus.de-en-dev.en").is_file())

    def test_wmt17_is_what_the_recipe_prepares(self):
        self.serve(**wmt17())
        self.assert_fetched("wmt17")
        whole = b"".join(text("de", 150, salt) for salt in range(3))
        self.assertEqual((self.out / "wmt17/train.de").read_bytes(), whole)
        self.assertEqual((self.out / "wmt17/test.en").read_bytes(), text("en", 10, 5))
        self.assertEqual((self.out / "wmt17/newstest2017.de").read_bytes(), text("de", 10, 6))
        pairs = self.prepare("paper/wmt17")
        self.assertEqual(pairs, {("de", "en", "train"): 450, ("de", "en", "dev"): 10, ("de", "en", "test"): 10})

    def test_a_pair_that_is_not_there_is_passed_over_unless_it_was_named(self):
        self.serve(**{"de-en.txt.zip": ccmatrix("de-en")})
        _, err = self.assert_fetched("ccmatrix", "--langs", "de,fr")
        self.assertIn("de-fr.txt.zip: no server has it", err)
        code, _, err = self.fetch("ccmatrix", "--pairs", "de-fr")
        self.assertEqual(code, 4)
        self.assertIn("error: de-fr.txt.zip: no server has it", err)

    def test_a_language_without_test_sets_has_training_text_alone(self):
        name = "opus-100-corpus/v1.0/supervised/de-en/opus.de-en-train."
        self.serve(**{"opus-100-corpus-de-en-v1.0.tar.gz": tar_gz({name + x: text(x, 5, 0) for x in ("de", "en")})})
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(len(list(self.out.rglob("opus.*"))), 2)


NAME = "opus-100-corpus-de-en-v1.0.tar.gz"
TRAIN = "opus-100-corpus/v1.0/supervised/de-en/opus.de-en-train.de"


class Servers(Fetch):
    """One archive of OPUS-100, of 90 kB, by a server that does something wrong."""

    def one(self, **how):
        return self.serve(**{NAME: File(opus100("de-en", 1700), **how)})[NAME]

    def assert_whole(self):
        self.assertEqual((self.out / TRAIN).read_bytes(), text("de", 1700, 0))
        left = [path.name for path in (self.out / ".fetch").iterdir() if "tar.gz" in path.name]
        self.assertEqual(left, [f"opus100.{NAME}.json"])

    def test_a_cut_download_goes_on_where_it_was_cut(self):
        file = self.one(cut_after=[20000, 30000])
        _, err = self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertIn(f"cut after 20,000 of {len(file.data):,} bytes", err)
        self.assertEqual(file.asked, [None, "bytes=20000-", "bytes=50000-"])
        self.assertEqual(file.sent, len(file.data))
        self.assert_whole()

    def test_without_ranges_it_starts_over(self):
        file = self.one(cut_after=[20000], ranges=False)
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(file.sent, 20000 + len(file.data))
        self.assert_whole()

    def test_a_range_that_is_another_one_is_not_taken(self):
        file = self.one(cut_after=[20000], lie=1)
        _, err = self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertIn("another range than it was asked for", err)
        self.assertEqual(file.asked, [None, "bytes=20000-", None])
        self.assert_whole()

    def test_a_server_that_stands_still_is_left_after_the_time_out(self):
        file = self.one(stand_still=1)
        _, err = self.assert_fetched("opus100", "--pairs", "de-en", "--timeout", "0.3")
        self.assertIn("timed out", err)
        self.assertEqual(file.asked, [None, f"bytes={len(file.data) // 2}-"])
        self.assert_whole()

    def test_a_trickle_is_left_after_the_time_out(self):
        self.one(trickle=1)
        _, err = self.assert_fetched("opus100", "--pairs", "de-en", "--timeout", "0.3")
        self.assertRegex(err, r"\d+ bytes in [\d.]+ s; again in")
        self.assert_whole()

    def test_a_corrupt_file_is_named_and_fetched_anew(self):
        file = self.one(spoil=1)
        _, err = self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertRegex(err, f"{NAME}: corrupt: its SHA-256 is [0-9a-f]{{64}}, it should be [0-9a-f]{{64}}; fetching")
        self.assertEqual(file.asked, [None, None])
        self.assert_whole()

    def test_a_file_that_stays_corrupt_ends_with_code_4(self):
        file = self.one(spoil=100)
        code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertRegex(err, f"error: .*{NAME}: corrupt again: its SHA-256 is")
        self.assertEqual(len(file.asked), 2)
        self.assertFalse((self.out / TRAIN).exists())

    def test_a_file_of_another_size_is_not_even_fetched(self):
        file = self.one()
        table = self.folder / "archives.tsv"
        table.write_text(table.read_text(encoding="utf-8").replace(str(len(file.data)), "17"), encoding="utf-8")
        code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertIn(f"the server has {len(file.data):,} bytes, it should be 17", err)

    def test_a_busy_server_is_asked_again(self):
        file = self.one(refuse=2)
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(len(file.asked), 3)
        self.assert_whole()

    def test_a_server_that_never_answers_is_given_up(self):
        file = self.one(refuse=100)
        code, _, err = self.fetch("opus100", "--pairs", "de-en", "--retries", "2")
        self.assertEqual(code, 4)
        self.assertIn("given up after 3 tries: HTTP Error 503", err)
        self.assertEqual(len(file.asked), 3)

    def test_headers_that_are_no_numbers_are_named_or_passed_over(self):
        for length in ("abc", "-1", "1_0", "9" * 5000):
            self.one(claims={"Content-Length": length})
            code, _, err = self.fetch("opus100", "--pairs", "de-en", "--retries", "1")
            self.assertEqual(code, 4)
            said = f"{NAME}: given up after 2 tries: the server says a Content-Length of '{length[:40]}'\n"
            self.assertTrue(err.endswith(said), err)
            self.servers.pop().stop()
        self.one(cut_after=[20000], claims={"Content-Range": f"bytes {'9' * 5000}-"})
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assert_whole()
        self.servers.pop().stop()
        shutil.rmtree(self.out)
        self.one(refuse=1, claims={"Retry-After": "\u00b2"})  # a digit, but no number
        self.assert_fetched("opus100", "--pairs", "de-en", "--url", "http://[")
        self.assert_whole()

    def test_an_address_that_is_none_is_named(self):
        self.one(refuse=100)
        code, _, err = self.fetch("opus100", "--pairs", "de-en", "--url", "http://[", "--retries", "2")
        self.assertEqual(code, 4)
        self.assertIn(f"http://[/{NAME}: no address: Invalid IPv6 URL; again in", err)

    def test_damaged_notes_of_an_earlier_call_lead_nowhere(self):
        file = self.one()
        (self.out / ".fetch").mkdir(parents=True)
        part, url = self.out / ".fetch" / f"opus100.{NAME}.part", f"{self.servers[0].url}/{NAME}"
        notes = ["[]", "{", "7", "[" * 100000, *({"url": url, "etag": etag} for etag in (3, "a\nb", "\u20ac"))]
        for count, note in enumerate(notes, 1):
            part.write_bytes(file.data[:1000])
            part.with_name(part.name + ".json").write_text(note if isinstance(note, str) else json.dumps(note), encoding="utf-8")
            self.assert_fetched("opus100", "--pairs", "de-en")
            self.assert_whole()
            self.assertEqual(file.asked, count * ["bytes=1000-"])  # the checksum tells that it is one file
            (self.out / TRAIN).unlink()
        record = self.out / ".fetch" / f"opus100.{NAME}.json"
        for count, text in enumerate(('{"x": 1}', "[]", '{"files": []}', "[" * 100000), len(notes) + 1):
            record.write_text(text, encoding="utf-8")
            self.assert_fetched("opus100", "--pairs", "de-en")
            self.assert_whole()
            self.assertEqual(len(file.asked), count)

    def test_the_next_mirror_has_what_the_first_lacks_or_spoils(self):
        self.serve()
        self.one(cut_after=[20000])
        spoiling = self.servers[1].files[NAME]
        self.servers.append(Server({NAME: File(spoiling.data)}))
        _, err = self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertIn("HTTP Error 404", err)
        self.assertEqual(self.servers[2].files[NAME].asked, ["bytes=20000-"])  # the checksum tells that it is one file
        self.assert_whole()

    def test_interrupted_it_goes_on_when_it_is_run_again(self):
        file = self.one(cut_after=[20000], stand_still=1)
        script = str(ROOT / "launch/corpora/fetch.py")
        words = [sys.executable, "-B", script, *self.words("opus100", "--pairs", "de-en")]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, encoding="utf-8")
        self.servers[0].began.wait()  # the first 20,000 bytes are on disk
        process.send_signal(signal.SIGTERM)
        err = process.communicate()[1]
        self.assertEqual(process.returncode, 75, err)
        self.assertIn("run the same command again", err)
        had = (self.out / ".fetch" / f"opus100.{NAME}.part").stat().st_size
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(file.asked, [None, "bytes=20000-", f"bytes={had}-"])
        self.assert_whole()

    def test_what_is_there_is_not_fetched_again_and_what_is_gone_is(self):
        file = self.one()
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(len(file.asked), 1)
        (self.out / TRAIN).unlink()
        self.assert_fetched("opus100", "--pairs", "de-en")
        self.assertEqual(len(file.asked), 2)
        self.assert_whole()


class Unsummed(Fetch):
    """CCMatrix, of which no checksum is published: its version, its size and the sums inside of the archive tell."""

    def test_another_version_in_the_middle_starts_over(self):
        old, new = ccmatrix("de-en", 1000), ccmatrix("de-en", 1000, salt=1)
        file = self.serve(**{"de-en.txt.zip": File(old, cut_after=[20000])})["de-en.txt.zip"]
        send = Server.send

        def send_and_change(server, handler, served, begin):
            send(server, handler, served, begin)
            served.data, served.etag = new, '"2"'

        with unittest.mock.patch.object(Server, "send", send_and_change):
            self.assert_fetched("ccmatrix", "--pairs", "de-en")
        self.assertEqual(file.asked, [None, "bytes=20000-"])
        self.assertEqual((self.out / "ccmatrix/de-en/opus.de-en-train.de").read_bytes(), text("de", 1000, 1))

    def test_without_a_version_it_starts_over(self):
        file = self.serve(**{"de-en.txt.zip": File(ccmatrix("de-en"), etag=None, cut_after=[2000])})["de-en.txt.zip"]
        self.assert_fetched("ccmatrix", "--pairs", "de-en")
        self.assertEqual(file.asked, [None, None])

    def test_a_corrupt_archive_is_named_and_fetched_anew(self):
        file = self.serve(**{"de-en.txt.zip": File(ccmatrix("de-en"), spoil=1)})["de-en.txt.zip"]
        _, err = self.assert_fetched("ccmatrix", "--pairs", "de-en")
        self.assertIn("de-en.txt.zip: corrupt: it cannot be unpacked: Bad CRC-32", err)
        self.assertEqual(len(file.asked), 2)

    def test_texts_of_unequal_length_are_named(self):
        members = {f"CCMatrix.de-en.{x}": text(x, n, 0) for x, n in (("de", 10), ("en", 9))}
        self.serve(**{"de-en.txt.zip": zip_file({**members, "CCMatrix.de-en.scores": b"1\n" * 10})})
        code, _, err = self.fetch("ccmatrix", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertIn("opus.de-en-train.de has 10 lines, ccmatrix/de-en/opus.de-en-train.en has 9", err)

    def test_a_list_asks_the_server_for_sizes_and_fetches_nothing(self):
        file = self.serve(**{"de-en.txt.zip": File(ccmatrix("de-en"))})["de-en.txt.zip"]
        code, out, _ = self.fetch("ccmatrix", "--langs", "de,fr", "--list")
        self.assertEqual(code, 0)
        self.assertRegex(out, rf"{len(file.data):,}  size only  http://127.*/de-en.txt.zip")
        self.assertIn("and 2 archives that no server tells the size of", out)
        self.assertIn("arXiv:1911.04944", out)
        self.assertEqual(file.asked, [])
        self.assertFalse(self.out.exists())


class Care(Fetch):
    def test_a_table_of_another_form_is_named_by_its_line(self):
        self.serve(**{NAME: opus100("de-en")})
        table = self.folder / "archives.tsv"
        row = table.read_bytes()
        corpus, url, size, sha256 = row.strip().split(b"\t")
        for changed in ((corpus, url), (corpus, url, b"abc", sha256), (corpus, url, b"\xb2", sha256), (corpus, url, b"1" * 5000, sha256),
                        (corpus, url + b"\xff", size, sha256), (corpus, b"file:///etc/x", size, sha256), (corpus, url, size, b"x")):
            table.write_bytes(row + b"\t".join(changed) + b"\n")
            code, _, err = self.fetch("opus100", "--pairs", "de-en")
            self.assertEqual((code, err), (4, f"error: {table}:2: not a corpus, an address, a size and a SHA-256, with tabs "
                                              "between them\n"))  # fmt: skip
        table.write_bytes(row.replace(b"-de-en-", b"-../../x-"))
        self.assertIn(f"error: {table}:1: no archive of opus100: ", self.fetch("opus100", "--pairs", "de-en")[2])
        table.write_bytes(row)
        for words, lacks in {("opus100",): "zeroshot", ("flores", "--langs", "de"): "flores200_dataset", ("wmt17",): "europarl-v7"}.items():
            code, _, err = self.fetch(*words)
            self.assertEqual((code, err), (4, f"error: {table}: no archive '{lacks}' of {words[0]}\n"))

    def test_an_archive_that_no_reader_opens_is_named_and_its_names_move_no_cursor(self):
        locked = bytearray(ccmatrix("de-en"))
        for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            at = -1
            while (at := locked.find(header, at + 1)) >= 0:
                locked[at + flags] |= 1
        self.serve(**{"de-en.txt.zip": bytes(locked), NAME: tar_gz({"../\x1b[2Jx": b"x"})})
        code, _, err = self.fetch("ccmatrix", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertRegex(err, r"\nerror: de-en.txt.zip: it cannot be unpacked: .* is encrypted, password required .*\n$")
        code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertIn("the member '../\ufffd[2Jx' would be written outside", err)

    def test_no_member_is_written_outside_of_its_folder(self):
        for outside in ("../escaped", "/escaped", "opus-100-corpus/../../escaped"):
            self.serve(**{NAME: tar_gz({outside: b"x", TRAIN: b"x\n"})})
            code, _, err = self.fetch("opus100", "--pairs", "de-en")
            self.assertEqual(code, 4)
            self.assertIn(f"the member '{outside}' would be written outside of its folder", err)
            self.assertEqual(list(self.folder.rglob("escaped")), [])
            self.servers.pop().stop()
            shutil.rmtree(self.out)

    def test_a_link_in_an_archive_is_not_followed(self):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            link = tarfile.TarInfo(TRAIN)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        self.serve(**{NAME: made.getvalue()})
        code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertIn("it has no opus-100-corpus", err)

    def test_a_full_disk_is_told_before_anything_is_fetched(self):
        file = self.serve(**{NAME: File(opus100("de-en"))})[NAME]
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=1000)):
            code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertRegex(err, r"about what is missing takes [\d.]+ MB, free are 0.0 MB")
        self.assertEqual(file.asked, [])

    def test_a_second_one_in_the_same_folder_is_refused(self):
        self.serve(**{NAME: opus100("de-en")})
        (self.out / ".fetch").mkdir(parents=True)
        with open(self.out / ".fetch" / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            code, _, err = self.fetch("opus100", "--pairs", "de-en")
        self.assertEqual(code, 4)
        self.assertIn("another fetch.py is at work there", err)

    def test_mistakes_of_the_command_line_end_with_code_2(self):
        self.serve(**{NAME: b"x", "opus-100-corpus-zeroshot-v1.0.tar.gz": b"x"})
        for words, told in {
            ("nothing",): "invalid choice: 'nothing'",
            ("opus100", "--pairs", "de"): "'de' is not a pair like de-en",
            ("opus100", "--pairs", "de-xx"): "opus100 has no de-xx",
            ("opus100", "--langs", "de,xx"): "opus100 has no xx",
            ("opus100", "--langs", "de,../fr"): "'../fr' is not a language's tag",
            ("opus100", "--langs", "de", "--pairs", "de-en"): "--langs or --pairs, not both",
            ("ccmatrix",): "ccmatrix needs --langs or --pairs",
            ("flores", "--langs", "tlh"): "flores has no 'tlh'",
            ("flores", "--into", "../x"): "--into: a folder's name",
            ("wmt17", "--langs", "de"): "wmt17 is en-de",
            ("wmt17", "--timeout", "nan"): "--timeout: from 0.001 to 1,000,000",
            ("wmt17", "--pause", "-1"): "--pause: from 0 to 1,000,000",
            ("wmt17", "--retries", "-1"): "--retries: from 0 to 1,000,000",
            ("wmt17", "--url", "ftp://x"): "--url: an address that begins with http",
        }.items():
            code, _, err = self.fetch(*words)
            self.assertEqual(code, 2, words)
            self.assertIn(told, err)

    def test_the_published_table_has_every_archive_and_its_sum(self):
        rows = [line.split("\t") for line in fetch.TABLE.read_text(encoding="utf-8").rstrip("\n").split("\n")]
        self.assertEqual({corpus: sum(r[0] == corpus for r in rows) for corpus in ("opus100", "flores", "wmt17")},
                         {"opus100": 100, "flores": 1, "wmt17": 4})
        for _, url, size, sha256 in rows:
            self.assertRegex(url, r"^https?://[a-z.]+/.*gz$")
            self.assertGreater(int(size), 10000)
            self.assertRegex(sha256, "^[0-9a-f]{64}$")
        options = fetch.parse(["opus100"])
        self.assertEqual(len(fetch.opus100(options)), 100)
        self.assertEqual(len(fetch.flores_pairs(fetch.parse(["flores"]))), len(fetch.FLORES_CODES) - 2)


if __name__ == "__main__":
    unittest.main()
