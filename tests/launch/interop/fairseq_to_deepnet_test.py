"""launch/interop/fairseq_to_deepnet.py runs nothing that a checkpoint names. Class Promise goes without Python's torch,
class Torch needs it (the label `peers`)."""

import argparse
import builtins
import collections
import contextlib
import enum
import io
import os
import pickle
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


class Torch(Folder):
    """With the real torch, in a process of its own."""

    def convert(self, name):
        words = [sys.executable, CONVERTER, name, "--dict", "d", "--spm", "s", "--output", "none"]
        done = subprocess.run([str(w) for w in words], cwd=self.folder, text=True, capture_output=True)
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
""")
        (self.folder / "victim.txt").write_text("victim!\n")
        subprocess.run([sys.executable, "make.py"], cwd=self.folder, check=True, capture_output=True)
        code, said = self.convert("evil.pt")
        self.assertEqual(code, 1)
        self.assertIn("evil.pt: a TorchScript archive", said)
        with mock.patch.object(converter, "pickles_of", lambda file: []):  # torch's own reader refuses it too
            with self.assertRaisesRegex(converter.Refusal, "TorchScript"):
                converter.read_checkpoint(self.folder / "evil.pt")
        self.assertEqual((self.folder / "victim.txt").read_text(), "victim!\n")

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
