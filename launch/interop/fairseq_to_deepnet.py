#!/usr/bin/env python3
"""Turns checkpoints of fairseq and torchscale into a folder that `deepnet checkpoint import` takes, and exports back.

  fairseq_to_deepnet.py CHECKPOINT.pt --dict DICT.txt --spm MODEL --output FOLDER [--languages L,...] [--args FILE.json]
  fairseq_to_deepnet.py --back EXPORT --output FOLDER

There: encoder-decoder Transformers of fairseq (M2M-100 and kin, Pre-LN or Post-LN) and of torchscale (DeepNorm too).
DICT.txt is the model's dictionary, the same on both sides; MODEL is the SentencePiece model that made its pieces.
Language tokens such as __de__ are found in the dictionary; a model that has some without lines in it, as fairseq adds
them, needs --languages in fairseq's order (the argument of --langs). --args gives the model's arguments where
the checkpoint holds only weights, as JSON with fairseq's names (torchscale: its config's attributes).

Back: EXPORT is what `deepnet checkpoint export` wrote; FOLDER gets checkpoint.pt, dict.txt and the SentencePiece model.

Needs Python's torch (2.10 or newer), safetensors and sentencepiece. What cannot be carried over is refused, all reasons at
once. Classes in a checkpoint are never run: only tensors and plain values are read, and a TorchScript archive, which is a
program, is refused. Exit status 1 for a model or a file that is refused, 2 for a wrong command line.
"""

import _compat_pickle
import argparse
import collections
import contextlib
import io
import json
import pickletools
import re
import shutil
import sys
import zipfile
from pathlib import Path

try:
    import safetensors.torch
    import sentencepiece
    import torch
except ImportError as error:
    sys.exit(f"{error}: needs `pip install torch safetensors sentencepiece`")

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3 on both sides
# Arguments that change what is computed, in a way that no model here has; the value that they must have.
REFUSED = {
    "subln": False, "layernorm_embedding": False, "moe_freq": 0, "multiway": False, "rel_pos_buckets": 0,
    "xpos_rel_pos": False, "cross_self_attention": False, "no_cross_attention": False, "adaptive_input": False,
    "adaptive_softmax_cutoff": None, "no_token_positional_embeddings": False, "tie_adaptive_weights": False,
    "scale_fc": False, "scale_attn": False, "scale_heads": False, "scale_resids": False, "base_layers": 0,
    "no_decoder_final_norm": False, "lang_tok_replacing_bos_eos": False, "adaptive_input_factor": None,
}  # fmt: skip
NOT_STORED = re.compile(r"(^|\.)(version|_float_tensor)$")  # buffers of fairseq


class Refusal(Exception):
    pass


class Inert:
    """Stands for whatever a checkpoint names that torch does not take for data: it keeps its values and runs nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.__dict__.update(state)


@contextlib.contextmanager
def read_as(what):
    """Makes a Refusal, which begins with `what`, of whatever a reader of what anybody may have made raises."""
    try:
        yield
    except (Refusal, OSError):
        raise
    except Exception as error:
        found = re.search("WeightsUnpickler error: (.*)", str(error)) or re.search("(.*)", str(error))
        reason = f"lacks {error}" if isinstance(error, KeyError) else found[1] or type(error).__name__
        raise Refusal(f"{what}: {reason}") from error


def read_object(path):
    """Returns the object in a file of JSON."""
    with read_as(f"{path}: no JSON"):
        return plain(json.loads(Path(path).read_bytes()), f"{path}: what it holds")


def shown(text):
    """Returns text as a terminal may get it: a checkpoint's words can hold what moves a cursor or sets a title."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))


def pickles_of(file):
    """Returns the pickles of a checkpoint, none of which is run, as files: one of an archive, four of the older format."""
    is_archive = file.read(4) == b"PK\x03\x04"  # as torch tells them apart
    file.seek(0)
    if not is_archive:
        return [file] * 4
    with zipfile.ZipFile(file) as archive:
        entries = {name.split("/")[-1]: name for name in archive.namelist()}
        if "constants.pkl" in entries:
            raise Refusal("a TorchScript archive, which is a program: only what torch.save wrote is read")
        return [io.BytesIO(archive.read(entries["data.pkl"]))]


def names_in(path):
    """Returns the classes and functions that a checkpoint names, as Python 3 calls them."""
    names = set()
    with open(path, "rb") as file:
        for stream in pickles_of(file):
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name == "GLOBAL":
                    module, name = argument.split(" ", 1)
                    module, name = _compat_pickle.NAME_MAPPING.get(
                        (module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name))  # fmt: skip
                    names.add(f"{module}.{name}")
    return names


def load(path):
    """Returns what torch.save wrote; of classes only argparse's Namespace is made, and Inert for all others."""
    if [int(number) for number in torch.__version__.split(".")[:2]] < [2, 10]:
        raise Refusal(f"needs torch 2.10 or newer, here is {torch.__version__}: older ones can be made to run a checkpoint")
    with read_as("is no checkpoint that can be read without running it"):
        known = [(Inert, name) for name in names_in(path) - {"argparse.Namespace"}]
        with torch.serialization.safe_globals([argparse.Namespace, *known]):
            return torch.load(path, map_location="cpu", weights_only=True)


def plain(thing, what):
    """Returns a dictionary that has no attributes of its own, which a checkpoint could have set."""
    if type(thing) not in (dict, collections.OrderedDict):
        raise Refusal(f"{what} is no dictionary")
    return dict(dict.items(thing))


def values_of(thing):
    return dict(dict.items(thing)) if isinstance(thing, dict) else dict(vars(thing)) if hasattr(thing, "__dict__") else {}


def read_checkpoint(path):
    """Returns the arguments of the model and its task, and its tensors by name."""
    stored = plain(load(path), "what it holds")
    arguments = values_of(stored.get("args"))
    config = values_of(stored.get("cfg"))
    for part in ("task", "model"):
        arguments = {**arguments, **values_of(config.get(part))}
    tensors = plain(stored.get("model", stored), "model")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise Refusal(f"model: {name} is no tensor")
    return arguments, tensors


def read_dictionary(path):
    """Returns the pieces in the order of rows."""
    pieces = list(SPECIALS)
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        with read_as(f"{path}, line {number}: not UTF-8"):
            line = line.decode().removesuffix("\r")
        fields = line.rsplit(" ", 2 if line.endswith(" #fairseq:overwrite") else 1)
        if not line:
            continue
        if len(fields) < 2:
            raise Refusal(f"{path}, line {number}: not a piece and its count")
        if fields[0] in SPECIALS and len(fields) == 2:
            raise Refusal(f"{path}, line {number}: {fields[0]} is no piece")
        pieces.append(fields[0])
    return pieces


def tensor_name(name):
    """Returns the name of one of our tensors in an export."""
    return name if name == "lm_head.weight" else "model." + name


def our_name(name):
    """Returns our name of a tensor: that of fairseq, but for torchscale's wrapper of feed-forward blocks."""
    return name.replace(".ffn.fc", ".fc")


class Model:
    """ModelSpec and tensors, of what a checkpoint holds. `mistakes` are all reasons against it."""

    def __init__(self, arguments, tensors):
        self.arguments = arguments
        self.mistakes = []
        self.tensors = {our_name(n): t.float() for n, t in tensors.items() if not NOT_STORED.search(n)}
        self.spec = self.make_spec()
        self.tie()
        self.cut_positions()

    def value(self, name, otherwise=None):
        found = self.arguments.get(name)
        return otherwise if found is None else found

    def both(self, name):
        """Returns an argument that both stacks have alike."""
        encoder, decoder = self.value("encoder_" + name), self.value("decoder_" + name)
        if encoder != decoder:
            self.mistakes.append(f"encoder_{name} is {encoder}, decoder_{name} {decoder}: must be equal here")
        if encoder is None:
            self.mistakes.append(f"encoder_{name} is not among the arguments")
        return encoder

    def make_spec(self):
        for name, wanted in REFUSED.items():
            if (found := self.value(name, wanted)) != wanted:
                self.mistakes.append(f"{name} is {found}: no model here has it")
        spec = {
            "encoder_layers": self.value("encoder_layers"),
            "decoder_layers": self.value("decoder_layers"),
            "d_model": self.both("embed_dim"),
            "ffn_dim": self.both("ffn_embed_dim"),
            "num_heads": self.both("attention_heads"),
            "dropout": self.value("dropout", 0.0),
            "attention_dropout": self.value("attention_dropout", 0.0),
            "activation_dropout": self.value("activation_dropout", 0.0),
            "layer_norm_epsilon": self.value("layernorm_eps", 1e-5),
            "unscaled_embedding": self.value("no_scale_embedding", False),
        }
        for name, field in ARGUMENTS.items():
            found = self.value(name)
            kind, rule = KINDS.get(field, KINDS["encoder_layers"])
            if found is not None and not rule(found):
                self.mistakes.append(f"{name} is {found}: must be {kind}")
            if found is None and name in ("encoder_layers", "decoder_layers"):
                self.mistakes.append(f"{name} is not among the arguments")
        normalize_before = self.both("normalize_before")
        spec["residual"] = "PRE_LN" if normalize_before else "DEEPNORM" if self.value("deepnorm") else "POST_LN"
        if self.value("deepnorm"):
            spec["deepnorm"] = {"beta_rule": "TORCHSCALE"}
            if normalize_before:
                self.mistakes.append("deepnorm with normalize_before: no model here has both")
        activation = self.value("activation_fn", "relu")
        if activation not in ("relu", "gelu"):
            self.mistakes.append(f"activation_fn is {activation}: must be relu or gelu")
        spec["activation"] = str(activation).upper()
        return spec

    def tie(self):
        """Leaves one copy of matrices that are one, under our name."""
        encoder, decoder, output = (
            self.tensors.pop(name, None)
            for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"))
        if encoder is None:
            self.mistakes.append("encoder.embed_tokens.weight is missing")
            return
        decoder = encoder if decoder is None else decoder
        output = decoder if output is None else output
        same = lambda a, b: a.shape == b.shape and torch.equal(a, b)
        if same(encoder, decoder) and same(decoder, output):
            self.spec["tied_embeddings"] = "TIE_ALL"
            self.tensors["shared.weight"] = encoder
            return
        self.tensors["encoder.embed_tokens.weight"] = encoder
        self.tensors["decoder.embed_tokens.weight"] = decoder
        self.spec["tied_embeddings"] = "TIE_DECODER" if same(decoder, output) else "TIE_NONE"
        if self.spec["tied_embeddings"] == "TIE_NONE":
            self.tensors["lm_head.weight"] = output

    def cut_positions(self):
        """Learned tables begin with fairseq's two unused rows. Without a table positions are sinusoids."""
        tables = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
        found = [name for name in tables if name in self.tensors]
        self.spec["max_positions"] = self.value("max_source_positions", 1024)
        if not found:
            return
        rows = {self.tensors[name].shape[0] - 2 for name in found}
        if len(found) == 1 or len(rows) != 1:
            self.mistakes.append("both stacks must have learned positions, of one number, or none")
            return
        self.spec.update(positions="LEARNED", max_positions=rows.pop())
        for name in tables:
            self.tensors[name] = self.tensors[name][2:].clone()

    def matrices(self):
        return [n for n in self.tensors if n in ("shared.weight", "lm_head.weight") or n.endswith("embed_tokens.weight")]


def tag_style(arguments):
    """Returns data.tags for how the task marks languages."""
    encoder, decoder = arguments.get("encoder_langtok"), bool(arguments.get("decoder_langtok"))
    styles = {("src", True): "M2M", ("tgt", False): "TARGET_TAG_ON_SOURCE", (None, False): "NO_TAGS"}
    if (encoder, decoder) not in styles:
        raise Refusal(f"encoder_langtok {encoder} with decoder_langtok {decoder}: known are src with true (M2M-100), "
                      "tgt with false, and neither")  # fmt: skip
    return styles[encoder, decoder]


def languages_of(options, arguments, dictionary, style):
    """Returns the languages, in the order in which fairseq adds their tokens behind the dictionary."""
    listed = options.languages or arguments.get("langs") or ""
    listed = [l for l in listed.split(",") if l] if isinstance(listed, str) else listed
    found = [piece[2:-2] for piece in dictionary if re.fullmatch(r"__\w+__", piece)]
    if style == "NO_TAGS" and not listed:  # their order does not matter
        listed = [l for l in (arguments.get("source_lang"), arguments.get("target_lang")) if l]
    languages = list(dict.fromkeys([*listed, *found]))
    if not all(isinstance(language, str) for language in languages):
        raise Refusal(f"its languages are {languages}: must be words")
    if not languages:
        raise Refusal("no languages in dictionary and arguments: give --languages in the order of fairseq's --langs")
    return languages


class Rows:
    """`of_ids`: the row of each of our ids, which are the specials, the pieces as the SentencePiece model has them, those
    that text is never cut into, and the tags, sorted."""

    def __init__(self, dictionary, spm_file, languages, rows, style):
        with read_as(f"{spm_file}: no SentencePiece model"):
            model = sentencepiece.SentencePieceProcessor(model_file=str(spm_file))
        pieces = [p for p in map(model.id_to_piece, range(model.get_piece_size())) if p not in SPECIALS]
        row = {piece: number for number, piece in reversed(list(enumerate(dictionary)))}
        added = [f"__{language}__" for language in languages if f"__{language}__" not in row]
        if style != "NO_TAGS":
            row.update({tag: len(dictionary) + number for number, tag in enumerate(added)})
        free = sorted(set(range(4, rows)) - {row.get(name) for name in [*pieces, *(f"__{l}__" for l in languages)]})
        self.copies = 0
        if style == "NO_TAGS":  # no tag is read: any row will do that has no part in a translation
            for tag in added:
                self.copies += not free
                row[tag] = free.pop() if free else SPECIALS.index("<s>")
        tags = [f"__{language}__" for language in sorted(languages)]
        self.unused = free
        self.unknown = sum(p not in row for p in pieces)
        self.of_ids = [0, 1, 2, 3, *(row.get(p, 3) for p in pieces), *free, *(row[t] for t in tags)]
        if max(self.of_ids) >= rows:
            raise Refusal(f"dictionary and languages need {max(self.of_ids) + 1} rows, the embedding has {rows}")


def unused_piece(name):
    """Returns a SentencePiece of type UNUSED as ModelProto's bytes (field 1; piece, score 0, type 5)."""
    text = name.encode()
    body = bytes([0x0A, len(text)]) + text + bytes([0x15, 0, 0, 0, 0, 0x18, 5])
    return bytes([0x0A, len(body)]) + body


def convert(options):
    arguments, tensors = read_checkpoint(options.checkpoint)
    if options.args:
        arguments.update(read_object(options.args))
    with read_as("its arguments and tensors"):
        model = Model(arguments, tensors)
        if model.mistakes:
            raise Refusal("; ".join(model.mistakes))
        style = tag_style(arguments)
    dictionary = read_dictionary(options.dict)
    with read_as("its languages"):
        languages = languages_of(options, arguments, dictionary, style)
    sizes = {model.tensors[name].shape[0] for name in model.matrices()}
    if len(sizes) != 1:
        raise Refusal(f"source and target have vocabularies of {sorted(sizes)} rows: they must be one")
    rows = Rows(dictionary, options.spm, languages, sizes.pop(), style)
    for name in model.matrices():
        model.tensors[name] = model.tensors[name][torch.tensor(rows.of_ids)].clone()
    model.spec["vocabulary_size"] = len(rows.of_ids)
    run = {"name": Path(options.checkpoint).stem, "model": model.spec, "data": {"tags": style}}
    config = {"model_type": "deepnet", "deepnet": {"run": run, "languages": sorted(languages)}}
    folder = Path(options.output)
    folder.mkdir(parents=True)
    tensors = {tensor_name(name): tensor.contiguous() for name, tensor in model.tensors.items()}
    with read_as(f"{folder}/model.safetensors"):
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
    unused = b"".join(unused_piece(f"<row {row}>") for row in rows.unused)
    (folder / "source.spm").write_bytes(Path(options.spm).read_bytes() + unused)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    print(f"{folder}: {len(tensors)} tensors, {len(rows.of_ids)} rows, tags {style}; {len(rows.unused)} rows that text "
          f"never has, {rows.unknown} pieces that the dictionary lacks (rows of <unk>)")  # fmt: skip
    if rows.copies:
        print(f"{rows.copies} tags have no row of their own and copy that of <s>: probabilities are lower by its "
              "share, which training makes nothing")  # fmt: skip


# fairseq makes the model again from these arguments: its names, and the fields of ModelSpec that they are.
ARGUMENTS = {
    "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers", "encoder_embed_dim": "d_model",
    "decoder_embed_dim": "d_model", "encoder_ffn_embed_dim": "ffn_dim", "decoder_ffn_embed_dim": "ffn_dim",
    "encoder_attention_heads": "num_heads", "decoder_attention_heads": "num_heads",
    "max_source_positions": "max_positions", "max_target_positions": "max_positions", "dropout": "dropout",
    "attention_dropout": "attention_dropout", "activation_dropout": "activation_dropout",
    "no_scale_embedding": "unscaled_embedding", "layernorm_eps": "layer_norm_epsilon",
}  # fmt: skip
KINDS = {  # of arguments, by field; the others are like the first
    "encoder_layers": ("a whole number above 0", lambda v: type(v) is int and 0 < v < 1 << 31),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "layer_norm_epsilon"),
                    ("a number from 0 to 1", lambda v: type(v) in (int, float) and 0 <= v <= 1)),
    "unscaled_embedding": ("true or false", lambda v: type(v) is bool),
}  # fmt: skip
LANGTOK = {"M2M": ("src", True), "TARGET_TAG_ON_SOURCE": ("tgt", False), "NO_TAGS": (None, False)}


def fairseq_arguments(spec, tags, languages):
    arguments = {name: spec.get(ours, 0) for name, ours in ARGUMENTS.items()}
    residual, tied = spec["residual"], spec.get("tied_embeddings", "TIE_ALL")
    if residual not in ("PRE_LN", "POST_LN", "DEEPNORM"):
        raise Refusal(f"residual is {residual}: fairseq and torchscale have PRE_LN, POST_LN and DEEPNORM")
    if spec.get("norm", "LAYER_NORM") != "LAYER_NORM":
        raise Refusal(f"norm is {spec['norm']}: fairseq and torchscale have LAYER_NORM")
    if set(spec.get("deepnorm", {})) & {"encoder_alpha", "decoder_alpha", "adam"}:
        raise Refusal("deepnorm has an alpha of its own: torchscale computes it from the depths")
    torchscale = residual == "DEEPNORM"
    arguments.update(
        arch="mt_base" if torchscale else "transformer", deepnorm=torchscale,
        encoder_normalize_before=residual == "PRE_LN", decoder_normalize_before=residual == "PRE_LN",
        encoder_learned_pos=spec.get("positions") == "LEARNED", decoder_learned_pos=spec.get("positions") == "LEARNED",
        activation_fn=spec.get("activation", "RELU").lower(), share_all_embeddings=tied == "TIE_ALL",
        share_decoder_input_output_embed=tied != "TIE_NONE", layernorm_embedding=False,
        encoder_langtok=LANGTOK[tags][0], decoder_langtok=LANGTOK[tags][1], langs=languages,
    )  # fmt: skip
    return arguments


def fairseq_tensors(tensors, arguments):
    """Returns our tensors under the names of fairseq, or of torchscale for DeepNorm."""
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    shared = found.pop("shared.weight", None)
    if shared is not None:
        found["encoder.embed_tokens.weight"] = found["decoder.embed_tokens.weight"] = shared
    head = found.pop("lm_head.weight", None)
    found["decoder.output_projection.weight"] = found["decoder.embed_tokens.weight"] if head is None else head
    for side in ("encoder", "decoder"):
        if (name := f"{side}.embed_positions.weight") in found:
            found[name] = torch.cat([torch.zeros(2, found[name].shape[1]), found[name]])
        elif not arguments["deepnorm"]:
            found[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        if not arguments["deepnorm"]:
            found[f"{side}.version"] = torch.tensor([3.0])
    if arguments["deepnorm"]:
        found = {re.sub(r"(layers\.\d+)\.fc", r"\1.ffn.fc", name): tensor for name, tensor in found.items()}
    return found


def convert_back(options):
    source, folder = Path(options.back), Path(options.output)
    exported = read_object(source / "config.json").get("deepnet")
    if exported is None:
        raise Refusal(f"{source}: not an export of weights as they are (--format safetensors)")
    with read_as(f"{source}/config.json: deepnet"):
        run, languages = exported["run"], exported["languages"]
        arguments = fairseq_arguments(run["model"], run.get("data", {}).get("tags", "TARGET_TAG_ON_SOURCE"), languages)
    tensors = {}
    for part in sorted(source.glob("*.safetensors")):
        with read_as(f"{part}: no safetensors"):
            tensors.update(safetensors.torch.load_file(part))
    with read_as("its tensors"):
        state = fairseq_tensors({name: tensor.float() for name, tensor in tensors.items()}, arguments)
    rows = read_object(source / "vocab.json")
    if any(type(row) is not int or re.search(r"[\r\n]", piece) for piece, row in rows.items()):
        raise Refusal(f"{source}/vocab.json: must be pieces, each of one line, and their rows")
    folder.mkdir(parents=True)
    torch.save({"args": argparse.Namespace(**arguments), "model": state}, folder / "checkpoint.pt")
    pieces = sorted(rows, key=rows.get)[len(SPECIALS):]
    names = [re.sub(r"^>>(\w+)<<$", r"__\1__", piece) for piece in pieces]
    (folder / "dict.txt").write_text("".join(f"{name} 1\n" for name in names), encoding="utf-8")
    shutil.copyfile(source / "source.spm", folder / "sentencepiece.model")
    print(f"{folder}: {len(state)} tensors under names of {'torchscale' if arguments['deepnorm'] else 'fairseq'}, "
          f"{len(names)} lines of dict.txt")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--dict")
    parser.add_argument("--spm")
    parser.add_argument("--languages")
    parser.add_argument("--args")
    parser.add_argument("--back")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    if not options.back and not (options.checkpoint and options.dict and options.spm):
        parser.error("CHECKPOINT, --dict and --spm are needed, or --back")
    if Path(options.output).exists():
        sys.exit(f"{options.output}: exists already")
    try:
        convert_back(options) if options.back else convert(options)
    except (Refusal, OSError) as error:
        sys.exit(shown(f"{options.back or options.checkpoint}: {error}"))


if __name__ == "__main__":
    main()
