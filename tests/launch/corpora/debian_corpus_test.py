"""debian_corpus.py: the table that it ships, which texts of the Declaration it takes, how it names mistakes."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "launch/corpora"))
import debian_corpus  # noqa: E402
import debian_texts  # noqa: E402

# Each language with common words of its own, in the spelling of its standard.
WORDS = """
am ሰው አለው ወይም       ar في أو حق           az və bir hər            bg и да има
bn এবং অধিকার কোন    cs nebo každý má      cy yn hawl gan          da og ret frihed
de und das oder      el και ή δικαίωμα     es y el derecho         et ja õigus igal
eu eta du edo        fa و حق که            fi ja oikeus tai        fr et le droit
ga agus ag sin       ha hakkin ƙasa kowa  he של או זכאי           hi और के अधिकार
hr i pravo svatko    hu és a joga          hy և իրավունք ունի      id dan yang hak
is og rétt eða       it e il diritto       ja の する は           ka და უფლება აქვს
kk және бар құқығы   km និង ឬ              ko 및 권리를 모든       lt ir teisę arba
lv un tiesības vai   mn ба эрхтэй хүн      mt u għandu jew         my သည် ၏
nb og rett frihet    nl en het recht       pl i prawo lub          pt e o direito
ro și dreptul sunt   ru и право или        sk a alebo každý        sl in pravico ali
sv och rätt eller    sw haki uhuru mtu     ta அல்லது ஒவ்வொருவரும்   te హక్కు గలదు ప్రతి
th และ สิทธิ         tr ve bir hakkı       uk і та право           uz va ega har
vi và quyền có       yo ẹ̀tọ́ láti ní        zh_CN 的 权利 国        zh_TW 的 權利 國
zu noma umuntu wonke
"""
WITHOUT_SPACES = {"ja", "km", "my", "th", "zh_CN", "zh_TW"}


def share_of(words, sentences, spaced):
    """Of all (word, sentence) the part in which the sentence has the word."""
    if spaced:
        sentences = [f" {re.sub('[.,;:()፡።፤፣]', ' ', s.lower())} " for s in sentences]
        words = [f" {word} " for word in words]
    return sum(word in s for s in sentences for word in words) / len(sentences) / len(words)


class Udhr(unittest.TestCase):
    def test_each_language_of_the_table_has_its_own_words_and_more_of_them_than_of_any_other(self):
        words = {e.split()[0]: e.split()[1:] for e in re.split(r"\s\s+|\n", WORDS.strip())}
        table = {}
        for row in debian_corpus.UDHR.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            language, _, text = row.split("\t")
            table.setdefault(language, []).append(text)
        self.assertEqual(sorted(words), sorted(table))
        for language, sentences in table.items():
            shares = {
                other: share_of(theirs, sentences, other not in WITHOUT_SPACES)
                for other, theirs in words.items()
            }
            with self.subTest(language):
                self.assertEqual(max(shares, key=shares.get), language)
                self.assertGreater(shares[language], 0.2)

    def test_a_language_of_several_texts_gives_its_standard_one(self):
        with tempfile.TemporaryDirectory() as folder:
            declaration = Path(folder) / "declaration"
            declaration.mkdir()

            def write(name, tag, sentence):
                text = f'<html lang="{tag}"><article data-number="1"><p>{sentence}</p></article>'
                (declaration / f"{name}.html").write_text(text, encoding="utf-8")

            write("eng", "en", "All human beings are born free.")
            write("068", "fr", "Tortu lé-z-am vno o mond libr.")
            write("fra", "fr", "Tous les êtres humains naissent libres.")
            write("deu_1901", "de-1901", "Alle Menschen sind frei geboren, daß es so sey.")
            write("deu_1996", "de-1996", "Alle Menschen sind frei geboren.")
            write("ron_1953", "ro", "Toate ființele umane sînt libere.")
            write("ron_2006", "ro", "Toate ființele umane sunt libere.")
            pairs = {lang: text for lang, _, text in debian_texts.declaration(Path(folder), None)}
        self.assertEqual(
            pairs,
            {
                "de": "Alle Menschen sind frei geboren.",
                "fr": "Tous les êtres humains naissent libres.",
                "ro": "Toate ființele umane sunt libere.",
            },
        )


class Mistakes(unittest.TestCase):
    def test_each_is_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            apt = Path(folder, "apt-get")
            apt.write_text("#!/bin/sh\nexit 100\n", encoding="utf-8")
            apt.chmod(0o755)
            for words, code, told in (
                ("build small --out new", 1, "debian_corpus.py: apt-get download ended with code 100"),
                ("build udhr --out new --test -5", 2, "test: must not be negative"),
                ("build udhr --out apt-get/new", 1, "debian_corpus.py: [Errno 20] Not a directory"),
            ):
                done = subprocess.run(
                    [sys.executable, "-B", debian_corpus.__file__, *words.split()], cwd=folder, capture_output=True,
                    encoding="utf-8", env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
                )  # fmt: skip
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(told, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_bytes_that_are_no_text_are_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            declaration = Path(folder, "declaration")
            declaration.mkdir()
            (declaration / "eng.html").write_bytes(b'<html lang="en"><article><p>a\xff</p></article>')
            (declaration / "deu_1996.html").write_bytes(b'<html lang="de-1996"><article><p>b\xff</p></article>')
            self.assertEqual(list(debian_texts.declaration(Path(folder), None)), [("de", "a\ufffd", "b\ufffd")])
            table = Path(folder, "a.tsv")
            table.write_bytes(b"de\ta\xff\tb\nde\ta\n")
            self.assertEqual(list(debian_corpus.pairs_of_table(table)), [["de", "a\ufffd", "b"]])


if __name__ == "__main__":
    unittest.main()
