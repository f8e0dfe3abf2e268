"""PyTorch's operators, streams, graphs and other arrays on a CUDA GPU."""

import threading

import pytest
from cuda_rows import ERROR, GRADIENT_ERROR, close, exact, leaves, rows

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn import _arrays  # noqa: E402
from libattn.torch import attention, scaled_dot_product_attention  # noqa: E402


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
