"""Caches of pages, codes, and models of transformers that generate, on a CUDA GPU."""

import os

import pytest
from cuda_rows import close, rows

torch = pytest.importorskip("torch")
os.environ["HF_HUB_OFFLINE"] = "1"

import libattn  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def pools(kind):
    """Keywords of a Cache whose pools lie on the GPU: 24 pages of 16 rows of 2 heads."""
    zeros = torch.zeros(24, 16, 2, 64).cuda()
    if kind in ("float32", "bfloat16"):
        return {n: zeros.to(getattr(torch, kind), copy=True) for n in "kv"}
    made = {}
    for name in "kv":
        parts = libattn.quantize(zeros, kind)
        made |= {name: parts.codes, name + "_scale": parts.scale}
    return made


@pytest.mark.parametrize("kind", ["int8", "int4", "float8_e4m3fn", "float8_e5m2"])
def test_codes(kind):
    """Codes and values have the CPU's bits."""
    x = torch.randn(3, 40, 2, 64, dtype=torch.bfloat16)
    options = {"groups": 2, "shift": kind.startswith("int")}
    expected, found = (libattn.quantize(t, kind, **options) for t in (x, x.cuda()))
    values = libattn.dequantize(*found, dtype="bfloat16")
    assert values.is_cuda and torch.equal(
        values.cpu(), libattn.dequantize(*expected, dtype="bfloat16")
    )
    for own, other in zip(found, expected, strict=True):
        if own is not None:
            own = own.cpu()
            assert torch.equal(own.view(torch.uint8), other.view(torch.uint8))


def test_dropout_mask():
    shape, options = (2, 3, 50, 70), {"seed": 5, "q_origin": 9, "k_origin": 3}
    keep = libattn.dropout_mask(
        shape, 0.4, out=torch.empty(shape, dtype=torch.bool, device="cuda"), **options
    )
    assert (keep.cpu().numpy() == libattn.dropout_mask(shape, 0.4, **options)).all()


def keys_of(view, name, b):
    """The keys or values of a sequence in float64, by its table."""
    pages = view["block_table"][b][: -(-int(view["seqused_k"][b]) // 16)].long().cpu()
    pool, scale = view[name], view.get(name + "_scale")
    if scale is not None:
        pool = libattn.dequantize(pool, scale)
    return pool.cpu()[pages].flatten(0, 1)[: int(view["seqused_k"][b])].double()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4", "float8_e4m3fn"])
def test_cache(kind):
    """A prompt, two answers that share its pages, against float64 over what the pools hold."""
    torch.manual_seed(0)
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    cache = libattn.Cache(**pools(kind), sequences=8, length=128)
    error = 2e-2 if kind != "float32" else 1e-5

    def step(sequences, count):
        q, k, v = (rows(len(sequences), count, heads, 64, dtype=dtype) for heads in (8, 2, 2))
        for sequence in sequences:
            cache.extend(sequence, count)
        view = cache.view(sequences)
        out = libattn.attention(q, k_new=k, v_new=v, causal=True, **view)
        for b in range(len(sequences)):
            keys, values = (keys_of(view, name, b).transpose(0, 1) for name in "kv")
            size = keys.shape[1]
            seen = torch.ones(count, size, dtype=torch.bool).tril(size - count)
            expected = F.scaled_dot_product_attention(
                q[b].transpose(0, 1).cpu().double(), keys, values, attn_mask=seen, enable_gqa=True
            )
            close(out[b].transpose(0, 1).cpu(), expected, error)
            rest = {"int4": 0.2, "float8_e4m3fn": 0.07, "int8": 1e-2}.get(kind, 0)
            close(keys[:, -count:].transpose(0, 1), k[b].cpu().double(), rest)

    prompt = cache.alloc()
    step([prompt], 21)
    answers = [cache.fork(prompt) for _ in range(2)]
    for _ in range(3):
        step(answers, 1)
    step([prompt, *answers], 4)
    assert [cache.length(x) for x in (prompt, *answers)] == [25, 28, 28]
    for x in (prompt, *answers):
        cache.free(x)
    assert cache.free_pages == 24


# ---- Models of transformers ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_models(name, cache):
    """A left-padded batch, token for token as eager attention; gradients within 1e-5."""
    transformers = pytest.importorskip("transformers")
    import test_models as models

    kind, extra = models.DECODERS[name]
    pair = models.pair(getattr(transformers, kind)(**models.SIZE, **extra))
    tokens, mask = (x.cuda() for x in models.prompts())
    options = {"cache_implementation": "static"} if cache == "static" else {}
    pair = [model.cuda() for model in pair]
    found = [
        model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=16,
            do_sample=False,
            disable_compile=True,
            **options,
        )
        for model in pair
    ]
    assert torch.equal(*found)
    if cache == "dynamic":
        before = F.pad(mask, (1, 0))[:, :-1]
        labels = tokens.masked_fill(mask * before == 0, -100)
        for model in pair:
            model(tokens, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        models.compare_gradients(*pair)
