"""Back-translation from end to end on a small corpus: a reverse model makes text, which is scored, filtered, tagged
and mixed in with its own weight (launch/corpora/back_translate.sh).

Programs: DEEPNET_PROGRAM, MPIEXEC.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUN = """
seed: 1
model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2 max_positions: 300
        residual: DEEPNORM }
data { max_sentence_tokens: 200 microbatch { max_source_tokens: 300 max_target_tokens: 300 } }
optim { learning_rate: 1e-2 warmup_steps: 4 }
compute { device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }
train { steps: 30 checkpoint_every_steps: 1000 validate_every_steps: 1000 }
decode { beam_size: 2 max_tokens: 30 }
"""


class BackTranslation(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        with open(os.path.join(ROOT, "tests/trainer/data/testdata/udhr.tsv"), encoding="utf-8") as table:
            rows = [line.rstrip("\n").split("\t") for line in table]
        pairs = [(german, english) for language, english, german in rows if language == "de"]
        self.write("train.de", [pair[0] for pair in pairs[:30]])
        self.write("train.en", [pair[1] for pair in pairs[:30]])
        # Nobody has translated it.
        self.write("news.en", [pair[1].replace(" ", "\t", 1) for pair in pairs[30:]])

    def tearDown(self):
        shutil.rmtree(self.root)

    def write(self, name, lines):
        with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def read(self, name):
        with open(os.path.join(self.root, name), encoding="utf-8") as file:
            return [line.removesuffix("\n") for line in file]

    def call(self, *words, code=0, **variables):
        done = subprocess.run(words, cwd=ROOT, env=os.environ | variables, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def deepnet(self, command, *settings, texts="", code=0):
        recipe = ["# proto-file: proto/run.proto", "# proto-message: deepnet.RunSpec", RUN]
        self.write("run.textproto", recipe + [f"prepare {{ tokenizer {{ vocab_size: 200 }} {texts} }}"])
        words = [os.environ["DEEPNET_PROGRAM"], command, "--root", self.root, "--config", "run.textproto"]
        for setting in settings:
            words += ["--set", setting]
        return self.call(*words, code=code)

    def back_translate(self, text, **variables):
        return self.call("launch/corpora/back_translate.sh", "--checkpoint", os.path.join(self.root, "runs/reverse"),
                         "--from", "en", "--to", "de", "--out", os.path.join(self.root, "bt"),
                         os.path.join(self.root, text), "--sample", "1",
                         DEEPNET=os.environ["DEEPNET_PROGRAM"], **variables)

    def in_locale(self, name):
        """The variables of a locale, which is made here: machines need not have it."""
        source, charset = name.split(".")
        locales = os.path.join(self.root, "locales")
        os.makedirs(locales, exist_ok=True)
        subprocess.run(["localedef", "-i", source, "-f", charset, os.path.join(locales, name)], check=True,
                       stderr=subprocess.DEVNULL)
        return {"LOCPATH": locales, "LC_ALL": name}

    def test_a_language_is_no_path(self):
        for words in (["--from", "../x", "--to", "de"], ["--from", "en", "--to", ".."]):
            said = self.call("launch/corpora/back_translate.sh", "--checkpoint", "x", *words, os.path.join(self.root, "news.en"),
                             "--out", os.path.join(self.root, "bt"), code=2)  # fmt: skip
            self.assertRegex(said, "^back_translate.sh: '[.]+(/x)?' is no language's tag\n$")
            self.assertFalse(os.path.exists(os.path.join(self.root, "bt")))

    def test_a_score_is_the_mean_of_its_tokens_and_none_where_there_is_no_translation(self):
        self.write("three.en", ["one two", "three", "four five"])
        self.write("said", ["eins zwei", "", "vier"])
        self.write("scores", ["-6\t3", "-1\t1", "nan\t4"])
        program = os.path.join(self.root, "stand_in")
        self.write("stand_in", ["#!/bin/sh", f"case $1 in translate) cat {self.root}/said ;; *) cat {self.root}/scores ;; esac"])
        os.chmod(program, 0o755)
        out = os.path.join(self.root, "bt")
        words = ["--checkpoint", "x", "--from", "en", "--to", "de", "--out", out, os.path.join(self.root, "three.en")]
        said = self.call("launch/corpora/back_translate.sh", *words, DEEPNET=program)
        self.assertEqual(self.read("bt/scores"), ["-2", "-1000", "-1000"])
        self.assertIn("  50 %: -2\n", said)

    def test_the_chain_from_a_reverse_model_to_a_model_with_weight_and_tag(self):
        real = 'text { source_language: "de" target_language: "en" source_file: "train.de" target_file: "train.en" }'
        self.deepnet("prepare", "data.folder=real", texts=real)
        self.deepnet("train", "data.folder=real", "data.directions=*-de", "folder=runs/reverse")

        output = self.back_translate("news.en")
        scores = [float(score) for score in self.read("bt/scores")]
        self.assertEqual(self.read("bt/text.en"), [line.replace("\t", " ") for line in self.read("news.en")])
        self.assertEqual([score == -1000 for score in scores], [not line for line in self.read("bt/text.de")])
        before = {name: self.read("bt/" + name) for name in ("text.en", "text.de", "scores")}
        # Once more, in place, where a number has a comma.
        for locale, run in (("de_DE.UTF-8", "tests/mpi/mpirun.sh 2"), ("tr_TR.UTF-8", "")):
            variables = self.in_locale(locale)
            self.assertEqual(self.call("locale", "decimal_point", **variables), ",\n")
            again = self.back_translate("bt/text.en", RUN=run, **variables)
            self.assertEqual({name: self.read("bt/" + name) for name in before}, before)
            self.assertEqual(*(re.findall(r"\d+ %: \S+", text) for text in (again, output)))

        # The recipe's block as the script shows it, with the better half of the lines.
        threshold = re.search(r"50 %: (\S+)", output)[1]
        synthetic = re.search(r"text \{.*?\}", output, re.DOTALL)[0].replace("...", threshold)
        self.deepnet("prepare", "data.folder=mixed", "prepare.tokenizer.model_file=real/tokenizer.model",
                     texts=real + synthetic)
        with open(os.path.join(self.root, "mixed/report.json"), encoding="utf-8") as file:
            pairs = {name: pair for pair in json.load(file)["pairs"] for name in pair["directions"]}
        self.assertEqual(set(pairs), {"de-en", "en-de", "de-en.bt"})
        dropped = {drop["reason"]: drop["lines"] for drop in pairs["de-en.bt"]["dropped"]}
        worse = sum(-1000 < score < float(threshold) for score in scores)
        self.assertGreater(worse, 0)
        self.assertEqual(dropped["below score"], worse)
        self.assertGreater(pairs["de-en.bt"]["kept"], 0)

        weights = {}
        for weight in ("1", "0.1"):
            weighted = 'data.weights={direction: "*-*.bt" weight: ' + weight + "}"
            log = self.deepnet("train", "data.folder=mixed", "data.directions=de-en,*-*.bt", weighted,
                               "folder=runs/with-" + weight)
            weights[weight] = re.search(r"weights \w+", log)[0]
        self.assertNotEqual(weights["1"], weights["0.1"])
        refused = self.deepnet("train", "data.folder=real", "data.directions=*-*.bt", "folder=runs/no", code=2)
        self.assertIn('data.directions: no training pairs of "*-*.bt"; the corpus has de-en en-de', refused)


if __name__ == "__main__":
    unittest.main()
