#!/usr/bin/env python3
"""What a user could pick instead on a CPU: a plain PyTorch DeepNet, one training step after another.

  pytorch_baseline.py [--shapes ABCD] [--kinds f32,bf16] [--steps 8] [--threads 2] [--json FILE]

A step = forward, backward, fused AdamW on one padded batch (about 2,000 padded target tokens; 500
for D). Batches come from lengths.json beside this file: pairs of (source, target) lengths of a real
corpus cut by an 8,000-piece SentencePiece model, sorted by length. `deepnet bench step` uses the
same lengths, shapes and budgets.
Printed per shape and kind: source + target non-pad tokens per second (median, best), model GFLOP/s
on the non-pad tokens (matrix products, forward x 3), peak resident memory, and the matrix-product
ceilings of this machine in the same process ([2048 x d] x [d x 4d]; float32 by torch's default
library and by oneDNN, bfloat16).
Needs PyPI: torch==2.11.0. Every (shape, kind) runs in a process of its own; run it beside the
program to be compared, in turn, several times: the machine's speed drifts.
"""

import argparse, json, math, random, resource, statistics, subprocess, sys, time
from pathlib import Path

SHAPES = {
    "A": dict(layers=6, d=256, ffn=1024, heads=4, budget=2000),
    "B": dict(layers=18, d=256, ffn=1024, heads=4, budget=2000),
    "C": dict(layers=100, d=64, ffn=128, heads=2, budget=2000),
    "D": dict(layers=500, d=64, ffn=128, heads=2, budget=500),
}
VOCAB, PAD = 8000, 1


def batches(budget, count):
    pairs = json.loads((Path(__file__).parent / "lengths.json").read_text(encoding="utf-8")) * (budget // 250)
    out, cur, width = [], [], 0
    for s, t in sorted(pairs, key=lambda p: (p[1], p[0])):
        width = max(width, s, t)
        if cur and width * (len(cur) + 1) > budget:
            out.append(cur)
            cur, width = [], max(s, t)
        cur.append((s, t))
    random.Random(1).shuffle(out)
    return out[:count]


def flops(shape, batch):
    n, d, f = shape["layers"], shape["d"], shape["ffn"]
    s, t = sum(p[0] for p in batch), sum(p[1] for p in batch)
    ss, st, tt = (sum(p[a] * p[b] for p in batch) for a, b in ((0, 0), (0, 1), (1, 1)))
    enc = 2 * s * (4 * d * d + 2 * d * f) + 4 * d * ss
    dec = 2 * t * (6 * d * d + 2 * d * f) + 4 * s * d * d + 4 * d * (tt + st)
    return 3 * (n * (enc + dec) + 2 * t * d * VOCAB)


def build(shape):
    import torch
    from torch import nn
    import torch.nn.functional as F

    n, d, f, h = (shape[k] for k in ("layers", "d", "ffn", "heads"))
    alpha = (0.81 * n ** (5 / 16), (3 * n) ** 0.25)  # encoder, decoder (N = M)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

        def forward(self, x, y, mask, causal=False):
            split = lambda z: z.unflatten(-1, (h, d // h)).transpose(1, 2)
            q, k, v = split(self.q(x)), split(self.k(y)), split(self.v(y))
            if torch.is_autocast_enabled(
                "cpu"
            ):  # spelled out: faster than the fused call at bfloat16 on CPUs
                scores = (q / math.sqrt(d // h)) @ k.transpose(-1, -2)
                if causal:
                    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
                z = scores.masked_fill(~mask, -1e4).softmax(-1).to(v.dtype) @ v
            else:
                z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            return self.o(z.transpose(1, 2).flatten(2))

    class Layer(nn.Module):
        def __init__(self, cross):
            super().__init__()
            self.alpha, self.cross = alpha[cross], cross
            self.attn, self.w1, self.w2 = Attention(), nn.Linear(d, f), nn.Linear(f, d)
            self.memory_attn = Attention() if cross else None
            self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3 if cross else 2))
            self.drop = nn.Dropout(0.1)

        def forward(self, x, mask, memory=None, memory_mask=None):
            x = self.norms[0](self.alpha * x + self.drop(self.attn(x, x, mask, causal=self.cross)))
            if self.cross:
                x = self.norms[1](
                    self.alpha * x + self.drop(self.memory_attn(x, memory, memory_mask))
                )
            return self.norms[-1](self.alpha * x + self.drop(self.w2(F.relu(self.w1(x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, d, PAD)
            self.encoder = nn.ModuleList(Layer(False) for _ in range(n))
            self.decoder = nn.ModuleList(Layer(True) for _ in range(n))
            w = torch.exp(torch.arange(d // 2) * (-math.log(1e4) / (d // 2 - 1)))
            a = torch.arange(1024)[:, None] * w
            self.register_buffer("pos", torch.cat([a.sin(), a.cos()], 1))

        def enter(self, ids):
            return F.dropout(math.sqrt(d) * self.embed(ids) + self.pos[2 : 2 + ids.shape[1]], 0.1)

        def forward(self, src, tgt):
            mask = (src != PAD)[:, None, None, :]
            x = self.enter(src)
            for layer in self.encoder:
                x = layer(x, mask)
            y = self.enter(tgt)
            for layer in self.decoder:
                y = layer(y, None, x, mask)  # target padding stands right of every real token
            return F.linear(y, self.embed.weight)

    return Model()


def measure(shape, kind, steps, threads):
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = build(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def tensor(lengths):
        x = torch.randint(4, VOCAB, (len(lengths), max(lengths)))
        return x.masked_fill(torch.arange(x.shape[1]) >= torch.tensor(lengths)[:, None], PAD)

    work = batches(shape["budget"], 4)
    data = [(tensor([p[0] for p in b]), tensor([p[1] for p in b])) for b in work]
    rate, speed = [], []
    for i in range(steps + 1):
        src, tgt = data[i % len(data)]
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16"):
            logits = model(src, tgt)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(), tgt.flatten(), ignore_index=PAD, label_smoothing=0.1
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        took = time.perf_counter() - start
        if i:
            b = work[i % len(work)]
            rate.append(sum(map(sum, b)) / took)
            speed.append(flops(shape, b) / took / 1e9)
    d = shape["d"]
    x, w = torch.randn(2048, d), torch.randn(4 * d, d)
    xb, wb = x.bfloat16(), w.bfloat16()

    def ceiling(fn):
        fn()
        best = math.inf
        for _ in range(10):
            t = time.perf_counter()
            fn()
            best = min(best, time.perf_counter() - t)
        return round(2 * 2048 * d * 4 * d / best / 1e9)

    return dict(
        tok_s=round(statistics.median(rate)),
        tok_s_best=round(max(rate)),
        gflops=round(statistics.median(speed)),
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        ceiling=dict(
            f32=ceiling(lambda: F.linear(x, w)),
            bf16=ceiling(lambda: F.linear(xb, wb)),
            f32_onednn=ceiling(
                lambda: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
            ),
        ),
    )


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--shapes", default="ABCD")
    ap.add_argument("--kinds", default="f32,bf16")
    ap.add_argument("--steps", type=int, default=8)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--json")
    ap.add_argument("--one", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.one:
        shape, kind = args.one.split(":")
        return print(json.dumps(measure(SHAPES[shape], kind, args.steps, args.threads)))
    rows = []
    for shape in args.shapes:
        for kind in args.kinds.split(","):
            got = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--one",
                    f"{shape}:{kind}",
                    "--steps",
                    str(args.steps),
                    "--threads",
                    str(args.threads),
                ],
                stdout=subprocess.PIPE,
                check=True,
                encoding="utf-8",
            ).stdout
            rows.append(dict(shape=shape, **SHAPES[shape], kind=kind, **json.loads(got)))
            print(json.dumps(rows[-1]), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
