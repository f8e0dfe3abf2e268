"""libattn.torch in PyTorch's machinery: operator checks, torch.compile, export and vmap."""

import pytest

torch = pytest.importorskip("torch")

import libattn.torch  # noqa: E402
from libattn.torch import attention, scaled_dot_product_attention  # noqa: E402
from torch_rows import LENGTHS, rows  # noqa: E402

OP = torch.ops.libattn.forward


def operands(**options):
    """Arguments of the operator."""
    torch.manual_seed(2)
    q, k, v = rows(2, 4, 9, 5), rows(2, 2, 11, 5), rows(2, 2, 11, 3)
    defaults = {**libattn.torch._ops.DEFAULTS, "heads_first": True}
    return (q, k, v, *{**defaults, **options}.values(), False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": rows(1, 4, 9, 1), "causal": True, "softcap": 2.0},
        {"mask": torch.ones(9, 11, dtype=torch.bool), "sinks": rows(4)},
        {"mask_bits": torch.full((9, 2), 0xB7, dtype=torch.uint8)},
        {"dropout_p": 0.3, "dropout_seed": torch.tensor([5]), "alibi_slopes": rows(2, 4)},
    ],
)
def test_opcheck(options):
    arguments = operands(**options)
    torch.library.opcheck(OP, arguments)
    with torch.no_grad():
        plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
        half = [x.to(torch.bfloat16) if i < 3 else x for i, x in enumerate(plain)]
        torch.library.opcheck(OP, (*half[:-1], True))
        out, lse, _ = OP(*plain)
    wanted = [True, True, True]
    wanted += [options.get(name) is not None for name in ("bias", "alibi_slopes", "sinks")]
    torch.library.opcheck(
        torch.ops.libattn.backward,
        (torch.randn_like(out), None, out, lse, *plain[:-1], wanted),
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    query, key, value = (rows(2, 4, 16, 8) for _ in range(3))
    bias = rows(1, 4, 16, 16)

    def model(query, key, value, bias):
        out = scaled_dot_product_attention(query * 2, key, value, bias)
        more, lse = attention(
            query, key, value, layout="bhsd", causal=True, window_left=5, return_lse=True
        )
        return (out * more).sum() + lse.sum()

    expected = torch.autograd.grad(model(query, key, value, bias), (query, key, value, bias))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    grads = torch.autograd.grad(compiled(query, key, value, bias), (query, key, value, bias))
    for own, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(own, other)


def test_compile_with_dropout_and_export():
    class Model(torch.nn.Module):
        def forward(self, query, key, value):
            return scaled_dot_product_attention(query, key, value, dropout_p=0.5)

    arrays = [rows(2, 4, 16, 8, grad=False) for _ in range(3)]
    torch.compile(Model(), backend="aot_eager", fullgraph=True)(*arrays)
    program = torch.export.export(Model(), tuple(arrays))
    assert "libattn.forward" in str(program.graph)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, None, 2), (None, 0, None)])
def test_vmap(in_dims):
    shape = (2, 4, 7, 5)
    arrays = []
    for dim in in_dims:
        x = torch.randn(3, *shape, dtype=torch.float64)
        arrays.append(x[0] if dim is None else x.movedim(0, dim))
    bias = torch.randn(4, 7, 7, dtype=torch.float64)

    def loss(query, key, value, bias):
        return scaled_dot_product_attention(query, key, value, bias).square().sum()

    def one_by_one(function):
        results = []
        for i in range(3):
            own = [x if d is None else x.select(d, i) for x, d in zip(arrays, in_dims, strict=True)]
            results.append(function(*own, bias))
        return results

    places = (0, 1, 2, 3)
    for function in (loss, torch.func.grad(loss, places)):
        mapped = torch.vmap(function, (*in_dims, None))(*arrays, bias)
        expected = one_by_one(function)
        if isinstance(mapped, tuple):
            expected = [torch.stack(parts) for parts in zip(*expected, strict=True)]
        else:
            mapped, expected = (mapped,), [torch.stack(expected)]
        for own, other in zip(mapped, expected, strict=True):
            torch.testing.assert_close(own, other)


def test_vmap_of_varlen_and_dropout():
    q, k, v = (torch.randn(3, 9, 4, 5) for _ in range(3))

    def call(q, k, v):
        return attention(q, k, v, cu_seqlens_q=LENGTHS, cu_seqlens_k=LENGTHS)

    mapped = torch.vmap(call)(q, k, v)
    assert torch.equal(mapped, torch.stack([call(*x) for x in zip(q, k, v, strict=True)]))

    def dropped(q):
        return scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    same = torch.zeros(3, 4, 9, 5) + torch.randn(4, 9, 5)
    different = torch.vmap(dropped, randomness="different")(same)
    assert not torch.equal(different[0], different[1])
    equal = torch.vmap(dropped, randomness="same")(same)
    assert torch.equal(equal[0], equal[1])
    with pytest.raises(RuntimeError, match="random"):
        torch.vmap(dropped)(same)
