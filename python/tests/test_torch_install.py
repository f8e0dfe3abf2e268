"""libattn.torch.install(): programs for PyTorch, computed by libattn without a changed line."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import libattn.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn.torch import install  # noqa: E402


def close(own, other):
    torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-11)


def problem(*shape):
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def test_calls_go_to_libattn_and_come_back():
    arrays = problem(2, 4, 33, 8)
    expected = F.scaled_dot_product_attention(*arrays, is_causal=True)
    with install() as installed:
        own = F.scaled_dot_product_attention(*arrays, is_causal=True)
        assert sum(installed.calls.values()) == 1
        assert install() is installed
    after = F.scaled_dot_product_attention(*arrays, is_causal=True)
    assert sum(installed.calls.values()) == 1
    assert torch.equal(after, expected)
    close(own, expected)
    d_out = torch.randn_like(own)
    for first, second in zip(
        torch.autograd.grad(own, arrays, d_out),
        torch.autograd.grad(expected, arrays, d_out),
        strict=True,
    ):
        close(first, second)


def ordered(order, *shape):
    """An array whose axes lie in memory in this order, the fastest last."""
    x = torch.randn([shape[axis] for axis in order], dtype=torch.float64)
    return x.permute([order.index(axis) for axis in range(len(shape))])


ORDERS = [(*order, 3) for order in itertools.permutations(range(3))] + [(0, 1, 3, 2)]
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": torch.rand(5, 7) < 0.8},
    "bias": {"attn_mask": torch.randn(2, 1, 1, 7, dtype=torch.float64)},
    "three axes of bias": {"attn_mask": torch.randn(4, 5, 7, dtype=torch.float64)},
    "trained bias": {"attn_mask": torch.randn(5, 7, dtype=torch.float64, requires_grad=True)},
    "groups": {"enable_gqa": True},
    "dropout": {"dropout_p": 0.5},
    "value dim": {},
    "one KV head": {},
    "keys by columns": {},
}


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_memory_is_pytorchs(case, order, records):
    """Programs view results without a copy where PyTorch lets them."""
    heads = {"groups": 2, "one KV head": 1}.get(case, 4)
    query = ordered(order, 2, 4, 5, 8)
    key, value = (ordered((0, 2, 1, 3), 2, heads, 7, 8) for _ in range(2))
    if case == "value dim":
        value = value[..., :3]
    if case == "keys by columns":
        key = ordered((0, 1, 3, 2), 2, 4, 7, 8)
    arrays = [x.requires_grad_(records) for x in (query, key, value)]
    expected = F.scaled_dot_product_attention(*arrays, **CASES[case])
    with install() as installed:
        own = F.scaled_dot_product_attention(*arrays, **CASES[case])
    assert own.stride() == expected.stride()
    assert {who for who, _ in installed.calls} == {"libattn"}
    if case != "dropout":
        close(own, expected)
    if own.requires_grad:
        own.sum().backward()


def test_memory_of_broadcast_queries():
    shapes = (2, 4, 5, 8), (2, 4, 1, 8), (2, 1, 5, 8), (1, 4, 5, 8), (1, 4, 1, 8), (1, 1, 1, 8)
    key, value = (torch.randn(2, 4, 7, 8) for _ in range(2))
    for shape, order in itertools.product(shapes, ORDERS[:-1]):
        query = ordered(order, *shape).float().expand(2, 4, 5, 8)
        expected = F.scaled_dot_product_attention(query, key, value)
        with install():
            assert F.scaled_dot_product_attention(query, key, value).stride() == expected.stride()


@pytest.mark.parametrize("mask", [torch.randn(9, 9, dtype=torch.float64), torch.rand(9, 9) < 0.8])
def test_mask_beside_is_causal(mask):
    """Both count where PyTorch's kernel takes both; elsewhere its error stays."""
    arrays = problem(2, 4, 9, 8)

    def run(**options):
        out = F.scaled_dot_product_attention(*arrays, mask, is_causal=True, **options)
        return out, *torch.autograd.grad(out.square().sum(), arrays)

    def words(**options):
        with pytest.raises(RuntimeError) as caught:
            run(**options)
        return str(caught.value)

    try:
        expected = run()
    except RuntimeError as refusal:  # from PyTorch 2.14 on
        expected = str(refusal)
    refused = words(dropout_p=0.5)
    with install() as installed:
        if isinstance(expected, str):
            assert words() == expected
        else:
            for own, other in zip(run(), expected, strict=True):
                close(own, other)
            assert {who for who, _ in installed.calls} == {"libattn"}
        assert words(dropout_p=0.5) == refused


@pytest.mark.parametrize("case", ["mask gradient", "value dim", "five axes", "three axes"])
def test_what_pytorch_leaves_to_math(case):
    query, key, value = problem(2, 4, 9, 8)
    mask = None
    if case == "mask gradient":
        mask = torch.randn(4, 9, 9, dtype=torch.float64, requires_grad=True)
    if case == "value dim":
        value = value[..., :3]
    if case == "five axes":
        query, key, value = (x.expand(2, 2, 4, 9, 8) for x in (query, key, value))
    if case == "three axes":
        query, key, value = query[0], key[0], value[0]
    expected = F.scaled_dot_product_attention(query, key, value, mask)
    with install() as installed:
        own = F.scaled_dot_product_attention(query, key, value, mask)
        close(own, expected)
        if mask is not None:
            close(*(torch.autograd.grad(x.sum(), mask)[0] for x in (own, expected)))
    assert set(installed.calls) == {("libattn", "scaled_dot_product_attention")}


def test_dropout():
    query, key, value = problem(2, 4, 9, 8)
    with install() as installed:
        torch.manual_seed(1)
        first = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        torch.manual_seed(1)
        assert torch.equal(first, F.scaled_dot_product_attention(query, key, value, dropout_p=0.5))
    assert installed.calls["libattn", "scaled_dot_product_attention"] == 2


def test_what_libattn_cannot_do_goes_to_pytorch(monkeypatch):
    arrays = problem(2, 4, 9, 8)
    expected = F.scaled_dot_product_attention(*arrays)

    def refuse(*_):
        raise NotImplementedError("no kernel for this")

    monkeypatch.setattr(libattn.torch._functions, "dot_product", refuse)
    with install() as installed:
        close(F.scaled_dot_product_attention(*arrays), expected)
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(*(x.long() for x in arrays))
    assert installed.calls["PyTorch", "no kernel for this"] == 1
    assert installed.calls["PyTorch", "type torch.int64"] == 1
    assert "no kernel for this" in installed.report()


DERIVATIVES = {
    "grad": lambda f: torch.func.grad(f, (0, 1, 2)),
    "vmap": lambda f: torch.func.vmap(torch.func.grad(f, (0, 1, 2))),
    "second": lambda f: torch.func.grad(lambda *x: torch.func.grad(f)(*x).sum()),
    "forward": lambda f: lambda *x: torch.func.jvp(f, x, x)[1],
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_by_torch_func(name):
    """First ones by libattn's kernels; those that it lacks by PyTorch's stored scores."""
    arrays = [x.detach() for x in problem(3, 2, 4, 9, 8)]
    arrays = arrays if name == "vmap" else [x[0] for x in arrays]
    derivative = DERIVATIVES[name](
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True).square().sum()
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = derivative(*arrays)
    with install() as installed:
        own = derivative(*arrays)
    for first, second in zip(
        own if isinstance(own, tuple) else (own,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        close(first, second)
    first = name in ("grad", "vmap")
    assert {who for who, _ in installed.calls} == {"libattn" if first else "PyTorch"}
    assert first or "a derivative by torch.func" in installed.report()


@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True).double().train(training)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 10, 32, dtype=torch.float64, requires_grad=True)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True

    def run():
        out = module(x, x, x, key_padding_mask=padding, need_weights=False)[0] + layer(x)
        return out, *torch.autograd.grad(out.square().sum(), (x, *module.parameters()))

    expected = run()
    with install() as installed:
        for own, other in zip(run(), expected, strict=True):
            close(own, other)
    assert installed.calls["libattn", "scaled_dot_product_attention"] == 2


def test_programs_that_name_pytorchs_kernel():
    """The operator that compiled and exported programs hold, and its backward pass."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    mask = torch.randn(2, 1, 33, 40)
    arrays = [torch.randn(2, rows, 4, 16).transpose(1, 2) for rows in (33, 40, 40)]
    d_out = torch.randn(2, 4, 33, 16)
    results = []

    def run(causal, mask):
        out, lse = flash(*arrays, 0.0, causal, attn_mask=mask, scale=0.2)
        grads = back(d_out, *arrays, out, lse, 0.0, causal, attn_mask=mask, scale=0.2)
        return out, lse, *grads

    for causal, given in ((False, None), (True, None), (False, mask)):
        expected = run(causal, given)
        with install() as installed:
            results = run(causal, given)
        assert len(installed.calls) == 2
        for own, other in zip(results, expected, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
            assert own.stride() == other.stride()


def test_compile_under_install():
    arrays = problem(2, 4, 16, 8)

    def model(query, key, value):
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        turned = F.scaled_dot_product_attention(query.view(2, 16, 4, 8).transpose(1, 2), key, value)
        return out.view(8, 16, 8).square().sum() + turned.transpose(1, 2).view(2, 16, 32).sum()

    expected = torch.autograd.grad(model(*arrays), arrays)
    with install() as installed:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for own, other in zip(
            torch.autograd.grad(compiled(*arrays), arrays), expected, strict=True
        ):
            close(own, other)
    assert any(who == "libattn" for who, _ in installed.calls)
