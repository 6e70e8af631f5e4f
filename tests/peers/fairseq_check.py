#!/usr/bin/env python3
"""fairseq_to_deepnet.py against torchscale's own models, there and back.

  fairseq_check.py [--build build/release] [--sentences 30]

Models of torchscale with jittered weights, the row of <pad> too, are saved as fairseq saves them, converted, imported:
log-probabilities of every id at every position, teacher forced, must agree to 1e-5 with torchscale in double precision.
Then they are exported, converted back and loaded by torchscale again. Cases: DeepNorm with learned positions (torchscale's
names), Post-LN and Pre-LN with fairseq's sinusoids (fairseq's names), the three ways of tags and of ties. torchscale
0.3.0 has fairseq's formulas for all of these. Exit status 1 where something differs.
"""

import argparse
import collections
import json
import random
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy
import sentencepiece
import torch

ROOT = Path(__file__).resolve().parents[2]
CONVERTER = ROOT / "launch/interop/fairseq_to_deepnet.py"
TOLERANCE = 1e-5
WIDTH, EOS, POSITIONS = 32, 2, 64
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = "the a cat dog bird house tree river sees finds likes old new big small in on under".split()
failures = []


def stub(name, **members):
    """torchscale imports these for what is not used here."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(members)


for parent in ("timm", "timm.models", "fairscale"):
    stub(parent)
stub("timm.models.layers", drop_path=None)
stub("fairscale.nn", checkpoint_wrapper=None, wrap=None)
from torchscale.architecture.config import EncoderDecoderConfig  # noqa: E402
from torchscale.architecture.encoder_decoder import EncoderDecoder  # noqa: E402
from torchscale.component.embedding import PositionalEmbedding, TextEmbedding  # noqa: E402


def report(what, good, figures):
    print(f"{'ok  ' if good else 'FAIL'}  {what}: {figures}", flush=True)
    if not good:
        failures.append(what)


def run(*arguments, **options):
    done = subprocess.run([str(a) for a in arguments], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Sinusoids(torch.nn.Module):
    """fairseq's: SinusoidalPositionalEmbedding with padding index 1."""

    def forward(self, tokens, **ignored):
        half = WIDTH // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float64) * -(numpy.log(10000) / (half - 1)))
        angles = torch.arange(2, tokens.shape[1] + 2, dtype=torch.float64)[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)[None].to(torch.get_default_dtype())


class OfFairseq:
    """A class that no reader has to know."""


Case = collections.namedtuple("Case", "name deepnorm normalize_before tied learned langtok activation scaled")
CASES = [
    Case("DeepNorm", True, False, "all", True, ("tgt", False), "gelu", False),
    Case("Post-LN", False, False, "decoder", False, (None, False), "relu", True),
    Case("Pre-LN", False, True, "none", False, ("src", True), "relu", True),
]


def make_model(case, rows):
    torch.manual_seed(1)
    args = EncoderDecoderConfig(
        encoder_embed_dim=WIDTH, decoder_embed_dim=WIDTH, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_embed_dim=64, decoder_ffn_embed_dim=64, encoder_layers=5, decoder_layers=3, deepnorm=case.deepnorm,
        encoder_normalize_before=case.normalize_before, decoder_normalize_before=case.normalize_before,
        subln=False, activation_fn=case.activation, no_scale_embedding=not case.scaled, vocab_size=rows,
        share_all_embeddings=case.tied == "all", share_decoder_input_output_embed=case.tied != "none",
        normalize_output=case.normalize_before, layernorm_embedding=False, max_source_positions=POSITIONS,
        max_target_positions=POSITIONS,
    )  # fmt: skip
    embeddings = [TextEmbedding(rows, WIDTH, 1) for _ in range(1 if case.tied == "all" else 2)]
    positions = [PositionalEmbedding(POSITIONS + 2, WIDTH) if case.learned else Sinusoids() for _ in range(2)]
    output = torch.nn.Linear(WIDTH, rows, bias=False)
    if case.tied != "none":
        output.weight = embeddings[-1].weight
    model = EncoderDecoder(args, embeddings[0], positions[0], embeddings[-1], positions[1], output)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 0.2 if weight.dim() == 1 else 1.5 / WIDTH**0.5
            weight.add_(scale * torch.randn_like(weight))
    return model.eval(), args


def make_pieces(work):
    """A SentencePiece model, and a dictionary of its pieces in another order."""
    generator = random.Random(3)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(generator.choices(WORDS, k=6)) for _ in range(1000)),
        model_prefix=str(work / "sp"), vocab_size=90, model_type="bpe", minloglevel=2)  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(str(work / "sp.model"))
    pieces = [p for p in map(model.id_to_piece, range(model.get_piece_size())) if p not in SPECIALS]
    dictionary = pieces[:]
    generator.shuffle(dictionary)
    (work / "dict.txt").write_text("".join(f"{p} {100 - i}\n" for i, p in enumerate(dictionary)), encoding="utf-8")
    return pieces, dictionary


def ours(peer_model, checkpoint, cases, size, work):
    """Log-probabilities [positions, size] of each case."""
    lines = "".join(";".join(" ".join(map(str, ids)) for ids in (s, f, t)) + "\n" for s, f, t in cases)
    run(peer_model, checkpoint, 4, work / "log_probs", input=lines)
    values = numpy.fromfile(work / "log_probs", dtype=numpy.float32).reshape(-1, size)
    ends = numpy.cumsum([1 + len(f) + len(t) for _, f, t in cases])
    return numpy.split(values, ends[:-1])


def greatest_difference(model, cases, log_probs, theirs):
    """`theirs[our id]`: the row of `model`."""
    theirs, worst = numpy.array(theirs), 0.0
    torch.set_default_dtype(torch.float64)
    model = model.double()
    with torch.no_grad():
        for (source, forced, target), expected in zip(cases, log_probs):
            fed = [EOS, *forced, *target]
            logits, _ = model(torch.tensor([theirs[source].tolist()]), torch.tensor([theirs[fed].tolist()]))
            said = torch.log_softmax(logits[0], -1).numpy()[:, theirs]
            worst = max(worst, float(numpy.abs(said - expected).max()))
    torch.set_default_dtype(torch.float32)
    model.float()
    return worst


def check(case, arguments, work):
    deepnet, peer_model = (Path(arguments.build).absolute() / name for name in ("deepnet", "tests/peers/peer_model"))
    pieces, dictionary = make_pieces(work)
    languages = ["fr", "de", "en"] if case.langtok[0] else ["fr", "de"]
    added = 3 if case.langtok[0] else 0
    rows = 4 + len(dictionary) + added + 5  # fairseq pads with made-up words
    model, args = make_model(case, rows)
    namespace = argparse.Namespace(**vars(args), encoder_langtok=case.langtok[0], decoder_langtok=case.langtok[1],
                                   langs=languages if added else None, source_lang="fr", target_lang="de")  # fmt: skip
    state = model.state_dict()
    if not case.deepnorm:  # fairseq's names, and its newer form
        state = {name.replace(".ffn.fc", ".fc"): tensor for name, tensor in state.items()}
        state["encoder.version"] = torch.tensor([3.0])
        task = {name: getattr(namespace, name) for name in ("encoder_langtok", "decoder_langtok", "langs", "source_lang",
                                                            "target_lang")}  # fmt: skip
        stored = {"cfg": {"model": namespace, "task": task}, "model": state, "extra_state": OfFairseq()}
    else:
        stored = {"args": namespace, "model": state}
    torch.save(stored, work / "theirs.pt")
    said = run(sys.executable, CONVERTER, work / "theirs.pt", "--dict", work / "dict.txt", "--spm", work / "sp.model",
               "--output", work / "folder")  # fmt: skip
    print(said, end="")
    run(deepnet, "checkpoint", "import", work / "folder", "--output", work / "imported")

    row = {piece: 4 + i for i, piece in enumerate(dictionary)}
    free = list(range(4 + len(dictionary) + added, rows))
    tag_row = {l: 4 + len(dictionary) + i if added else free.pop() for i, l in enumerate(languages)}
    theirs = [0, 1, 2, 3, *(row[p] for p in pieces), *free, *(tag_row[l] for l in sorted(languages))]
    assert sorted(theirs) == list(range(rows))
    generator = random.Random(5)
    some = lambda: [generator.randrange(4, 4 + len(pieces)) for _ in range(generator.randint(2, 12))]
    tag = lambda: generator.randrange(rows - len(languages), rows)
    cases = [([tag()] * (case.langtok[0] is not None) + some() + [EOS], [tag()] * case.langtok[1], some())
             for _ in range(arguments.sentences)]  # fmt: skip
    log_probs = ours(peer_model, work / "imported", cases, rows, work)
    worst = greatest_difference(model, cases, log_probs, theirs)
    report(f"{case.name}, there", worst <= TOLERANCE, f"greatest difference {worst:.3g}")

    run(deepnet, "checkpoint", "export", work / "imported", "--output", work / "exported")
    print(run(sys.executable, CONVERTER, "--back", work / "exported", "--output", work / "back"), end="")
    torch.serialization.add_safe_globals([argparse.Namespace])
    back = torch.load(work / "back/checkpoint.pt", weights_only=True)
    again, _ = make_model(case._replace(tied="none"), rows)
    state = {n if case.deepnorm else n.replace(".fc", ".ffn.fc"): t for n, t in back["model"].items()}
    again.load_state_dict({n: t for n, t in state.items() if not n.endswith(("version", "_float_tensor"))})
    worst = greatest_difference(again, cases, log_probs, list(range(rows)))
    report(f"{case.name}, back", worst <= TOLERANCE, f"greatest difference {worst:.3g}")
    lines = (work / "back/dict.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    report(f"{case.name}, dictionary", [l.rsplit(" ", 1)[0] for l in lines[: len(pieces)]] == pieces
           and lines[-1] == f"__{max(languages)}__ 1" and len(lines) == rows - 4, f"{len(lines)} lines")  # fmt: skip
    check_refusals(namespace, state, work)


def check_refusals(namespace, state, work):
    namespace.subln, namespace.moe_freq, namespace.activation_fn = True, 2, "swish"
    torch.save({"args": namespace, "model": state}, work / "refused.pt")
    done = subprocess.run([sys.executable, CONVERTER, work / "refused.pt", "--dict", work / "dict.txt", "--spm",
                           work / "sp.model", "--output", work / "none"], encoding="utf-8", capture_output=True)  # fmt: skip
    named = all(word in done.stderr for word in ("subln is True", "moe_freq is 2", "activation_fn is swish"))
    report("refused", done.returncode == 1 and named and not (work / "none").exists(), done.stderr.strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--sentences", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        work = Path(tempfile.mkdtemp(prefix="fairseq-"))
        try:
            check(case, arguments, work)
        finally:
            shutil.rmtree(work)
    sys.exit(bool(failures))


main()
