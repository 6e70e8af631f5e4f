#!/usr/bin/env python3
"""What a user could pick instead on a GPU: a plain PyTorch DeepNet, one training step after another.

  pytorch_gpu.py [--layers 6] [--width 512] [--tokens 8192] [--kind padded|packed] [--compile] [--steps 12] [--device cuda]

A step = forward, backward and fused AdamW on one batch, with bfloat16 autocast over float32 weights and dropout of 0.1.
padded: a rectangle of sentences of similar length, at most --tokens tokens a side, padding included, through PyTorch's
scaled_dot_product_attention. packed: --tokens tokens a side without padding, through its varlen_attn, flash attention
of sentences of any lengths. Lengths are those of lengths.json, as `deepnet bench step` takes them. --compile: torch.compile
of each layer, with dynamic shapes.

Prints a line of JSON: source + target tokens per second without padding (median), seconds per step, seconds in which
the host was busy launching it, GFLOP/s of the model's products on those tokens, peak memory. Run it beside the program,
on the same card in the same hour. Needs PyPI: torch==2.11.0. --device cpu rehearses it.
"""

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from pytorch_baseline import PAD, VOCAB, flops

WARM_UP = 3  # steps that are not measured; compiled layers meet new shapes there


def pairs_of(tokens):
    pairs = json.loads((Path(__file__).parent / "lengths.json").read_text(encoding="utf-8"))
    return sorted(pairs * max(1, tokens // 250), key=lambda pair: (pair[1], pair[0]))


def batches(tokens, packed, count):
    """Returns lists of (source, target) lengths, each as full as the kind's count of tokens allows."""
    found, batch = [], []
    for pair in pairs_of(tokens):
        longer = batch + [pair]
        if packed:
            size = max(sum(lengths) for lengths in zip(*longer))
        else:
            size = len(longer) * max(max(lengths) for lengths in longer)
        if batch and size > tokens:
            found.append(batch)
            longer = [pair]
        batch = longer
    random.Random(1).shuffle(found)
    return (found or [batch])[:count]


def padded_attention(q, k, v, where):
    z = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), **where)
    return z.transpose(1, 2)


def packed_attention(q, k, v, where):
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, **where)
    return sentence_by_sentence(q, k, v, **where)


def sentence_by_sentence(q, k, v, cu_seq_q, cu_seq_k, window_size=(-1, -1), **_):
    """What varlen_attn computes, on CPUs, which have none."""
    outputs = []
    for i in range(len(cu_seq_q) - 1):
        rows, keys = slice(cu_seq_q[i], cu_seq_q[i + 1]), slice(cu_seq_k[i], cu_seq_k[i + 1])
        parts = (x.transpose(0, 1) for x in (q[rows], k[keys], v[keys]))
        outputs.append(F.scaled_dot_product_attention(*parts, is_causal=window_size[1] == 0).transpose(0, 1))
    return torch.cat(outputs)


class Attention(nn.Module):
    def __init__(self, size, attend, cross):
        super().__init__()
        self.heads, self.attend, self.cross = size.heads, attend, cross
        self.q = nn.Linear(size.d, size.d if cross else 3 * size.d)
        self.kv = nn.Linear(size.d, 2 * size.d) if cross else None
        self.out = nn.Linear(size.d, size.d)

    def forward(self, x, memory, where):
        parts = (self.q(x), *self.kv(memory).chunk(2, -1)) if self.cross else self.q(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        return self.out(self.attend(q, k, v, where).flatten(-2))


class Layer(nn.Module):
    def __init__(self, size, attend, decodes):
        super().__init__()
        n = size.layers
        self.alpha = (3 * n) ** 0.25 if decodes else 0.81 * n ** (5 / 16)  # as many layers on each side
        self.dropout = size.dropout
        self.self_attention = Attention(size, attend, cross=False)
        self.cross_attention = Attention(size, attend, cross=True) if decodes else None
        self.fc1, self.fc2 = nn.Linear(size.d, size.ffn), nn.Linear(size.ffn, size.d)
        self.norms = nn.ModuleList(nn.LayerNorm(size.d) for _ in range(3 if decodes else 2))

    def add(self, norm, x, branch):
        return norm(self.alpha * x + F.dropout(branch, self.dropout))

    def forward(self, x, memory, where, cross_where):
        x = self.add(self.norms[0], x, self.self_attention(x, None, where))
        if self.cross_attention is not None:
            x = self.add(self.norms[1], x, self.cross_attention(x, memory, cross_where))
        return self.add(self.norms[-1], x, self.fc2(F.relu(self.fc1(x))))


class Model(nn.Module):
    def __init__(self, size, attend):
        super().__init__()
        self.scale, self.dropout = math.sqrt(size.d), size.dropout
        self.tokens, self.positions = nn.Embedding(VOCAB, size.d, PAD), nn.Embedding(1024, size.d)
        self.encoder = nn.ModuleList(Layer(size, attend, False) for _ in range(size.layers))
        self.decoder = nn.ModuleList(Layer(size, attend, True) for _ in range(size.layers))

    def run(self, layers, side, memory, where, cross_where):
        ids, positions = side
        x = F.dropout(self.scale * self.tokens(ids) + self.positions(positions), self.dropout)
        for layer in layers:
            x = layer(x, memory, where, cross_where)
        return x

    def forward(self, source, target, wheres):
        memory = self.run(self.encoder, source, None, wheres[0], None)
        y = self.run(self.decoder, target, memory, wheres[1], wheres[2])
        return F.linear(y, self.tokens.weight)


def side_of(lengths, packed, device):
    """Returns made-up ids and the positions of their tokens."""
    longest = max(lengths)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, VOCAB, real.shape).masked_fill(~real, PAD)
    positions = torch.arange(longest).expand(real.shape)
    return tuple(x[real].to(device) if packed else x.to(device) for x in (ids, positions))


def data_of(batch, packed, device):
    """Returns source, target and what attention of the encoder, the decoder and across is told."""
    lengths = [list(side) for side in zip(*batch)]
    source, target = (side_of(side, packed, device) for side in lengths)
    if not packed:
        mask = (source[0] != PAD)[:, None, None, :]
        return source, target, ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": mask})
    starts = [torch.tensor([0, *side]).cumsum(0).to(device, torch.int32) for side in lengths]

    def where(q, k):
        return dict(cu_seq_q=starts[q], cu_seq_k=starts[k], max_q=max(lengths[q]), max_k=max(lengths[k]))

    return source, target, (where(0, 0), dict(where(1, 1), window_size=(-1, 0)), where(1, 0))


def loss_of(model, data, device):
    source, target, wheres = data
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        logits = model(source, target, wheres)
    return F.cross_entropy(logits.flatten(0, -2).float(), target[0].flatten(), ignore_index=PAD, label_smoothing=0.1)


def measure(args, size):
    packed, on_gpu = args.kind == "packed", args.device != "cpu"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with torch.device(args.device):
        model = Model(size, packed_attention if packed else padded_attention)
    if args.compile:
        for layer in [*model.encoder, *model.decoder]:
            layer.compile(dynamic=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    work = batches(args.tokens, packed, 4)
    data = [data_of(batch, packed, args.device) for batch in work]
    warm_up = max(WARM_UP, len(work)) + 2 * args.compile
    rates, seconds, host, speeds = [], [], [], []
    for step in range(warm_up + args.steps):
        batch = work[step % len(work)]
        wait()
        began = time.perf_counter()
        loss = loss_of(model, data[step % len(work)], args.device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        launched = time.perf_counter() - began
        wait()
        took = time.perf_counter() - began
        if step >= warm_up:
            rates.append(sum(map(sum, batch)) / took)
            speeds.append(flops(dict(layers=size.layers, d=size.d, ffn=size.ffn), batch) / took / 1e9)
            seconds.append(took)
            host.append(launched)
    return dict(
        name=f"pytorch/{args.layers} {args.width} {args.tokens}", kind=args.kind + ("-compiled" if args.compile else ""),
        device=torch.cuda.get_device_name() if on_gpu else "cpu", torch=torch.__version__,
        tokens_per_second=round(statistics.median(rates)), gflops=round(statistics.median(speeds), 1),
        seconds_per_step=statistics.median(seconds), seconds_of_host=statistics.median(host),
        peak_device_bytes=torch.cuda.max_memory_allocated() if on_gpu else 0,
        parameters=sum(p.numel() for p in model.parameters()), loss=round(loss.item(), 3),
    )  # fmt: skip


def size_of(layers, width, dropout=0.1):
    heads, ffn = (2, 128) if width == 64 else (max(1, width // 64), 4 * width)  # as `deepnet bench`
    return argparse.Namespace(layers=layers, d=width, ffn=ffn, heads=heads, dropout=dropout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6, help="of each stack")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192, help="of each side of a batch")
    parser.add_argument("--kind", choices=("padded", "packed"), default="padded")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    print(json.dumps(measure(args, size_of(args.layers, args.width))), flush=True)


if __name__ == "__main__":
    main()
