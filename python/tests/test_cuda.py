"""Tensors of a CUDA GPU; needs a package with GPU kernels and such a GPU, else it is skipped."""

import os
import threading

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, or a PyTorch without CUDA", allow_module_level=True)

import libattn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn import _arrays  # noqa: E402
from libattn.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from libattn.flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402
from libattn.torch import attention, scaled_dot_product_attention  # noqa: E402

try:
    libattn.Context(device="cuda")
except NotImplementedError as reason:
    pytest.skip(f"libattn has no GPU here: {reason}", allow_module_level=True)


# Errors allowed, as parts of the largest value: of results, and of gradients.
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
GRADIENT_ERROR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def exact(query, key, value, **options):
    wide = (x.double() for x in (query, key, value))
    return F.scaled_dot_product_attention(*wide, **options)


def close(found, expected, error):
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() <= error * expected.abs().max()


def leaves(*arrays):
    return [x.detach().requires_grad_() for x in arrays]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_same_operator(dtype, causal):
    query, key, value = (rows(2, 4, 300, 64, dtype=dtype) for _ in range(3))
    out = scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert out.device == query.device and out.dtype == dtype
    close(out, exact(query, key, value, is_causal=causal), ERROR[dtype])
    torch.library.opcheck(
        torch.ops.libattn.forward,
        (query, key, value, *libattn.torch._ops.DEFAULTS.values(), False),
        test_utils=("test_schema", "test_faketensor"),
    )


OPTIONS = ["plain", "causal", "gqa", "mask", "bias", "wide_values", "leading_axes"]


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("option", OPTIONS)
def test_gradients(dtype, option):
    """Of q, k, v and the bias, against PyTorch's math in float64."""
    torch.manual_seed(0)
    shape = (2, 3, 4, 130, 64) if option == "leading_axes" else (2, 4, 130, 64)
    query, d_out = rows(*shape, dtype=dtype), rows(*shape, dtype=dtype)
    key, value = (rows(2, 2 if option == "gqa" else 4, 130, 64, dtype=dtype) for _ in range(2))
    options = {"is_causal": option == "causal", "enable_gqa": option == "gqa"}
    if option == "leading_axes":
        key, value = (rows(2, 3, 4, 130, 64, dtype=dtype) for _ in range(2))
    if option == "wide_values":
        value, d_out = rows(2, 4, 130, 80, dtype=dtype), rows(2, 4, 130, 80, dtype=dtype)
    if option == "mask":
        options["attn_mask"] = torch.rand(130, 130, device="cuda") < 0.7
    inputs = leaves(query, key, value)
    wide = leaves(*(x.double() for x in inputs))
    if option == "bias":
        bias = rows(4, 130, 130, dtype=dtype)
        inputs, wide = inputs + leaves(bias), wide + leaves(bias.double())
    out = scaled_dot_product_attention(*inputs, **options)
    expected = F.scaled_dot_product_attention(*wide, **options)
    close(out, expected, ERROR[dtype])
    found = torch.autograd.grad(out, inputs, d_out)
    for gradient, like in zip(
        found, torch.autograd.grad(expected, wide, d_out.double()), strict=True
    ):
        close(gradient, like, GRADIENT_ERROR[dtype])


def test_gradients_of_everything_else():
    """Window, softcap, slopes, sinks and the LSE: as on the CPU in float64."""
    torch.manual_seed(0)
    q, k, v = (rows(2, 100, heads, 32, dtype=torch.float32) for heads in (4, 2, 2))
    slopes, sinks = (torch.rand(4, device="cuda") for _ in range(2))
    d_out, d_lse = rows(2, 100, 4, 32, dtype=torch.float32), rows(2, 4, 100, dtype=torch.float32)
    results = []
    for move in (lambda x: x, lambda x: x.double().cpu()):
        inputs = leaves(*(move(x) for x in (q, k, v, slopes, sinks)))
        found = attention(
            *inputs[:3],
            alibi_slopes=inputs[3],
            sinks=inputs[4],
            causal=True,
            window_left=40,
            softcap=4.0,
            return_lse=True,
        )
        results.append([*found, *torch.autograd.grad(found, inputs, (move(d_out), move(d_lse)))])
    for found, expected in zip(*results, strict=True):
        close(found.cpu(), expected, 1e-5)


@pytest.mark.parametrize("dtype", ERROR)
def test_dropout_is_the_same_on_both_devices(dtype):
    q, k, v = (rows(2, 4, 70, 64, dtype=dtype) for _ in range(3))
    results = []
    for move in (lambda x: x, lambda x: x.double().cpu()):
        torch.manual_seed(5)
        inputs = leaves(*(move(x) for x in (q, k, v)))
        out = scaled_dot_product_attention(*inputs, dropout_p=0.3)
        results.append([out, *torch.autograd.grad(out, inputs, move(v))])
    for found, expected in zip(*results, strict=True):
        close(found.cpu(), expected, GRADIENT_ERROR[dtype])


def test_graph_capture_and_streams():
    query, key, value = (rows(1, 8, 512, 64) for _ in range(3))
    expected = scaled_dot_product_attention(query, key, value, is_causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(other, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = scaled_dot_product_attention(query, key, value, is_causal=True)
    query.copy_(rows(1, 8, 512, 64))
    graph.replay()
    fresh = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(captured, fresh) and not torch.equal(captured, expected)


def test_graph_of_a_training_step():
    inputs = leaves(*(rows(1, 8, 512, 64) for _ in range(3)))
    d_out = rows(1, 8, 512, 64)

    def step():
        out = scaled_dot_product_attention(*inputs, is_causal=True)
        return torch.autograd.grad(out, inputs, d_out)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in inputs:
            x.copy_(rows(1, 8, 512, 64))
    graph.replay()
    for found, expected in zip(captured, step(), strict=True):
        assert torch.equal(found, expected)


def test_two_threads_on_streams_of_their_own():
    """Each training, with memory that the other may not get."""
    inputs = [leaves(*(rows(2, 8, n, 64) for _ in range(3))) for n in (700, 1100)]
    results = [[], []]

    def step(x):
        out = scaled_dot_product_attention(*x, is_causal=True)
        return [out, *torch.autograd.grad(out, x, torch.ones_like(out))]

    expected = [step(x) for x in inputs]
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found = step(inputs[i])
                same = [torch.equal(x, y) for x, y in zip(found, expected[i], strict=True)]
                results[i].append(all(same))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[True] * 20] * 2


def test_the_stream_of_a_package_without_an_exchange_table():
    """_arrays.stream tells it; a call on another stream would read rows before they are there."""
    query, later = rows(1, 64, 2, 64), rows(1, 64, 2, 64)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        assert _arrays.stream(query) == stream.cuda_stream
        torch.cuda._sleep(10**8)
        query.copy_(later)
        out = libattn.attention(query, query, query)
    torch.cuda.synchronize()
    assert torch.equal(out, libattn.attention(later, later, later))
    cupy = pytest.importorskip("cupy")
    array, ones = cupy.zeros((1, 64, 2, 64), cupy.float32), cupy.ones((1, 64, 2, 64), cupy.float32)
    torch.cuda.synchronize()
    with cupy.cuda.ExternalStream(stream.cuda_stream), torch.cuda.stream(stream):
        assert _arrays.stream(array) == stream.cuda_stream
        torch.cuda._sleep(10**8)
        array[...] = ones
        out = libattn.attention(array, array, array)
    torch.cuda.synchronize()
    assert (out == 1).all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    """Forward and backward, without a graph break."""
    if backend == "inductor":
        pytest.importorskip("triton")

    def function(*x):
        return (scaled_dot_product_attention(*x, is_causal=True) * 2).sum()

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    inputs = leaves(*(rows(1, 8, 256, 64) for _ in range(3)))
    results = [torch.autograd.grad(run(*inputs), inputs) for run in (compiled, function)]
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
    plain = [x.detach() for x in inputs]
    torch.testing.assert_close(compiled(*plain), function(*plain))


def test_flash_attn():
    """flash-attn's usage: the functions of its README, in training."""
    qkv = rows(2, 128, 3, 8, 64).requires_grad_()
    out = flash_attn_qkvpacked_func(
        qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        alibi_slopes=None, deterministic=False,
    )  # fmt: skip
    wide = qkv.detach().double().requires_grad_()
    expected = exact(*(x.transpose(1, 2) for x in wide.unbind(2))).transpose(1, 2)
    close(out, expected, ERROR[torch.bfloat16])
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, qkv, d_out)[0]
    close(found, torch.autograd.grad(expected, wide, d_out.double())[0], 3e-2)
    q, k, v = leaves(rows(2, 128, 8, 64), rows(2, 256, 2, 64), rows(2, 256, 2, 64))
    slopes = torch.rand(8, device="cuda")
    for options in (
        {"causal": True},
        {"causal": True, "window_size": (64, 0)},
        {"softcap": 15.0},
        {"causal": True, "alibi_slopes": slopes},
    ):
        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True, **options)
        options = {n: x.cpu() if n == "alibi_slopes" else x for n, x in options.items()}
        wide = leaves(*(x.cpu().double() for x in (q, k, v)))
        expected, expected_lse, _ = flash_attn_func(*wide, return_attn_probs=True, **options)
        close(out.cpu(), expected, ERROR[torch.bfloat16])
        torch.testing.assert_close(lse.cpu().double(), expected_lse, rtol=1e-3, atol=1e-3)
        d_out = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), d_out)
        for found, like in zip(
            grads, torch.autograd.grad(expected, wide, d_out.cpu().double()), strict=True
        ):
            close(found.cpu(), like, GRADIENT_ERROR[torch.bfloat16])


def test_flash_attn_varlen():
    """Padded sequences, packed and back, in training; then over pages."""
    x = rows(3, 90, 3, 8, 64).requires_grad_()
    mask = torch.arange(90, device="cuda") < torch.tensor([[40], [90], [1]], device="cuda")
    packed, indices, ends, longest, _ = unpad_input(x, mask)
    out = flash_attn_varlen_qkvpacked_func(packed, ends, longest, causal=True)
    padded = pad_input(out, indices, 3, 90)
    found = torch.autograd.grad(padded.float().square().sum(), x)[0]
    for b, length in enumerate((40, 90, 1)):
        own = x.detach()[b, :length].double().requires_grad_()
        expected = exact(*(y.transpose(0, 1) for y in own.unbind(1)), is_causal=True)
        expected = expected.transpose(0, 1)
        close(padded[b, :length], expected, ERROR[torch.bfloat16])
        gradient = torch.autograd.grad(expected.square().sum(), own)[0]
        close(found[b, :length], gradient, GRADIENT_ERROR[torch.bfloat16])
        assert not found[b, length:].any()
    packed = packed.detach()
    pools = torch.zeros(2, 8, 32, 8, 64, dtype=torch.bfloat16, device="cuda")
    pages = torch.tensor([[3, 0, 7], [1, 4, 2], [5, 0, 0]], dtype=torch.int32, device="cuda")
    for pool, of_all in zip(pools, packed.unbind(1)[1:], strict=True):
        for b in range(3):
            for n, row in enumerate(of_all[ends[b] : ends[b + 1]]):
                pool[pages[b, n // 32], n % 32] = row
    paged = flash_attn_varlen_func(
        packed[:, 0], *pools, ends, ends, longest, longest, causal=True, block_table=pages
    )
    close(paged, out, ERROR[torch.bfloat16])


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("place", ["plain", "slots", "pages"])
@pytest.mark.parametrize("leftpad", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_kvcache(dtype, place, leftpad, causal, queries):
    """As on the CPU: results, and the caches afterwards."""
    torch.manual_seed(0)
    new, heads = 3 if queries > 1 else 1, 2
    used = torch.tensor([17, 90], dtype=torch.int32, device="cuda")
    slots = torch.tensor([3, 1], dtype=torch.int32, device="cuda")
    table = torch.tensor([[3, 0, 7], [1, 4, 2]], dtype=torch.int32, device="cuda")
    pool = {"plain": (2, 96), "slots": (5, 96), "pages": (12, 32)}[place]
    caches = [rows(*pool, heads, 64, dtype=dtype) for _ in range(2)]
    angles = torch.randn(96, 16, device="cuda")
    arguments = {
        "q": rows(2, queries, 8, 64, dtype=dtype),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "k": rows(2, new, heads, 64, dtype=dtype),
        "v": rows(2, new, heads, 64, dtype=dtype),
        "rotary_cos": angles.cos(),
        "rotary_sin": angles.sin(),
        "cache_seqlens": used,
        "cache_batch_idx": slots if place == "slots" else None,
        "cache_leftpad": torch.tensor([2, 5], dtype=torch.int32, device="cuda")
        if leftpad
        else None,
        "block_table": table if place == "pages" else None,
    }
    options = {"causal": causal, "rotary_interleaved": leftpad, "return_softmax_lse": True}
    on_cpu = {name: None if x is None else x.cpu() for name, x in arguments.items()}
    out, lse = flash_attn_with_kvcache(**arguments, **options)
    expected, expected_lse = flash_attn_with_kvcache(**on_cpu, **options)
    close(out.cpu(), expected, 2 * ERROR[dtype])
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=1e-3, atol=1e-3)
    for cache, name in zip(caches, ("k_cache", "v_cache"), strict=True):
        torch.testing.assert_close(cache.cpu(), on_cpu[name])


def test_kvcache_in_a_graph():
    """Decode by replays: a graph reads the lengths anew each time."""
    cache = rows(2, 2, 64, 2, 64)
    used = torch.tensor([0, 9], dtype=torch.int32, device="cuda")
    q, k, v = rows(2, 1, 8, 64), rows(2, 1, 2, 64), rows(2, 1, 2, 64)
    copies, lengths = cache.clone(), used.clone()
    flash_attn_with_kvcache(q, *copies.clone(), k, v, cache_seqlens=lengths, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn_with_kvcache(q, *copies, k, v, cache_seqlens=lengths, causal=True)
        lengths.add_(1)
    for _ in range(20):
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=used, causal=True)
        used.add_(1)
        assert torch.equal(out, expected)
    assert torch.equal(copies, cache)


# ---- Caches of pages -----------------------------------------------------------------------------


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


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q = rows(2, 64, 4, 32, dtype=torch.float32)
    array = cupy.asarray(q)
    out, lse = libattn.attention(array, array, array, causal=True, return_lse=True)
    expected = libattn.attention(q, q, q, causal=True, return_lse=True)
    assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    assert torch.equal(torch.as_tensor(out, device="cuda"), expected[0])
    assert torch.equal(torch.as_tensor(lse, device="cuda"), expected[1])


def test_out_f32():
    query = rows(1, 16, 2, 64)
    exact = torch.empty_like(query, dtype=torch.float32)
    out = libattn.attention(query, query, query, out_f32=exact)
    assert torch.equal(out, exact.to(query.dtype))


def test_what_gpus_lack_is_said():
    query = rows(1, 16, 2, 64)
    with pytest.raises(ValueError, match="different devices"):
        libattn.attention(query, query.cpu(), query)


def test_merge_of_halves():
    query, key, value = (rows(2, 300, 4, 64, dtype=torch.float32) for _ in range(3))
    halves = [
        libattn.attention(query, key[:, half], value[:, half], return_lse=True)
        for half in (slice(0, 150), slice(150, 300))
    ]
    out, lse = libattn.merge(*zip(*halves, strict=True))
    whole, whole_lse = libattn.attention(query, key, value, return_lse=True)
    # A1 of both calls and the merge, c = 4 each
    assert (out - whole).abs().max() <= 12 * 2**-24 * value.abs().max()
    assert (lse - whole_lse).abs().max() <= 24 * 2**-24 * (1 + lse.abs().max())
    grads = libattn.merge_backward(*zip(*halves, strict=True), torch.ones_like(out))
    weights = [torch.exp(part.double() - lse.double()) for _, part in halves]
    for (d_out, _), weight in zip(grads, weights, strict=True):
        wide = weight.transpose(1, 2)[..., None].expand_as(d_out)
        assert (d_out - wide).abs().max() <= 64 * 2**-24
    with pytest.raises(ValueError, match="one device"):
        libattn.merge([out, out.cpu()], [lse, lse])
