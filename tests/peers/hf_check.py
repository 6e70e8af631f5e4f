#!/usr/bin/env python3
"""Exports and imports against transformers and CTranslate2, on 100 random sentences each.

  hf_check.py [--build build/release] [--checkpoint RUN] [--sentences 100]

1. marian: a small DeepNorm model with random weights (or RUN) is exported with --format
   marian, and loaded by MarianMTModel: log-probabilities of every id at every position, teacher
   forced, and the best hypothesis of a beam of 5. MarianTokenizer gives the ids that we train on.
   CTranslate2 converts the same folder and translates.
2. m2m_100: M2M100ForConditionalGeneration with random weights is saved by transformers, imported,
   compared likewise (M2M100Tokenizer's ids, too); exported again, it loads as M2M-100 and says the
   same.
Log-probabilities must agree to 1e-4, hypotheses exactly. Exit status 1 where they do not.
"""

import argparse, json, os, random, shutil, subprocess, sys, tempfile
from pathlib import Path

import numpy, safetensors.torch, sentencepiece, torch, transformers

TOLERANCE = 1e-4  # float32 sums in another order
MAX_TOKENS = 24
EOS = 2
WORDS = "the a cat dog bird house tree river sees finds likes old new big small in on under".split()
failures = []


def report(what, good, figures):
    print(f"{'ok  ' if good else 'FAIL'}  {what}: {figures}", flush=True)
    if not good:
        failures.append(what)


def run(arguments, **options):
    done = subprocess.run([str(a) for a in arguments], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return done


def sentence(generator):
    return " ".join(generator.choice(WORDS) for _ in range(generator.randint(2, 9)))


def make_deepnorm(deepnet, work):
    """A run folder: a run of one step, its weights replaced by random ones on their way through an
    export, so that no two sentences are translated alike."""
    generator = random.Random(1)
    with open(work / "pairs.tsv", "w", encoding="utf-8") as file:
        for _ in range(3000):
            text = sentence(generator)
            file.write(f"{text}\t{' '.join(w[::-1] for w in text.split())}\n")
    (work / "run.textproto").write_text(
        """name: "peer" folder: "run" seed: 1
        model { encoder_layers: 6 decoder_layers: 4 d_model: 32 ffn_dim: 64 num_heads: 4 residual: DEEPNORM }
        data { folder: "data" microbatch { max_target_tokens: 400 max_sentences: 60 } }
        optim { learning_rate: 1e-3 warmup_steps: 20 }
        train { steps: 1 validate_every_steps: -1 validate_sentences: 5 }
        prepare { text { tsv_file: "pairs.tsv" source_language: "en" target_language: "xx" }
                  tokenizer { vocab_size: 150 } }""", encoding="utf-8"
    )
    for command in ("prepare", "train"):
        run([deepnet, command, "--config", "run.textproto", "--root", work], cwd=work)
    run([deepnet, "checkpoint", "export", work / "run", "--output", work / "random"])
    file = work / "random/model.safetensors"
    weights = safetensors.torch.load_file(file)
    torch.manual_seed(6)
    for name, weight in weights.items():
        if weight.dim() == 1:
            weight += 0.2 * torch.randn_like(weight)
        else:
            weight[:] = 2 * torch.randn_like(weight) / weight.shape[1] ** 0.5
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    run([deepnet, "checkpoint", "import", work / "random", "--output", work / "deepnorm"])
    return work / "deepnorm"


def ours(peer_model, checkpoint, cases, size, work):
    """Log-probabilities [positions, size] of each case, and hypotheses."""
    lines = "".join(
        ";".join(" ".join(map(str, ids)) for ids in case) + "\n" for case in cases
    )
    found = run([peer_model, checkpoint, MAX_TOKENS, work / "log_probs"], input=lines)
    values = numpy.fromfile(work / "log_probs", dtype=numpy.float32).reshape(-1, size)
    parts, at = [], 0
    for _, forced, target in cases:
        parts.append(values[at : at + 1 + len(forced) + len(target)])
        at += len(parts[-1])
    return parts, [[int(i) for i in line.split()] for line in found.stdout.rstrip("\n").split("\n")]


class EndAt(transformers.LogitsProcessor):
    """Only </s> as token `length`, with its probability; transformers' own rule gives it 1."""

    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] + 1 < self.length:
            return scores
        ended = torch.full_like(scores, -float("inf"))
        ended[:, EOS] = scores[:, EOS]
        return ended


def compare(what, model, cases, log_probs, hypotheses, theirs):
    """`theirs[our id]`: the id of `model`."""
    theirs = numpy.array(theirs)
    back = numpy.argsort(theirs)
    start, worst, equal = model.config.decoder_start_token_id, 0.0, 0
    model.eval()
    model.generation_config.max_length = None
    model.generation_config.forced_eos_token_id = None
    for (source, forced, target), expected, best in zip(cases, log_probs, hypotheses):
        ids = torch.from_numpy(theirs[source])[None]
        fed = torch.tensor([[start, *theirs[forced + target].tolist()]])
        with torch.no_grad():
            logits = model(input_ids=ids, decoder_input_ids=fed).logits[0]
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                decoder_input_ids=fed[:, : 1 + len(forced)],
                max_new_tokens=MAX_TOKENS + 1,
                min_new_tokens=1,
                num_beams=5,
                length_penalty=1.0,
                early_stopping=True,
                forced_eos_token_id=None,
                logits_processor=[EndAt(2 + len(forced) + MAX_TOKENS)],
            )[0].tolist()
        said = torch.log_softmax(logits, -1).numpy()[:, theirs]
        worst = max(worst, float(numpy.abs(said - expected).max()))
        tokens = [int(back[i]) for i in found[1 + len(forced) :]]
        equal += tokens[: tokens.index(EOS) if EOS in tokens else None] == best
    report(f"{what}, log-probabilities", worst <= TOLERANCE, f"greatest difference {worst:.3g}")
    different = len({tuple(best) for best in hypotheses})
    figures = f"{equal} of {len(cases)} equal, {different} different ones"
    report(f"{what}, beam of 5", equal == len(cases) and different > len(cases) // 10, figures)


def random_cases(count, first, last, tags, style, generator):
    pieces = lambda: [generator.randrange(first, last) for _ in range(generator.randint(2, 12))]
    if style == "m2m":
        return [
            ([generator.choice(tags), *pieces(), EOS], [generator.choice(tags)], pieces())
            for _ in range(count)
        ]
    return [([generator.choice(tags), *pieces(), EOS], [], pieces()) for _ in range(count)]


def check_marian(arguments, deepnet, peer_model, work):
    checkpoint = Path(arguments.checkpoint or make_deepnorm(deepnet, work)).absolute()
    folder = work / "marian"
    done = run([deepnet, "checkpoint", "export", "--format", "marian", checkpoint, "--output", folder])
    print(done.stderr, end="")
    model = transformers.MarianMTModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = model.config.vocab_size - 1  # its <pad> is behind our ids
    run_folder = checkpoint if (checkpoint / "languages.txt").exists() else checkpoint.parent
    languages = sorted((run_folder / "languages.txt").read_text(encoding="utf-8").split())
    first_tag = size - len(languages)
    tags = list(range(first_tag, size))
    generator = random.Random(2)
    cases = random_cases(arguments.sentences, 4, first_tag, tags, "", generator)
    log_probs, hypotheses = ours(peer_model, checkpoint, cases, size, work)
    compare("marian", model, cases, log_probs, hypotheses, list(range(size)))

    pieces = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    texts = [sentence(generator) for _ in range(20)]
    target = languages[-1]
    good = all(
        tokenizer(f">>{target}<< {text}").input_ids
        == [size - 1, *pieces.encode(text), EOS]
        for text in texts
    )
    report("marian, MarianTokenizer", good, f"{len(texts)} sentences")
    check_ctranslate2(folder, cases, hypotheses, work)


def check_ctranslate2(folder, cases, hypotheses, work):
    import ctranslate2

    converter = ctranslate2.converters.TransformersConverter(str(folder))
    converter.convert(str(work / "ct2"), force=True)
    names = {i: piece for piece, i in json.loads((folder / "vocab.json").read_text(encoding="utf-8")).items()}
    name = lambda i: names[i]
    translator = ctranslate2.Translator(str(work / "ct2"), device="cpu", compute_type="float32")
    never = [["<s>"], ["<pad:trained>"]] + [[piece] for piece in names.values() if piece.startswith(">>")]
    results = translator.translate_batch(
        [[name(i) for i in source] for source, _, _ in cases],
        beam_size=5,
        max_decoding_length=MAX_TOKENS,
        suppress_sequences=never,
    )
    equal = sum(
        result.hypotheses[0] == [name(i) for i in best] for result, best in zip(results, hypotheses)
    )
    # It ends a search by a rule of its own.
    report("CTranslate2, beam of 5", equal >= 0.9 * len(cases), f"{equal} of {len(cases)} equal")


def make_m2m(work):
    """An M2M-100 folder with random weights; its dictionary is in another order than its model."""
    folder = work / "m2m"
    folder.mkdir()
    generator = random.Random(3)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentence(generator) for _ in range(2000)),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=90,
        model_type="bpe",
        minloglevel=2,
    )
    os.remove(folder / "sentencepiece.bpe.vocab")
    model_file = folder / "sentencepiece.bpe.model"
    pieces = sentencepiece.SentencePieceProcessor(str(model_file))
    names = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    generator.shuffle(names)
    names = ["<s>", "<pad>", "</s>", "<unk>", *names]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    tokenizer = transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(model_file))
    torch.manual_seed(4)
    model = transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(
            vocab_size=len(names) + 100 + 8,
            d_model=32,
            encoder_layers=3,
            decoder_layers=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            max_position_embeddings=64,
            init_std=0.2,
        )
    )
    with torch.no_grad():  # transformers starts biases and norms at 0 and 1, which hides mistakes
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "layer_norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="100KB")
    return folder, tokenizer, len(names)


def our_ids(run_folder, vocabulary, first_tag, size):
    """[our id]: the id of transformers."""
    pieces = sentencepiece.SentencePieceProcessor(str(run_folder / "tokenizer.model"))
    names = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
    names = [n for n in names if n not in ("<s>", "</s>", "<unk>", "<pad>")]
    made_up = iter(range(first_tag + 100, size))
    theirs = [0, 1, 2, 3, *(vocabulary[n] if n in vocabulary else next(made_up) for n in names)]
    return theirs + list(range(first_tag, first_tag + 100))  # tags are sorted on both sides


def check_m2m(arguments, deepnet, peer_model, work):
    folder, tokenizer, first_tag = make_m2m(work)
    done = run([deepnet, "checkpoint", "import", folder, "--output", work / "imported"])
    print(done.stderr, end="")
    model = transformers.M2M100ForConditionalGeneration.from_pretrained(folder)
    size = model.config.vocab_size
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    theirs = our_ids(work / "imported", vocabulary, first_tag, size)
    assert sorted(theirs) == list(range(size))
    tags = list(range(size - 100, size))
    model.generation_config.bad_words_ids = [[0], [1]] + [[theirs[i]] for i in tags]
    generator = random.Random(5)
    cases = random_cases(arguments.sentences, 4, size - 100, tags, "m2m", generator)
    log_probs, hypotheses = ours(peer_model, work / "imported", cases, size, work)
    compare("m2m_100 imported", model, cases, log_probs, hypotheses, theirs)

    run([deepnet, "checkpoint", "export", work / "imported", "--output", work / "exported"])
    again = transformers.M2M100ForConditionalGeneration.from_pretrained(work / "exported")
    compare("m2m_100 exported", again, cases, log_probs, hypotheses, list(range(size)))
    run([deepnet, "checkpoint", "import", work / "exported", "--output", work / "again"])
    same = run([deepnet, "checkpoint", "diff", work / "imported", work / "again"]).stdout
    report("m2m_100 imported again", "identical" in same, same.strip().split("\n")[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--checkpoint", help="of the marian check; default: one is trained")
    parser.add_argument("--sentences", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small products, and others may want the cores
    transformers.logging.set_verbosity_error()
    build = Path(arguments.build).absolute()
    work = Path(tempfile.mkdtemp(prefix="peers-"))
    try:
        for check in (check_marian, check_m2m):
            check(arguments, build / "deepnet", build / "tests/peers/peer_model", work)
    finally:
        shutil.rmtree(work)
    sys.exit(bool(failures))


main()
