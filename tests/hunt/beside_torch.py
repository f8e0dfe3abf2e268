"""An independent judge: problem lines beside PyTorch in float64.

    build/hunt lines 500 | python tests/hunt/beside_torch.py

Reads problem lines (support/problem.h) from standard input and gives each to the Python package,
with values of its own. The forward pass is judged beside softmax(Q K^T) V of PyTorch, gradients
beside PyTorch's autograd, O and gradients by the bounds of docs/contract.md (A1, A4), whose sizes
are computed here too. Shares nothing with support/: neither inputs, oracle nor errors. Exit status
1 if a result is beyond its bound, 77 without PyTorch or the package.

Words that name memory or another judge are not tried here: offset, page, prefix, view, sown, kv_*,
o_dtype, grad_dtype; nor are problems without heads or columns. Of layouts, bshd and bhsd are told
apart.
"""

import sys
import time

try:
    import torch

    import libattn
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
}
INF = float("inf")
CHAIN = 65  # u: what 64 terms that are alike may add (docs/numerics.md)


def numbers(text):
    return [int(x) for x in text.split(",")]


class Problem:
    """The words of a line, and its tensors."""

    def __init__(self, line):
        self.word = w = dict(x.split("=") for x in line.split())
        self.dtype = TYPES[w["dtype"]]
        self.varlen = "lens_q" in w
        nq, b = int(w.get("nq", 1024)), int(w.get("b", 1))
        self.lens_q = numbers(w["lens_q"]) if self.varlen else [nq] * b
        self.lens_k = numbers(w["lens_k"]) if self.varlen else [int(w.get("nk", nq))] * b
        self.heads = int(w["hq"])
        self.kv_heads = int(w.get("hkv", self.heads))
        self.d = int(w["d"])
        if self.heads == 0 or self.d == 0:
            raise NotImplementedError
        self.dv = int(w.get("dv", self.d))
        self.backward = w.get("pass", "forward") != "forward"
        self.outside = int(w.get("outside", 0))
        self.draw = torch.Generator().manual_seed(int(w.get("seed", 0)) % 2**62)
        self.kind = self.roll(6)
        self.make_tensors()

    def roll(self, n):
        return int(torch.randint(n, (), generator=self.draw))

    def values(self, *shape, dtype=None):
        """Normal, positive, constant or beside an offset, at some power of two."""
        x = torch.randn(shape, generator=self.draw, dtype=torch.float64)
        x = (x, x.abs(), 1 + 0.1 * x, torch.full_like(x, 0.1), x, 8 * x)[self.kind]
        return (x * 2.0 ** (self.roll(7) - 3)).to(dtype or self.dtype)

    def rows(self, lens, heads, dim):
        if self.varlen:
            return self.values(self.outside + sum(lens) + self.outside, heads, dim)
        if self.word.get("layout") == "bhsd":
            return self.values(len(lens), heads, lens[0], dim).transpose(1, 2)
        return self.values(len(lens), lens[0], heads, dim)

    def axes(self, word, default):
        """(shape, dtype) of mask=i8:bk and the like; None without the word."""
        if word not in self.word:
            return None
        name, _, letters = self.word[word].rpartition(":")
        n = dict(
            b=len(self.lens_q), h=self.heads, q=max(self.lens_q), k=max(self.lens_k, default=0)
        )
        order = "bhqk" if word in ("mask", "bias") else "bh"
        return [n[c] if c in letters else 1 for c in order], TYPES[name] if name else default

    def make_tensors(self):
        w = self.word
        self.q = self.rows(self.lens_q, self.heads, self.d)
        self.k = self.rows(self.lens_k, self.kv_heads, self.d)
        self.v = self.rows(self.lens_k, self.kv_heads, self.dv)
        self.d_out = self.rows(self.lens_q, self.heads, self.dv)
        side = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.mask = self.bias = self.slopes = self.sinks = self.d_lse = None
        if at := self.axes("mask", torch.bool):
            self.mask = (torch.rand(at[0], generator=self.draw) < 0.75).to(at[1])
        if at := self.axes("bias", self.dtype):
            x = torch.randn(at[0], generator=self.draw, dtype=torch.float64)
            self.bias = x.masked_fill(torch.rand(at[0], generator=self.draw) < 0.06, -INF).to(at[1])
        if at := self.axes("alibi", side):
            self.slopes = torch.rand(at[0], generator=self.draw, dtype=torch.float64).to(side)
        if at := self.axes("sinks", side):
            self.sinks = torch.randn(at[0], generator=self.draw, dtype=torch.float64).to(side)
        if w.get("d_lse") == "1":
            n = [self.heads, self.q.shape[0]] if self.varlen else [1, self.heads, max(self.lens_q)]
            n = n if self.varlen else [len(self.lens_q), *n[1:]]
            self.d_lse = torch.randn(n, generator=self.draw, dtype=torch.float64).to(side)

    def number(self, word, default=None, kind=float):
        return kind(self.word[word]) if word in self.word else default

    def each(self, word, b, default=None):
        """The number of sequence b in a list, or the one number of all."""
        if word not in self.word:
            return default
        list_ = numbers(self.word[word])
        return list_[b] if len(list_) > 1 else list_[0]

    def options(self):
        w = self.word
        index = TYPES[w.get("index", "i32")]
        o = dict(
            mask=self.mask,
            bias=self.bias,
            softmax_scale=self.number("scale"),
            causal=w.get("causal") == "1",
            top_left=w.get("top_left") == "1",
            window_left=self.number("window_left", kind=int),
            window_right=self.number("window_right", kind=int),
            softcap=self.number("softcap"),
            precise=w.get("precise") == "1",
            bf16x3=w.get("bf16x3") == "1",
        )
        for name, t in (("alibi_slopes", self.slopes), ("sinks", self.sinks)):
            if t is not None:
                o[name] = t.expand(t.shape[0], self.heads).contiguous()
                o[name] = o[name].expand(len(self.lens_q), self.heads).contiguous()
        for name, word in (("seqused_q", "used_q"), ("seqused_k", "used_k"),
                           ("q_origin", "q_origin"), ("k_origin", "k_origin"),
                           ("leftpad_k", "leftpad_k")):  # fmt: skip
            if word in w:
                all_ = [self.each(word, b) for b in range(len(self.lens_q))]
                o[name] = torch.tensor(all_, dtype=index)
        if self.varlen:
            for name, lens in (("cu_seqlens_q", self.lens_q), ("cu_seqlens_k", self.lens_k)):
                ends = [self.outside]
                for n in lens:
                    ends.append(ends[-1] + n)
                o[name] = torch.tensor(ends, dtype=index)
        if "dropout" in w:
            o["dropout_p"] = float(w["dropout"])
            o["dropout_seed"] = int(w.get("dropout_seed", 0))
            o["dropout_offset"] = int(w.get("dropout_offset", 0))
        return {k: v for k, v in o.items() if v is not None and v is not False}


def part(t, b, h, nq, nk):
    """The element or the matrix of a broadcast tensor for a sequence and a head."""
    t = t[b if t.shape[0] > 1 else 0, h if t.shape[1] > 1 else 0]
    return t if t.dim() == 0 else t[:nq, :nk].expand(nq, nk)


class Reference:
    """Attention of a problem in float64, with autograd, and the sizes of the bounds."""

    def __init__(self, p):
        self.p = p
        self.leaf = {
            name: t.detach().double().requires_grad_()
            for name, t in (("q", p.q), ("k", p.k), ("v", p.v), ("bias", p.bias),
                            ("alibi_slopes", p.slopes), ("sinks", p.sinks))  # fmt: skip
            if t is not None
        }
        self.out = torch.zeros(p.d_out.shape, dtype=torch.float64)
        self.abs = torch.zeros_like(self.out)  # sum p |v| (1 + largest a)
        self.size = {name: torch.zeros_like(t.detach()) for name, t in self.leaf.items()}
        self.loss = torch.zeros((), dtype=torch.float64)
        at_q = at_k = p.outside
        for b, (nq, nk) in enumerate(zip(p.lens_q, p.lens_k)):
            for h in range(p.heads):
                self.sequence(b, h, at_q, at_k)
            at_q, at_k = at_q + nq, at_k + nk

    def rows(self, t, b, first, n, h):
        return t[first : first + n, h] if self.p.varlen else t[b, first : first + n, h]

    def sequence(self, b, h, at_q, at_k):
        p, leaf = self.p, self.leaf
        pad = p.each("leftpad_k", b, 0)
        nq = p.each("used_q", b, p.lens_q[b])
        nk = max(p.each("used_k", b, p.lens_k[b]) - pad, 0)
        q0, k0 = (at_q, at_k) if p.varlen else (0, pad)
        if nq == 0:
            return
        hk = h // (p.heads // p.kv_heads)
        q = self.rows(leaf["q"], b, q0, nq, h)
        k, v = (self.rows(leaf[x], b, k0, nk, hk) for x in "kv")
        scale = p.number("scale", p.d**-0.5 if p.d else 1.0)
        offset = 0 if p.word.get("top_left") == "1" else nk - nq
        if "q_origin" in p.word or "k_origin" in p.word:
            offset = p.each("q_origin", b, 0) - p.each("k_origin", b, 0)
        i = torch.arange(nq)[:, None] + offset
        j = torch.arange(nk)[None, :]
        left, right = (p.number(f"window_{x}", -1, int) for x in ("left", "right"))
        if p.word.get("causal") == "1":
            right = 0 if right < 0 else min(right, 0)
        seen = torch.ones(nq, nk, dtype=torch.bool)
        seen &= (j >= i - left) if left >= 0 else seen
        seen &= (j <= i + right) if right >= 0 else seen
        s = scale * (q @ k.T)
        a = abs(scale) * (q.abs() @ k.abs().T)
        slope_of_cap = torch.ones_like(s)
        if cap := p.number("softcap", 0.0):
            slope_of_cap = 1 - torch.tanh(s / cap) ** 2
            s = cap * torch.tanh(s / cap)
        if p.mask is not None:
            seen &= part(p.mask, b, h, nq, nk) != 0
        if p.bias is not None:
            bias = part(leaf["bias"], b, h, nq, nk)
            seen &= bias != -INF
            s, a = s + bias.masked_fill(bias == -INF, 0), a + bias.abs().masked_fill(~seen, 0)
        away = (i - j).abs().double()
        if p.slopes is not None:
            alibi = part(leaf["alibi_slopes"], b, h, nq, nk) * away
            s, a = s - alibi, a + alibi.abs()
        s = s.masked_fill(~seen, -INF)
        sink = part(leaf["sinks"], b, h, nq, nk) if p.sinks is not None else None
        total = s if sink is None else torch.cat([s, sink.expand(nq, 1)], 1)
        some = (total.detach() > -INF).any(1)
        # rows that see nothing: away from the graph, whose gradient would be NaN
        lse = torch.logsumexp(torch.where(some[:, None], total, 0), 1) if total.shape[1] else None
        lse = torch.where(some, lse, 0) if lse is not None else torch.zeros(nq).double()
        prob = torch.exp(s - lse[:, None]).masked_fill(~seen, 0)
        z = self.kept(b, h, nq, nk)
        out = (prob * z) @ v
        top = a.detach().masked_fill(~seen, 0).amax(1, keepdim=True) if nk else torch.zeros(nq, 1)
        with torch.no_grad():
            self.rows(self.out, b, q0, nq, h)[:] = out
            self.rows(self.abs, b, q0, nq, h)[:] = (1 + top) * ((prob * z) @ v.abs())
        if p.backward:
            d_lse = self.d_lse(b, h, q0, nq)
            self.loss = self.loss + (out * self.rows(p.d_out.double(), b, q0, nq, h)).sum()
            self.loss = self.loss + (lse * d_lse * some).sum()
            with torch.no_grad():
                at = (b, h, hk, q0, k0, nq, nk)
                # PyTorch's own 1 - tanh^2 loses what f64 has
                d_s = abs(scale) * (1 if p.dtype == torch.float64 else slope_of_cap)
                weight = 1 + top * (1 + 2 / cap if cap else 1) + lse.abs()[:, None]
                share = torch.exp(sink - lse) if sink is not None else None
                self.sizes(at, (q, k, v), prob, z, d_s, weight, d_lse, away, share)

    def kept(self, b, h, nq, nk):
        p = self.p
        if "dropout" not in p.word:
            return torch.ones(nq, nk, dtype=torch.float64)
        drop = float(p.word["dropout"])
        keep = libattn.dropout_mask(
            (len(p.lens_q), p.heads, nq, nk),
            drop,
            seed=int(p.word.get("dropout_seed", 0)),
            offset=int(p.word.get("dropout_offset", 0)),
            q_origin=p.each("q_origin", b, 0),
            k_origin=p.each("k_origin", b, 0),
        )
        return torch.from_numpy(keep[b, h]).double() / (1 - drop)

    def d_lse(self, b, h, q0, nq):
        t = self.p.d_lse
        if t is None:
            return torch.zeros(nq, dtype=torch.float64)
        return (t[h, q0 : q0 + nq] if self.p.varlen else t[b, h, :nq]).double()

    def sizes(self, at, qkv, prob, z, slope, weight, d_lse, away, share):
        """The weighted sizes of the terms of gradients (docs/contract.md, A4)."""
        p = self.p
        b, h, hk, q0, k0, nq, nk = at
        q, k, v = (x.abs() for x in qkv)
        d_out = self.rows(p.d_out.double(), b, q0, nq, h).abs()
        exact = ((prob * z) @ qkv[2]).abs()
        stored = {torch.float16: 2.0**12, torch.bfloat16: 2.0**15}.get(p.dtype, 0.0)
        least = 2.0**-14 if p.dtype == torch.float16 else 0.0
        delta = (d_out * ((prob * z) @ v + stored * exact.clamp(min=least))).sum(1, keepdim=True)
        delta = delta + d_lse.abs()[:, None]
        of_s = prob * (z * (d_out @ v.T) + delta) * weight
        self.rows(self.size["q"], b, q0, nq, h)[:] += (of_s * slope) @ k
        self.rows(self.size["k"], b, k0, nk, hk)[:] += (of_s * slope).T @ q
        self.rows(self.size["v"], b, k0, nk, hk)[:] += (weight * prob * z).T @ d_out
        if p.bias is not None:
            t = self.size["bias"]
            to = t[b if t.shape[0] > 1 else 0, h if t.shape[1] > 1 else 0]
            whole = of_s.sum(0, keepdim=True) if to.shape[0] == 1 else of_s
            whole = whole.sum(1, keepdim=True) if to.shape[1] == 1 else whole
            to[: whole.shape[0], : whole.shape[1]] += whole
        both = {"alibi_slopes": (of_s * away).sum()}
        if share is not None:
            both["sinks"] = (weight[:, 0] * share * delta[:, 0]).sum()
        for name, x in both.items():
            if name in self.size:
                t = self.size[name]
                t[b if t.shape[0] > 1 else 0, h if t.shape[1] > 1 else 0] += x

    def gradients(self):
        if self.loss.requires_grad:
            self.loss.backward()
        return {name: t.grad if t.grad is not None else torch.zeros_like(t)
                for name, t in self.leaf.items()}  # fmt: skip


def excess(wide, got, exact, size, allowed):
    """The largest c of a result, its error beyond half an ulp in u times the size, over the c that
    is allowed. wide: computed in float64, where PyTorch's own error counts too."""
    u = 2.0**-53 if wide else 2.0**-24
    bits = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[got.dtype]
    least = {torch.float64: 2.0**-1074, torch.float32: 2.0**-149, torch.float16: 2.0**-24,
             torch.bfloat16: 2.0**-133}[got.dtype]  # fmt: skip
    ulp = 2.0 ** (torch.frexp(exact)[1].double() - bits)
    x, over = got.double(), exact.abs() >= torch.finfo(got.dtype).max
    error = (x - exact).abs() - 0.5 * torch.clamp(ulp, min=least) - 2.0**-110
    error = torch.where(over & x.isinf(), 0, error)
    error = torch.where(x.isnan() | (x.isinf() & ~over), INF, error)
    c = torch.where(error <= 0, 0, error / (u * size))
    return float(c.max()) / (2 * allowed if wide else allowed) if c.numel() else 0.0


def judge(p):
    """{name: the part of its bound that a result uses}"""
    options = p.options()
    reference = Reference(p)
    plan = libattn.plan(p.q, p.k, p.v, **options)
    loss_i, loss_w = plan.input_loss / 2.0**-24, plan.weight_loss / 2.0**-24
    wide = p.dtype == torch.float64
    out = libattn.attention(p.q, p.k, p.v, **options)
    limit = 4 + CHAIN + max(2 * loss_i, loss_w)
    used = {"out": excess(wide, out, reference.out, reference.abs, limit)}
    if p.backward:
        out, lse = libattn.attention(p.q, p.k, p.v, return_lse=True, **options)
        given = libattn.backward(p.d_out, p.q, p.k, p.v, out, lse, d_lse=p.d_lse, **options)
        exact = reference.gradients()
        for name, got in zip(("q", "k", "v", "bias", "alibi_slopes", "sinks"), given):
            if got is not None:
                want, size = exact[name], reference.size[name]
                if name in ("alibi_slopes", "sinks"):
                    got = folded(got, want.shape)
                used["d_" + name] = excess(
                    wide, got, want, size, 4 + CHAIN + 3 * loss_i + loss_w
                )
    return used


def folded(t, shape):
    """Gradients of slopes and sinks that the problem shares between sequences and heads."""
    for axis in (0, 1):
        t = t.double().sum(axis, keepdim=True).to(t.dtype) if shape[axis] == 1 else t
    return t


def main():
    begin, count, wrong, worst = time.time(), 0, 0, {}
    for line in sys.stdin:
        if not line.strip() or line.startswith("#"):
            continue
        words = [x for x in line.split() if not x.startswith(("page=", "sown=", "o_dtype="))]
        try:
            used = judge(Problem(" ".join(words)))
        except NotImplementedError:
            continue
        count += 1
        for name, x in used.items():
            worst[name] = max(worst.get(name, 0.0), x)
        if any(not x <= 1 for x in used.values()):
            wrong += 1
            print(f"FAIL {line.strip()}\n     {used}", flush=True)
    parts = ", ".join(f"{name} {x:.3g}" for name, x in sorted(worst.items()))
    print(
        f"beside PyTorch {torch.__version__}: {count} problems in {time.time() - begin:.0f} s, "
        f"{wrong} wrong; worst part of a bound: {parts}"
    )
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
