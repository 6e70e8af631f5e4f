#!/usr/bin/env python3
"""Records what the real sacreBLEU says of 500 lines, for tests/trainer/eval.

Needs the Python packages sacrebleu (2.x) and sentencepiece and the program spm_train; the tests need
none of them: they read what this script wrote. Run from the repository's root:

    tests/trainer/eval/record_sacrebleu.py --udhr udhr.tsv --out tests/golden/sacrebleu

udhr.tsv: language <TAB> English <TAB> translation of the Universal Declaration of Human Rights, whose
text is free of copyright. Written: lines.tsv (language, hypothesis, reference), spm.model,
corpus.tsv (scores of each language and of all), sentences.tsv (scores of each line alone).
Random choices come from a fixed seed, so the same inputs give the same lines.
"""
import argparse
import pathlib
import random
import subprocess

import sacrebleu
import sentencepiece
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

LANGUAGES = ["ar", "de", "el", "hi", "ja", "ko", "ru", "th", "tr", "zh_CN"]
LINES_EACH = 50
TOKENIZERS = ["13a", "zh", "char", "none", "spm"]
UNSPACED = {"ja", "th", "zh_CN"}
# The tokenizers treat these specially: digits beside marks, entities, every kind of white space,
# both ends of zh's ranges, code points outside the basic plane.
EDGES = [
    "1,234.56", "3.14.", "1-2", "a-1", "x.5", "5.x", "...", ".,.,", "U.S.A.", "$5%", "it's",
    "&quot;&lt;&amp;&gt;", "&amp;quot;", "&apos;", "<skipped>", "re-", "(a/b)", "[1]", "{2}", "~^_`|\\",
    "a\u00a0b", "a\u2028b", "a\u3000b", "a\u1680b", "a\x1cb", "a\x85b", "a\u200bb", "\ufeff", "a\u202fb",
    "\u2000x\u2001y", "\u2a6dx\u2a6ey", "\u2f80\u2f81", "\u20000", "\U00020000\U0002a6d6", "\U0001f600!",
    "“quoted”", "– — …", "\uff0c\uff01\uffef\ufff0", "e\u0301", "\u4db5\u4db6\u9fbb\u9fbc", "①②", "٣٤,٥",
]


class SpmTokenizer:
    """sacreBLEU's TokenizerSPM with a model of our own."""

    def __init__(self, model):
        self.sp = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def signature(self):
        return "spm"

    def __call__(self, line):
        return " ".join(self.sp.EncodeAsPieces(line))


def perturb(line, language, rng):
    """A hypothesis for the reference `line`."""
    joint = "" if language in UNSPACED else " "
    words = list(line) if language in UNSPACED else line.split(" ")
    kind = rng.randrange(10)
    if kind == 0:
        return line
    if kind == 1:
        return joint.join(words[: rng.randrange(len(words) + 1)])
    if kind == 2:
        line = line.upper() if rng.random() < 0.5 else line.lower()
        return line
    out = [w for w in words if rng.random() > 0.03 * kind]
    for _ in range(kind // 2):
        if len(out) >= 2:
            i = rng.randrange(len(out) - 1)
            out[i], out[i + 1] = out[i + 1], out[i]
    for _ in range(rng.randrange(4)):
        out.insert(rng.randrange(len(out) + 1), rng.choice(EDGES))
    if kind == 9:
        out = [w + rng.choice([".", ",", "-", " ", "!", ""]) for w in out]
    return joint.join(out) + rng.choice(["", "", " ", "\u00a0", " ."])


def make_lines(udhr):
    rng = random.Random(20240601)
    lines = []
    for language in LANGUAGES:
        references = [row[2] for row in udhr if row[0] == language][:LINES_EACH]
        assert len(references) == LINES_EACH, (language, len(references))
        for i, reference in enumerate(references):
            if i % 9 == 4:
                reference += " " + " ".join(rng.sample(EDGES, 3))
            lines.append((language, perturb(reference, language, rng), reference))
    lines[3] = (lines[3][0], "", lines[3][2])      # an empty hypothesis
    lines[7] = (lines[7][0], lines[7][1], "")      # an empty reference
    lines[11] = (lines[11][0], "", "")             # both
    lines[13] = (lines[13][0], lines[13][2][:1], lines[13][2])  # fewer tokens than orders
    return lines


def metric_for(name, spm):
    if name == "chrf":
        return CHRF()
    if name != "spm":
        return BLEU(tokenize=name, force=True)
    metric = BLEU(tokenize="none", force=True)
    metric.tokenizer = spm
    metric.tokenizer_signature = spm.signature()
    return metric


def corpus_row(group, name, hypotheses, references, spm):
    metric = metric_for(name, spm)
    score = metric.corpus_score(hypotheses, [references])
    signature = str(metric.get_signature())
    row = [group, name, repr(score.score), signature, score.format(signature=signature)]
    if name != "chrf":
        row += [repr(score.bp), str(score.sys_len), str(score.ref_len)]
        row += [" ".join(map(str, score.counts)), " ".join(map(str, score.totals))]
        row += [" ".join(map(repr, score.precisions))]
    return row


def write_tsv(path, rows):
    for row in rows:
        assert not any("\t" in cell or "\n" in cell for cell in row), row
    path.write_bytes("".join("\t".join(row) + "\n" for row in rows).encode())


def train_spm(lines, out):
    text = out / "references.txt"
    text.write_bytes("".join(reference + "\n" for _, _, reference in lines).encode())
    subprocess.run(
        ["spm_train", f"--input={text}", f"--model_prefix={out / 'spm'}", "--vocab_size=2000",
         "--character_coverage=0.995", "--normalization_rule_name=identity", "--minloglevel=2"],
        check=True, stderr=subprocess.DEVNULL)
    text.unlink()
    (out / "spm.vocab").unlink()
    return SpmTokenizer(out / "spm.model")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--udhr", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    udhr = [row.split("\t") for row in arguments.udhr.read_text(encoding="utf-8").split("\n") if row]
    lines = make_lines(udhr)
    write_tsv(out / "lines.tsv", lines)
    spm = train_spm(lines, out)

    corpus = []
    for group in LANGUAGES + ["all"]:
        hypotheses = [h for language, h, _ in lines if group in (language, "all")]
        references = [r for language, _, r in lines if group in (language, "all")]
        for name in TOKENIZERS + ["chrf"]:
            corpus.append(corpus_row(group, name, hypotheses, references, spm))
    write_tsv(out / "corpus.tsv", corpus)

    metrics = [metric_for(name, spm) for name in TOKENIZERS + ["chrf"]]
    sentences = [TOKENIZERS + ["chrf"]]
    for _, hypothesis, reference in lines:
        sentences.append([repr(m.corpus_score([hypothesis], [[reference]]).score) for m in metrics])
    write_tsv(out / "sentences.tsv", sentences)
    print(f"sacrebleu {sacrebleu.__version__}: {len(lines)} lines")


if __name__ == "__main__":
    main()
