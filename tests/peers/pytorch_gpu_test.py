"""The PyTorch model that GPUs are compared with (tests/bench/pytorch_gpu.py) learns the same from both kinds of batches."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import pytorch_gpu

PAIRS = [(3, 5), (7, 2), (7, 9)]


def loss_and_gradient(packed):
    torch.manual_seed(3)
    attend = pytorch_gpu.packed_attention if packed else pytorch_gpu.padded_attention
    model = pytorch_gpu.Model(pytorch_gpu.size_of(layers=2, width=32, dropout=0.0), attend)
    torch.manual_seed(4)  # of the tokens, which are drawn before padding is left out
    loss = pytorch_gpu.loss_of(model, pytorch_gpu.data_of(PAIRS, packed, "cpu"), "cpu")
    loss.backward()
    return loss.item(), model.encoder[0].self_attention.q.weight.grad


class PyTorchStep(unittest.TestCase):
    def test_padded_and_packed_batches_have_one_loss_and_one_gradient(self):
        (padded, gradient), (packed, other) = loss_and_gradient(False), loss_and_gradient(True)
        self.assertAlmostEqual(padded, packed, delta=0.01)  # bfloat16 has 8 bits
        self.assertLess((gradient - other).norm(), 0.05 * gradient.norm())


if __name__ == "__main__":
    unittest.main()
