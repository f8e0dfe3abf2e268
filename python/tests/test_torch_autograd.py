"""Calls that autograd records, with the operator and around it; derivatives that are refused."""

import pytest

torch = pytest.importorskip("torch")

import libattn.torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


class Seen(TorchDispatchMode):
    """A mode, which sees operators alone."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.add(operator.name())
        return operator(*args, **(kwargs or {}))


def inputs(dtype=torch.float32):
    torch.manual_seed(19)
    shapes = (2, 4, 33, 16), (2, 2, 41, 16), (2, 2, 41, 24)
    rows = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    return [*rows, torch.randn(1, 4, 33, 41).to(dtype).requires_grad_()]


OPTIONS = {"layout": "bhsd", "causal": True, "dropout_p": 0.2, "return_lse": True}


def results(leaves, run=lambda function, *rows: function(*rows)):
    """Output, LSE and the gradients of a loss of both."""

    def attend(q, k, v, bias):
        sinks = torch.ones(4, dtype=torch.float32)
        seed = torch.Generator().manual_seed(3)
        return libattn.torch.attention(q, k, v, bias=bias, sinks=sinks, generator=seed, **OPTIONS)

    out, lse = run(attend, *leaves)
    loss = (out.float() * out.detach().float().cos()).sum() + lse.sin().sum()
    return [out, lse, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_operator_and_the_way_around_it_have_equal_bits(dtype):
    leaves = inputs(dtype)
    around = results(leaves)
    with Seen() as seen:
        operator = results(leaves)
    assert {"libattn::forward", "libattn::backward"} <= seen.names
    for one, other in zip(around, operator, strict=True):
        assert one.equal(other) and one.stride() == other.stride()


def test_checkpoint():
    leaves = inputs()
    again = results(leaves, lambda *call: checkpoint(*call, use_reentrant=False))
    assert all(one.equal(other) for one, other in zip(again, results(leaves), strict=True))


def attend(leaves):
    q, k, v, bias = leaves
    return libattn.torch.attention(q, k, v, bias=bias, layout="bhsd")


def test_some_gradients():
    q, k, v, bias = inputs()
    out = attend((q.detach(), k, v.detach(), bias))
    whole = torch.autograd.grad(attend((q, k, v, bias)).sum(), (k, bias))
    some = torch.autograd.grad(out.sum(), (k, bias))
    assert some[0].equal(whole[0]) and some[1].equal(whole[1])


def test_second_derivatives_are_refused():
    leaves = inputs(torch.float64)
    first = torch.autograd.grad(attend(leaves).square().sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="double backward"):
        first[0].sum().backward()


def test_tangents_are_refused():
    """Forward-mode derivatives were lost without a word."""
    q, k, v, _ = (x.detach() for x in inputs())
    sdpa = libattn.torch.scaled_dot_product_attention
    k = v = torch.cat([k, k], 1)
    with forward_ad.dual_level():
        assert sdpa(q, k, v).shape == q.shape  # without tangents
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        for rows in ((dual, k, v), (dual, k.clone().requires_grad_(), v)):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                sdpa(*rows)
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        torch.func.jvp(lambda x: sdpa(x, k, v), (q,), (torch.ones_like(q),))
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        torch.func.hessian(lambda x: sdpa(x, k, v).sum())(q)


@pytest.mark.parametrize("name", ("q", "k", "v", "bias", "sinks"))
def test_attention_of_arrays_loses_no_gradients(name):
    inputs = {x: torch.randn(1, 5, 2, 8) for x in "qkv"}
    inputs |= {"bias": torch.randn(5, 5), "sinks": torch.randn(2)}
    expected = libattn.attention(**inputs)
    inputs[name].requires_grad_()
    with pytest.raises(ValueError, match=f"{name} requires gradients.*libattn.torch.attention"):
        libattn.attention(**inputs)
    with torch.no_grad():
        assert libattn.attention(**inputs).equal(expected)
    inputs[name] = inputs[name].detach()
    assert libattn.attention(**inputs).equal(expected)


@pytest.mark.parametrize("name", ("k_new", "rope_cos", "v_scale", "out"))
def test_what_has_no_gradients_is_refused(name):
    """Inputs that libattn.torch.attention has no gradients of either, beside arrays of NumPy."""
    inputs = {x: torch.randn(1, 5, 2, 8) for x in "qkv"}
    tracked = torch.ones(1, 5, 2, 8, requires_grad=True)
    with pytest.raises(ValueError, match=f"{name} requires gradients"):
        libattn.attention(**inputs, **{name: tracked})
    arrays = {x: a.numpy() for x, a in inputs.items()}
    with pytest.raises(ValueError, match="v requires gradients"):
        libattn.attention(**arrays | {"v": tracked})


@pytest.mark.parametrize("layout", (torch.strided, torch.jagged))
def test_nested_tensors_are_refused(layout):
    x = torch.nested.nested_tensor([torch.randn(3, 2, 8), torch.randn(5, 2, 8)], layout=layout)
    with pytest.raises(NotImplementedError, match="no nested tensors"):
        libattn.torch.attention(x, x, x)
    heads = x.transpose(1, 2)
    with pytest.raises(NotImplementedError, match="no nested tensors"):
        libattn.torch.scaled_dot_product_attention(heads, heads, heads)
