"""launch/interop/fairseq_to_deepnet.py: it runs nothing that a checkpoint names (class Promise), and what it makes of
arguments and dictionary (class Meaning), both without Python's torch; class Torch needs it (the label `peers`)."""

import argparse
import builtins
import collections
import contextlib
import enum
import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[3]
CONVERTER = ROOT / "launch/interop/fairseq_to_deepnet.py"
sys.path.insert(0, str(CONVERTER.parent))
try:
    import torch
except ImportError:
    torch = None
    for missing in ("torch", "safetensors", "safetensors.torch", "sentencepiece"):
        sys.modules[missing] = types.ModuleType(missing)
    sys.modules["safetensors"].torch = sys.modules["safetensors.torch"]
import fairseq_to_deepnet as converter  # noqa: E402


class Runs:
    """Calls `function` with `words` where it is unpickled."""

    def __init__(self, function, *words):
        self.call = function, words

    def __reduce__(self):
        return self.call


class OfFairseq:
    """A class that no reader has to know."""

    def __init__(self):
        self.count = 3


class Choice(enum.Enum):
    FIRST = "first"


class FakeTensor:
    pass


class FakeTorch:
    """Has what the converter asks of torch; load() gives `stored`."""

    Tensor = FakeTensor

    def __init__(self, stored=None, version="2.11.0+cpu"):
        self.stored, self.__version__ = stored, version
        self.loads, self.safe = [], []
        self.serialization = types.SimpleNamespace(safe_globals=self.safe_globals)

    @contextlib.contextmanager
    def safe_globals(self, safe):
        self.safe = safe
        yield

    def load(self, path, **options):
        self.loads.append(options)
        return self.stored


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Promise(Folder):
    def archive(self, **entries):
        path = self.folder / "checkpoint.pt"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(f"archive/{name}.pkl", content)
        return path

    def read(self, path, fake):
        with mock.patch.object(converter, "torch", fake):
            return converter.read_checkpoint(path)

    def refusal(self, path, fake):
        with self.assertRaises(converter.Refusal) as refused:
            self.read(path, fake)
        return str(refused.exception)

    def test_torchscript_is_refused_before_torch_sees_it(self):
        fake = FakeTorch({})
        path = self.archive(data=pickle.dumps({}, 2), constants=pickle.dumps((), 2))
        self.assertIn("a TorchScript archive", self.refusal(path, fake))
        self.assertEqual(fake.loads, [])

    def test_torch_reads_weights_only_and_makes_a_namespace_and_stand_ins(self):
        held = {"args": argparse.Namespace(a=[OfFairseq()]), "model": {"b": Runs(builtins.eval, "1")}}
        older = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}, held, []))
        (self.folder / "older.pt").write_bytes(older)
        for path in (self.archive(data=pickle.dumps(held, 2)), self.folder / "older.pt"):
            fake = FakeTorch({"model": {"w": FakeTensor()}})
            self.read(path, fake)
            self.assertEqual(fake.loads, [{"map_location": "cpu", "weights_only": True}])
            self.assertEqual(fake.safe[0], argparse.Namespace)
            named = {f"{OfFairseq.__module__}.OfFairseq", "builtins.eval"}
            self.assertEqual(set(fake.safe[1:]), {(converter.Inert, name) for name in named})

    def test_a_stand_in_keeps_values_and_takes_no_methods(self):
        inert = converter.Inert("words", of=1)
        inert.__setstate__({"count": 3, "__class__": int})
        self.assertEqual((inert.count, type(inert)), (3, converter.Inert))

    def test_no_attribute_is_used_of_what_is_no_dictionary(self):
        class Trap:
            def __getattribute__(self, name):
                raise AssertionError(f"{name} was used")

        path = self.archive(data=pickle.dumps({}, 2))
        self.assertIn("what it holds is no dictionary", self.refusal(path, FakeTorch(Trap())))
        self.assertIn("model is no dictionary", self.refusal(path, FakeTorch({"model": Trap()})))
        state = collections.OrderedDict(w=FakeTensor())
        state.items = state.keys = state.get = Trap()
        self.assertEqual(list(self.read(path, FakeTorch(state))[1]), ["w"])
        self.assertIn("w is no tensor", self.refusal(path, FakeTorch({"model": {"w": converter.Inert()}})))

    def test_a_torch_that_a_checkpoint_can_make_run_something_is_refused(self):
        path = self.archive(data=pickle.dumps({}, 2))
        for version in ("1.13.1", "2.5.1", "2.9.1+cu130"):
            fake = FakeTorch({}, version)
            self.assertIn(f"needs torch 2.10 or newer, here is {version}", self.refusal(path, fake))
            self.assertEqual(fake.loads, [])

    def test_what_is_no_checkpoint_is_refused(self):
        for content in (b"", b"PK\3\4 and no archive", b"\x80\x02}q\x01", b"text"):
            (self.folder / "x.pt").write_bytes(content)
            self.assertIn("is no checkpoint", self.refusal(self.folder / "x.pt", FakeTorch({})))

    def test_a_refusal_quotes_a_checkpoint_without_its_control_characters(self):
        words = [str(self.folder / "\x1b[2Jx.pt"), "--dict", "d", "--spm", "s", "--output", str(self.folder / "none")]
        fake = FakeTorch({"model": {"w\x1b]0;TITLE\x07é\x9b\u202e": converter.Inert()}})
        os.rename(self.archive(data=pickle.dumps({}, 2)), words[0])
        with mock.patch.object(converter, "torch", fake), mock.patch.object(sys, "argv", ["x", *words]):
            with self.assertRaises(SystemExit) as ended:
                converter.main()
        self.assertTrue(ended.exception.code.endswith("\ufffd[2Jx.pt: model: w\ufffd]0;TITLE\ufffdé\ufffd\ufffd is no tensor"))


class Matrix:
    def __init__(self, rows, columns=8):
        self.shape = (rows, columns)

    def float(self):
        return self

    clone = float

    def __getitem__(self, rows):
        return Matrix(len(range(*rows.indices(self.shape[0]))))


class Meaning(Folder):
    arguments = {
        "encoder_layers": 5, "decoder_layers": 3, "encoder_embed_dim": 32, "decoder_embed_dim": 32,
        "encoder_ffn_embed_dim": 64, "decoder_ffn_embed_dim": 64, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_normalize_before": False, "decoder_normalize_before": False,
    }  # fmt: skip
    spec = {
        "encoder_layers": 5, "decoder_layers": 3, "d_model": 32, "ffn_dim": 64, "num_heads": 4, "dropout": 0.0,
        "attention_dropout": 0.0, "activation_dropout": 0.0, "layer_norm_epsilon": 1e-5, "unscaled_embedding": False,
        "residual": "POST_LN", "activation": "RELU", "tied_embeddings": "TIE_ALL", "max_positions": 1024,
    }  # fmt: skip

    def model(self, tensors=None, **changes):
        fake = types.SimpleNamespace(equal=lambda a, b: a is b)
        with mock.patch.object(converter, "torch", fake):
            return converter.Model({**self.arguments, **changes},
                                   {"encoder.embed_tokens.weight": Matrix(9), **(tensors or {})})  # fmt: skip

    def test_arguments_that_are_not_stored_have_the_values_of_fairseq(self):
        model = self.model()
        self.assertEqual((model.spec, model.mistakes), (self.spec, []))

    def test_every_argument_becomes_its_field(self):
        model = self.model(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3, layernorm_eps=1e-6,
                           no_scale_embedding=True, activation_fn="gelu", deepnorm=True, max_source_positions=77)  # fmt: skip
        fields = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3, "layer_norm_epsilon": 1e-6,
                  "unscaled_embedding": True, "activation": "GELU", "residual": "DEEPNORM",
                  "deepnorm": {"beta_rule": "TORCHSCALE"}, "max_positions": 77}  # fmt: skip
        self.assertEqual((model.spec, model.mistakes), ({**self.spec, **fields}, []))
        before = self.model(encoder_normalize_before=True, decoder_normalize_before=True)
        self.assertEqual(before.spec["residual"], "PRE_LN")

    def said(self, *words, fake=None):
        """What the script ends with."""
        words = ["x", *(str(self.folder / w) if not w.startswith("--") else w for w in words), "--output", str(self.folder / "new")]
        with mock.patch.object(converter, "torch", fake), mock.patch.object(sys, "argv", words):
            with self.assertRaises(SystemExit) as ended:
                converter.main()
        self.assertFalse((self.folder / "new").exists())
        self.assertNotIn("\n", ended.exception.code)
        return ended.exception.code.replace(f"{self.folder}/", "")

    def test_a_file_that_is_something_else_is_named(self):
        class Weights(Matrix, FakeTensor):
            pass

        def no_model(model_file):
            raise RuntimeError("Internal: not parsed\nmore")

        fake = FakeTorch({"args": self.arguments, "model": {"encoder.embed_tokens.weight": Weights(9)}})
        fake.equal = lambda a, b: a is b
        (self.folder / "x.pt").write_bytes(pickle.dumps({}, 2) * 4)
        contents = {"d": b"a 1\n", "s": b"", "bad": b"a 1\n\xff 2\n", "list": b"[]", "cut": b"{", "deep": b"[" * 100000,
                    "words": b'{"encoder_layers": "5", "dropout": NaN, "max_source_positions": 0, "activation_fn": 7}',
                    "langs": b'{"langs": [7]}', "lang": b'{"encoder_langtok": ["src"]}'}  # fmt: skip
        for name, content in contents.items():
            (self.folder / name).write_bytes(content)
        given = ["x.pt", "--dict", "d", "--spm", "s"]
        spm = mock.patch.object(converter, "sentencepiece", types.SimpleNamespace(SentencePieceProcessor=no_model))
        for words, told in (
            ([*given, "--args", "cut"], "cut: no JSON: Expecting property name"),
            ([*given, "--args", "deep"], "deep: no JSON: maximum recursion depth"),
            ([*given, "--args", "bad"], "bad: no JSON: 'utf-8' codec can't decode"),
            ([*given, "--args", "list"], "list: what it holds is no dictionary"),
            ([*given, "--args", "words"], "encoder_layers is 5: must be a whole number above 0; max_source_positions is 0: must be a whole "
             "number above 0; dropout is nan: must be a number from 0 to 1; activation_fn is 7: must be relu or gelu"),
            ([*given, "--args", "langs"], "its languages are [7]: must be words"),
            ([*given, "--args", "lang"], "its arguments and tensors: unhashable type: 'list'"),
            (["x.pt", "--dict", "bad", "--spm", "s"], "bad, line 2: not UTF-8: 'utf-8' codec can't decode byte 0xff"),
            ([*given, "--languages"], "s: no SentencePiece model: Internal: not parsed"),
        ):  # fmt: skip
            with spm:
                self.assertIn(f"x.pt: {told}", self.said(*words, *(["l"] if words[-1] == "--languages" else []), fake=fake))

    def test_an_export_that_is_something_else_is_named(self):
        def export(config, vocabulary="{}"):
            for name, text in (("config", config), ("vocab", vocabulary)):
                (self.folder / f"{name}.json").write_text(text, encoding="utf-8")
            return self.said("--back", "", fake=FakeTorch())

        run = '{"deepnet": {"languages": ["de"], "run": {"model": {"residual": "PRE_LN"%s}%s}}}'
        for text, told in (
            ("[]", "config.json: what it holds is no dictionary"),
            ("{", "config.json: no JSON: "),
            ('{"deepnet": {}}', "config.json: deepnet: lacks 'run'"),
            ('{"deepnet": 7}', "config.json: deepnet: 'int' object is not subscriptable"),
            ('{"deepnet": {"run": {}, "languages": []}}', "config.json: deepnet: lacks 'model'"),
            (run % ("", ', "data": {"tags": "x"}'), "config.json: deepnet: lacks 'x'"),
            (run % (', "activation": 7', ""), "config.json: deepnet: 'int' object has no attribute 'lower'"),
            (run % ("", ""), "its tensors: lacks 'decoder.embed_tokens.weight'"),
        ):
            self.assertIn(told, export(text))
        (self.folder / "a.safetensors").write_bytes(b"x")
        with mock.patch.object(converter.safetensors.torch, "load_file", lambda path: struct.unpack("q", b"x"), create=True):
            self.assertIn("a.safetensors: no safetensors: unpack requires", export(run % ("", "")))
        state = {"model.shared.weight": Matrix(9)}
        with mock.patch.object(converter.safetensors.torch, "load_file", lambda path: state, create=True), mock.patch.object(
            converter, "fairseq_tensors", lambda tensors, arguments: tensors):  # fmt: skip
            for vocabulary in ('{"a": "x"}', '{"a": null}', '{"a\\nb": 1}'):
                self.assertIn("vocab.json: must be pieces, each of one line, and their rows", export(run % ("", ""), vocabulary))
            self.assertIn("vocab.json: what it holds is no dictionary", export(run % ("", ""), "[]"))

    def test_arguments_for_fairseq_are_read_back_as_what_they_were_made_of(self):
        plain = {**self.spec, "dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3, "encoder_layers": 9,
                 "layer_norm_epsilon": 1e-6, "unscaled_embedding": True, "activation": "GELU"}  # fmt: skip
        for spec in (plain, {**plain, "residual": "PRE_LN"},
                     {**plain, "residual": "DEEPNORM", "deepnorm": {"beta_rule": "TORCHSCALE"}}):  # fmt: skip
            for style in ("M2M", "TARGET_TAG_ON_SOURCE", "NO_TAGS"):
                arguments = converter.fairseq_arguments(spec, style, ["de", "en"])
                self.assertEqual(self.model(**arguments).spec, spec)
                self.assertEqual((converter.tag_style(arguments), arguments["langs"]), (style, ["de", "en"]))

    def test_learned_positions_come_from_the_tables(self):
        tables = {f"{side}.embed_positions.weight": Matrix(66) for side in ("encoder", "decoder")}
        model = self.model(tables)
        self.assertEqual((model.spec["positions"], model.spec["max_positions"], model.mistakes), ("LEARNED", 64, []))
        self.assertEqual({model.tensors[name].shape for name in tables}, {(64, 8)})
        for other in ({}, {"decoder.embed_positions.weight": Matrix(50)}):
            self.assertIn("learned positions, of one number", self.model({"encoder.embed_positions.weight": Matrix(66),
                                                                          **other}).mistakes[0])  # fmt: skip

    def test_matrices_that_are_one_are_kept_once(self):
        one, two, three = Matrix(9), Matrix(9), Matrix(9)
        stacks = ["decoder.embed_tokens.weight", "encoder.embed_tokens.weight"]
        for decoder, output, tied, names in (
            (None, None, "TIE_ALL", ["shared.weight"]),
            (one, one, "TIE_ALL", ["shared.weight"]),
            (two, None, "TIE_DECODER", stacks),
            (two, two, "TIE_DECODER", stacks),
            (one, two, "TIE_NONE", [*stacks, "lm_head.weight"]),
            (two, three, "TIE_NONE", [*stacks, "lm_head.weight"]),
        ):
            stored = {stacks[1]: one, stacks[0]: decoder, "decoder.output_projection.weight": output}
            model = self.model({name: matrix for name, matrix in stored.items() if matrix})
            self.assertEqual((model.spec["tied_embeddings"], sorted(model.tensors)), (tied, names))
            held = {"shared.weight": one, stacks[0]: decoder, stacks[1]: one, "lm_head.weight": output}
            for name in names:
                self.assertIs(model.tensors[name], held[name])

    def test_tensors_of_an_export_get_the_names_and_unused_rows_of_fairseq(self):
        fake = types.SimpleNamespace(zeros=Matrix, cat=lambda parts: Matrix(sum(p.shape[0] for p in parts)), tensor=list)
        tables = {f"model.{side}.embed_positions.weight": Matrix(64) for side in ("encoder", "decoder")}
        shared, fc = Matrix(9), Matrix(4)
        ours = {"model.shared.weight": shared, "model.encoder.layers.0.fc1.weight": fc}
        with mock.patch.object(converter, "torch", fake):
            found = converter.fairseq_tensors({**ours, **tables}, {"deepnorm": False})
            own = converter.fairseq_tensors({**ours, "lm_head.weight": fc}, {"deepnorm": True})
        of_shared = {f"{name}.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")}
        self.assertEqual({name for name, tensor in found.items() if tensor is shared}, of_shared)
        self.assertEqual({found[name.removeprefix("model.")].shape for name in tables}, {(66, 8)})
        self.assertEqual(set(found) - of_shared, {name.removeprefix("model.") for name in tables} | {
            "encoder.layers.0.fc1.weight", "encoder.version", "decoder.version"})  # fmt: skip
        self.assertEqual({name for name, tensor in own.items() if tensor is fc},
                         {"encoder.layers.0.ffn.fc1.weight", "decoder.output_projection.weight"})  # fmt: skip

    def test_what_no_model_here_has_is_refused_by_name(self):
        others = {
            "subln": True, "layernorm_embedding": True, "moe_freq": 2, "multiway": True, "rel_pos_buckets": 32,
            "xpos_rel_pos": True, "cross_self_attention": True, "no_cross_attention": True, "adaptive_input": True,
            "adaptive_softmax_cutoff": "9,99", "no_token_positional_embeddings": True, "tie_adaptive_weights": True,
            "scale_fc": True, "scale_attn": True, "scale_heads": True, "scale_resids": True, "base_layers": 1,
            "no_decoder_final_norm": True, "lang_tok_replacing_bos_eos": True, "adaptive_input_factor": 4.0,
        }  # fmt: skip
        self.assertEqual(set(others), set(converter.REFUSED))
        for name, value in others.items():
            self.assertEqual(self.model(**{name: value}).mistakes, [f"{name} is {value}: no model here has it"])
        self.assertEqual(len(self.model(**others).mistakes), len(others))
        self.assertIn("activation_fn is swish", self.model(activation_fn="swish").mistakes[0])

    def test_both_stacks_are_alike_or_refused(self):
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before"):
            for side in ("encoder", "decoder"):
                mistakes = self.model(**{f"{side}_{name}": 2}).mistakes
                self.assertEqual(len(mistakes), 1)
                self.assertRegex(mistakes[0], f"^encoder_{name} is .*, decoder_{name} .*: must be equal here$")
            neither = self.model(**{f"{side}_{name}": None for side in ("encoder", "decoder")})
            self.assertEqual(neither.mistakes, [f"encoder_{name} is not among the arguments"])

    def test_a_dictionary_says_its_special_pieces_again_only_where_it_overwrites(self):
        path = self.folder / "dict.txt"
        path.write_text("\u2581a 7\n<unk> 1 #fairseq:overwrite\n\u2028 2\n", encoding="utf-8")
        self.assertEqual(converter.read_dictionary(path), [*converter.SPECIALS, "\u2581a", "<unk>", "\u2028"])
        for line, reason in {"<unk> 1": "line 2: <unk> is no piece", "word": "line 2: not a piece and its count"}.items():
            path.write_text(f"a 7\n{line}\n", encoding="utf-8")
            with self.assertRaisesRegex(converter.Refusal, reason):
                converter.read_dictionary(path)

    def test_languages_are_those_listed_then_those_of_the_dictionary(self):
        def found(style="M2M", given=None, **arguments):
            options = argparse.Namespace(languages=given)
            return converter.languages_of(options, arguments, ["<s>", "__x", "__zh_CN__", "a__", "__de__"], style)

        self.assertEqual(found(), ["zh_CN", "de"])
        self.assertEqual(found(langs="fr,de"), ["fr", "de", "zh_CN"])
        self.assertEqual(found(langs=["fr"]), ["fr", "zh_CN", "de"])
        self.assertEqual(found(langs="fr", given="en,de"), ["en", "de", "zh_CN"])
        self.assertEqual(found("NO_TAGS", source_lang="fr", target_lang="en"), ["fr", "en", "zh_CN", "de"])

    def test_rows_are_the_dictionary_s_then_those_of_the_tags(self):
        pieces = [*converter.SPECIALS, "a", "b", "new"]
        fake = types.SimpleNamespace(SentencePieceProcessor=lambda model_file: types.SimpleNamespace(
            id_to_piece=pieces.__getitem__, get_piece_size=lambda: len(pieces)))  # fmt: skip
        dictionary = [*converter.SPECIALS, "b", "__de__", "a"]
        with mock.patch.object(converter, "sentencepiece", fake):
            rows = converter.Rows(dictionary, "m", ["fr", "de", "en"], 11, "M2M")
            self.assertEqual(rows.of_ids, [0, 1, 2, 3, 6, 4, 3, 9, 10, 5, 8, 7])  # specials, a, b, new, free, de, en, fr
            self.assertEqual((rows.unused, rows.unknown, rows.copies), ([9, 10], 1, 0))
            with self.assertRaisesRegex(converter.Refusal, "need 9 rows, the embedding has 8"):
                converter.Rows(dictionary, "m", ["fr", "de", "en"], 8, "M2M")
            untagged = converter.Rows(dictionary, "m", ["fr", "de", "en"], 8, "NO_TAGS")
            self.assertEqual((untagged.of_ids, untagged.copies), ([0, 1, 2, 3, 6, 4, 3, 5, 0, 7], 1))

    def test_tags_are_as_the_task_marks_languages(self):
        styles = {("src", True): "M2M", ("tgt", False): "TARGET_TAG_ON_SOURCE", (None, False): "NO_TAGS"}
        for encoder in ("src", "tgt", None):
            for decoder in (True, False):
                arguments = {"encoder_langtok": encoder, "decoder_langtok": decoder}
                if (encoder, decoder) in styles:
                    self.assertEqual(converter.tag_style(arguments), styles[encoder, decoder])
                else:
                    with self.assertRaises(converter.Refusal):
                        converter.tag_style(arguments)


class Torch(Folder):
    """With the real torch, in a process of its own."""

    def convert(self, name):
        words = [sys.executable, CONVERTER, name, "--dict", "d", "--spm", "s", "--output", "none"]
        done = subprocess.run([str(w) for w in words], cwd=self.folder, encoding="utf-8", capture_output=True)
        return done.returncode, done.stderr

    def test_torchscript_does_not_run(self):
        (self.folder / "make.py").write_text("""
import torch
from typing import Dict, Optional
class Evil(torch.nn.Module):
    def forward(self, x):
        return x
    @torch.jit.export
    def get(self, a: str, b: Optional[int] = None) -> Dict[str, int]:
        y = torch.from_file("victim.txt", True, 8, dtype=torch.uint8)
        y.copy_(torch.tensor([80, 87, 78, 69, 68, 33, 33, 10], dtype=torch.uint8))
        return {}
torch.jit.script(Evil()).save("evil.pt")
""", encoding="utf-8")
        (self.folder / "victim.txt").write_text("victim!\n", encoding="utf-8")
        subprocess.run([sys.executable, "make.py"], cwd=self.folder, check=True, capture_output=True)
        code, said = self.convert("evil.pt")
        self.assertEqual(code, 1)
        self.assertIn("evil.pt: a TorchScript archive", said)
        with mock.patch.object(converter, "pickles_of", lambda file: []):  # torch's own reader refuses it too
            with self.assertRaisesRegex(converter.Refusal, "TorchScript"):
                converter.read_checkpoint(self.folder / "evil.pt")
        self.assertEqual((self.folder / "victim.txt").read_text(encoding="utf-8"), "victim!\n")

    def test_nothing_runs_wherever_it_stands(self):
        marker = self.folder / "ran"
        calls = [Runs(os.system, f"touch {marker}"), Runs(exec, f"open({str(marker)!r}, 'w')"),
                 Runs(subprocess.check_call, ["touch", str(marker)]), Runs(os.mkdir, str(marker))]  # fmt: skip
        weights = {"w": torch.zeros(2)}
        for call in calls:
            state = collections.OrderedDict(weights)
            state.get = call
            namespace = argparse.Namespace(a={"b": [call]})
            for held in (call, {"args": call, "model": weights}, {"args": namespace, "model": weights}, state,
                         {"model": {"w": call}}, {"extra_state": {"a": (call,)}, "model": weights}):  # fmt: skip
                for is_archive in (True, False):
                    path = self.folder / "evil.pt"
                    torch.save(held, path, _use_new_zipfile_serialization=is_archive)
                    with contextlib.suppress(converter.Refusal):
                        converter.read_checkpoint(path)
                    self.assertFalse(marker.exists())
        code, said = self.convert("evil.pt")  # that which os.mkdir would have made, in the older format
        self.assertEqual((code, marker.exists()), (1, False), said)
        pickle.loads(pickle.dumps(calls[0]))
        self.assertTrue(marker.exists())  # the test would notice

    def test_what_fairseq_stores_is_read(self):
        numpy = __import__("numpy")
        state = torch.nn.Linear(2, 2).state_dict()
        extra = {"best": numpy.float64(1.5), "meters": OfFairseq(), "choice": Choice.FIRST, "path": Path("x"),
                 "set": {1, 2}, "large": 2**40, "bytes": b"x"}  # fmt: skip
        task = {"encoder_langtok": "src", "langs": ["de", "en"]}
        held = {"args": None, "cfg": {"model": argparse.Namespace(encoder_layers=5), "task": task}, "model": state,
                "last_optimizer_state": {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}}, "extra_state": extra}  # fmt: skip
        for is_archive in (True, False):
            path = self.folder / "checkpoint.pt"
            torch.save(held, path, _use_new_zipfile_serialization=is_archive)
            arguments, tensors = converter.read_checkpoint(path)
            self.assertEqual(arguments, {**task, "encoder_layers": 5})
            self.assertTrue(torch.equal(tensors["weight"], state["weight"]))
            torch.save(state, path, _use_new_zipfile_serialization=is_archive)  # weights alone
            self.assertEqual(list(converter.read_checkpoint(path)[1]), ["weight", "bias"])
            torch.save({"model": {"w": torch.nn.Parameter(torch.ones(3))}}, path, _use_new_zipfile_serialization=is_archive)
            self.assertEqual(converter.read_checkpoint(path)[1]["w"].sum(), 3)
