"""The operators torch.ops.libattn.forward and backward: kernels, shapes, autograd, vmap."""

import torch

from .. import _core

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state

# The options of both operators, in the order of their schemas. Tensors first.
_TENSORS = (
    "mask",
    "mask_bits",
    "bias",
    "alibi_slopes",
    "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "q_origin",
    "k_origin",
    "dropout_seed",
)
_VALUES = {
    "softmax_scale": "float?",
    "causal": "bool",
    "top_left": "bool",
    "window_left": "int",
    "window_right": "int",
    "softcap": "float",
    "dropout_p": "float",
    "dropout_offset": "int",
    "precise": "bool",
    "bf16x3": "bool",
    "heads_first": "bool",
}
OPTIONS = (*_TENSORS, *_VALUES)
DEFAULTS = {name: None for name in OPTIONS} | {
    "causal": False,
    "top_left": False,
    "window_left": -1,
    "window_right": -1,
    "softcap": 0.0,
    "dropout_p": 0.0,
    "dropout_offset": 0,
    "precise": False,
    "bf16x3": False,
    "heads_first": False,
}
# Inputs with gradients, as places among the arguments of forward.
_DIFFERENTIABLE = {name: 3 + OPTIONS.index(name) for name in ("bias", "alibi_slopes", "sinks")}

_SCHEMA = ", ".join(
    ["Tensor q", "Tensor k", "Tensor v"]
    + [f"Tensor? {name}" for name in _TENSORS]
    + [f"{kind} {name}" for name, kind in _VALUES.items()]
)
_TAGS = (torch.Tag.pt2_compliant_tag,)
torch.library.define(
    "libattn::forward",
    f"({_SCHEMA}, bool keep_f32) -> (Tensor out, Tensor lse, Tensor out_f32)",
    tags=_TAGS,
)
torch.library.define(
    "libattn::backward",
    f"(Tensor d_out, Tensor? d_lse, Tensor out, Tensor lse, {_SCHEMA}, bool[] wanted) -> Tensor[]",
    tags=_TAGS,
)


def plain(tensors):
    """True where autograd alone sees a call, on memory: no compiler, mode, transform, trace,
    subclass or meta tensor."""
    if _is_compiling() or _modes() or _transforms() is not None or _tracing() is not None:
        return False
    for x in tensors:
        if x is None:
            continue
        kind = type(x)
        if kind is not _Tensor and kind is not _Parameter:
            return False
    return not tensors[0].is_meta


def seed_number(seed):
    """The seed in a tensor of int64, as a number from 0 to 2^64 - 1; None without one."""
    return None if seed is None else int(seed.item()) & (2**64 - 1)


def fields(options):
    """Keywords of the extension for options by their names; changes the dict."""
    options["dropout_seed"] = seed_number(options["dropout_seed"])
    options["layout"] = "bhsd" if options.pop("heads_first") else "bshd"
    return options


def _fields(options):
    return fields(dict(zip(OPTIONS, options, strict=True)))


def has_f32(q):
    """Whether the backward pass gets a result of 16 bits in float32: on GPUs it costs a launch, and
    keeps short calls from their own kernels."""
    return q.dtype in (torch.float16, torch.bfloat16) and q.device.type == "cpu"


def new_rows(like, shape, heads_first, dtype=None):
    """An array for rows; in memory the sequence comes before the heads, as models want it next."""
    dtype = dtype or like.dtype
    if heads_first and len(shape) == 4:
        return torch.empty_permuted(shape, (0, 2, 1, 3), dtype=dtype, device=like.device)
    return torch.empty(shape, dtype=dtype, device=like.device)


def laid(out, q, k, v, memory):
    """The operator's O (batch, heads, sequence, dim) where the extension's keyword `memory` has its
    axes (memory_order in python/src/results.c)."""
    if memory is None:
        return out
    order = [0, 1, 2, 3]
    alike = q.shape[3] == k.shape[3] == v.shape[3]
    if memory == "pytorch" and alike and q.stride(3) == k.stride(3) == v.stride(3) == 1:
        order.sort(key=torch.empty_like(q, device="meta").stride, reverse=True)
    return out.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])


# ---- Forward -------------------------------------------------------------------------------------


def compute(q, k, v, *options_and_keep, memory=None):
    """The kernel of torch.ops.libattn.forward."""
    *options, keep_f32 = options_and_keep
    out, lse, _, exact = _core.forward(
        q=q, k=k, v=v, out=True, lse=True, out_f32=keep_f32, memory=memory, **_fields(options)
    )
    return out, lse, torch.empty(0, device=q.device) if exact is None else exact


def _fake_forward(q, k, v, *options_and_keep):
    *options, keep_f32 = options_and_keep
    heads_first = options[-1]
    shape = (*q.shape[:-1], v.shape[-1])
    out = new_rows(q, shape, heads_first)
    exact = new_rows(q, shape if keep_f32 else (0,), heads_first, torch.float32)
    stats = q.shape[:-1] if heads_first else (*q.shape[:-3], q.shape[-2], q.shape[-3])
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    return out, torch.empty(stats, dtype=kind, device=q.device), exact


# ---- Backward ------------------------------------------------------------------------------------


_GRADIENTS = ("dq", "dk", "dv", "d_bias", "d_alibi_slopes", "d_sinks")


def _compute_backward(d_out, d_lse, out, lse, q, k, v, *options_and_wanted):
    """Six gradients; None for those that are not wanted."""
    *options, wanted = options_and_wanted
    places = dict(zip(_GRADIENTS, wanted, strict=True))
    return _core.backward(
        q=q, k=k, v=v, out=out, lse=lse, d_out=d_out, d_lse=d_lse, **places, **_fields(options)
    )


def _backward(*arguments):
    """The kernel of torch.ops.libattn.backward, whose schema knows no gradient that is None."""
    q = arguments[4]
    return [q.new_empty((0,)) if x is None else x for x in _compute_backward(*arguments)]


def _fake_backward(d_out, d_lse, out, lse, q, k, v, *options_and_wanted):
    *options, wanted = options_and_wanted
    fields = dict(zip(OPTIONS, options, strict=True))
    inputs = q, k, v, fields["bias"], fields["alibi_slopes"], fields["sinks"]
    arrays = []
    for place, (like, asked) in enumerate(zip(inputs, wanted, strict=True)):
        if not asked:
            arrays.append(q.new_empty((0,)))
        elif place < 3:
            arrays.append(new_rows(like, like.shape, options[-1]))
        else:
            arrays.append(torch.empty(like.shape, dtype=like.dtype, device=like.device))
    return arrays


for _device in ("CPU", "CUDA"):
    torch.library.impl("libattn::forward", _device, compute)
    torch.library.impl("libattn::backward", _device, _backward)
torch.library.register_fake("libattn::forward", _fake_forward)
torch.library.register_fake("libattn::backward", _fake_backward)


# ---- Autograd ------------------------------------------------------------------------------------


def _remember(ctx, inputs, output):
    q, k, v, *options = inputs
    options, keep_f32 = options[:-1], options[-1]
    out, lse, exact = output
    count = len(_TENSORS)
    ctx.mark_non_differentiable(exact)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, exact if keep_f32 else out, lse, *options[:count])
    ctx.values = options[count:]


def _differentiate(ctx, d_out, d_lse, d_exact):
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    options = [*tensors, *ctx.values]
    asked = ctx.needs_input_grad
    wanted = [*asked[:3], *(asked[place] for place in _DIFFERENTIABLE.values())]
    grads = [None] * (3 + len(OPTIONS) + 1)
    if d_out is None and d_lse is None:
        return tuple(grads)
    if d_out is None:
        d_out = torch.zeros_like(out)
    run = backward
    if not torch.is_grad_enabled() and plain((d_out, d_lse, q, k, v, out, lse, *tensors)):
        run = _compute_backward
    found = run(d_out, d_lse, out, lse, q, k, v, *options, wanted)
    for place, gradient, given in zip(
        (0, 1, 2, *_DIFFERENTIABLE.values()), found, wanted, strict=True
    ):
        grads[place] = gradient if given else None
    return tuple(grads)


def _transformed():
    """Whether torch.func transforms this call (compilers see the operator itself)."""
    return not _is_compiling() and _transforms() is not None


def backward(*arguments):
    if _transformed():
        return _Backward.apply(*arguments)
    return torch.ops.libattn.backward(*arguments)


def forward(*arguments):
    if _transformed():
        return _Forward.apply(*arguments)
    return torch.ops.libattn.forward(*arguments)


def refuse_forward_mode(*_):
    raise NotImplementedError("libattn has no forward-mode derivatives; use backward ones")


def _refuse(ctx, *grads):
    raise NotImplementedError(
        "libattn has no double backward: gradients of attention's gradients are out of its scope"
    )


torch.library.register_autograd("libattn::forward", _differentiate, setup_context=_remember)
torch.library.register_autograd("libattn::backward", _refuse)


# ---- vmap ----------------------------------------------------------------------------------------


def _each(op, info, in_dims, arguments):
    """One call for each index of the mapped axis; results stacked."""
    results = []
    for i in range(info.batch_size):
        own = [
            x if dim is None or not isinstance(x, torch.Tensor) else x.select(dim, i)
            for x, dim in zip(arguments, in_dims, strict=True)
        ]
        results.append(op(*own))
    stacked = [torch.stack(parts) for parts in zip(*results, strict=True)]
    kind = type(results[0])
    return kind(stacked), kind(0 for _ in stacked)


# Options that may lack a mapped axis, if all sequences share them.
_SHARED = {"mask": 4, "mask_bits": 4, "bias": 4, "alibi_slopes": 2, "sinks": 2}


def _flat_options(options, dims):
    """Whether the mapped axis can become part of the batch: no option is of one sequence."""
    for name, value, dim in zip(OPTIONS, options, dims, strict=True):
        if isinstance(value, torch.Tensor):
            whole = name in _SHARED and dim is None
            if not whole or (value.ndim == _SHARED[name] and value.shape[0] != 1):
                return False
    return True


def _flatten(x, dim, size):
    """(mapped, batch, ...) as one axis."""
    x = x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def _unflatten(x, size):
    return x.unflatten(0, (size, x.shape[0] // size)) if x.ndim > 1 else x.expand(size, *x.shape)


def _is_4d(x, dim):
    return x.ndim - (dim is not None) == 4


def _map_forward(info, in_dims, q, k, v, *options_and_keep):
    size, op = info.batch_size, forward
    arguments = (q, k, v, *options_and_keep)
    if not (_is_4d(q, in_dims[0]) and _flat_options(options_and_keep[:-1], in_dims[3:-1])):
        return _each(op, info, in_dims, arguments)
    rows = [_flatten(x, dim, size) for x, dim in zip((q, k, v), in_dims[:3], strict=True)]
    results = op(*rows, *options_and_keep)
    return tuple(_unflatten(x, size) for x in results), (0, 0, 0)


def _map_backward(info, in_dims, *arguments):
    size, op = info.batch_size, backward
    rows, row_dims = arguments[:7], in_dims[:7]
    options, wanted = arguments[7:-1], arguments[-1]
    plain = _is_4d(rows[4], row_dims[4]) and not any(wanted[3:])
    if not (plain and _flat_options(options, in_dims[7 : 7 + len(options)])):
        return _each(op, info, in_dims, arguments)
    rows = [
        None if x is None else _flatten(x, dim, size) for x, dim in zip(rows, row_dims, strict=True)
    ]
    results = op(*rows, *options, wanted)
    return [_unflatten(x, size) for x in results], [0] * len(results)


torch.library.register_vmap("libattn::forward", _map_forward)
torch.library.register_vmap("libattn::backward", _map_backward)


class Direct(torch.autograd.Function):
    """The kernel with its derivative, without the dispatcher: Python's part of an operator takes
    longer than a short call. For plain tensors."""

    @staticmethod
    def forward(ctx, *arguments_and_memory):
        *arguments, memory = arguments_and_memory
        results = compute(*arguments, memory=memory)
        _remember(ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx, *grads):
        return *_differentiate(ctx, *grads), None


class Short(torch.autograd.Function):
    """Direct with the arguments of PyTorch's own attention alone: between two passes, which leave
    the caches cold, Python takes tenths of a millisecond for those of `attention`."""

    @staticmethod
    def forward(ctx, q, k, v, mask, bias, scale, causal, memory):
        out, lse, _, exact = _core.forward(
            q=q,
            k=k,
            v=v,
            out=True,
            lse=True,
            out_f32=has_f32(q),
            mask=mask,
            bias=bias,
            softmax_scale=scale,
            causal=causal,
            top_left=causal,
            layout="bhsd",
            memory=memory,
        )
        ctx.save_for_backward(q, k, v, out if exact is None else exact, lse, mask, bias)
        ctx.values = scale, causal
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, lse, mask, bias = ctx.saved_tensors
        scale, causal = ctx.values
        asked = ctx.needs_input_grad
        options = {"mask": mask, "bias": bias, "softmax_scale": scale}
        options |= {"causal": causal, "top_left": causal}
        if torch.is_grad_enabled() or not plain((d_out, q, k, v, out, lse, mask, bias)):
            wanted = [*asked[:3], asked[4], False, False]
            values = (DEFAULTS | options | {"heads_first": True}).values()
            found = backward(d_out, None, out, lse, q, k, v, *values, wanted)
            found = [x if given else None for x, given in zip(found, wanted, strict=True)]
        else:
            found = _core.backward(
                q=q,
                k=k,
                v=v,
                out=out,
                lse=lse,
                d_out=d_out,
                dq=asked[0],
                dk=asked[1],
                dv=asked[2],
                d_bias=asked[4],
                layout="bhsd",
                **options,
            )
        return found[0], found[1], found[2], None, found[3], None, None, None


class _Forward(torch.autograd.Function):
    """The operator under torch.func, whose grad knows no autograd of operators."""

    setup_context = staticmethod(_remember)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(refuse_forward_mode)
    vmap = staticmethod(_map_forward)

    @staticmethod
    def forward(*arguments):
        return torch.ops.libattn.forward(*arguments)


class _Backward(torch.autograd.Function):
    backward = staticmethod(_refuse)
    jvp = staticmethod(refuse_forward_mode)
    vmap = staticmethod(lambda *arguments: tuple(map(tuple, _map_backward(*arguments))))

    @staticmethod
    def forward(*arguments):
        return tuple(torch.ops.libattn.backward(*arguments))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
