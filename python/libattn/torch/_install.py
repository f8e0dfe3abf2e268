"""install(): PyTorch's own attention computed by libattn, without a changed line."""

import warnings
from collections import Counter

import torch
import torch.nn.functional as F

from .. import _core
from . import _functions

_transforms = torch._C._functorch.get_interpreter_stack
_Transform = torch._C._functorch.TransformType
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_installed = []


class Installation:
    """Replacements that install() has made. As a context manager they end with the block.

    calls: how many attention calls went where, by (who computed it, which operator or why not).
    """

    def __init__(self) -> None:
        self.calls = Counter()
        self._takes_both = _takes_both()
        self._library = torch.library.Library("aten", "IMPL")
        for name, kernel, keys in (
            ("scaled_dot_product_attention", self._attention, ("CPU", "AutogradCPU")),
            ("_scaled_dot_product_flash_attention_for_cpu", self._flash, ("CPU",)),
            ("_scaled_dot_product_flash_attention_for_cpu_backward", self._backward, ("CPU",)),
        ):
            for key in keys:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Warning only once for all operators")
                    self._library.impl(name, kernel, key, allow_override=True)

    def remove(self) -> None:
        """PyTorch computes again."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            _installed.remove(self)

    def __enter__(self) -> "Installation":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def report(self) -> str:
        """The counts as lines of text."""
        return "\n".join(
            f"{count:8} {who:8} {why}" for (who, why), count in self.calls.most_common()
        )

    def _attention(
        self,
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        *,
        scale=None,
        enable_gqa=False,
    ):
        call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if query.dtype not in _FLOATS:
            return self._leave(f"type {query.dtype}", *call)
        if is_causal and attn_mask is not None:
            if not (self._takes_both and _functions.has_kernel(*call)):
                return self._leave("attn_mask beside is_causal", *call)
        if levels := _transforms():
            return self._transformed([level.key() for level in levels], *call)
        try:
            out = _functions.dot_product(*call, "pytorch")
        except NotImplementedError as reason:
            return self._leave(str(reason), *call)
        except (ValueError, TypeError) as error:
            raise _functions.in_pytorchs_names(error) from None
        self.calls["libattn", "scaled_dot_product_attention"] += 1
        return out

    def _transformed(self, transforms, *call):
        """Within derivatives of torch.func, which take no function of autograd here: the operator
        whose kernels are _flash and _backward, where PyTorch would take it and only the first
        derivative is wanted."""
        first = transforms.count(_Transform.Grad) == 1 and _Transform.Jvp not in transforms
        if not first or not _functions.has_kernel(*call):
            return self._leave("a derivative by torch.func", *call)
        query, key, value, attn_mask, dropout_p, is_causal, scale, _ = call
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]

    def _leave(self, why, *call_with_scale_and_gqa):
        self.calls["PyTorch", why] += 1
        *call, scale, enable_gqa = call_with_scale_and_gqa
        return torch.ops.aten._scaled_dot_product_attention_math(
            *call, scale=scale, enable_gqa=enable_gqa
        )[0]

    def _flash(
        self, query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None
    ):
        self.calls["libattn", "_scaled_dot_product_flash_attention_for_cpu"] += 1
        batch, heads, rows, _ = query.shape
        kind = torch.float64 if query.dtype == torch.float64 else torch.float32
        out = torch.empty_like(query)
        lse = torch.empty((batch, rows, heads), dtype=kind).transpose(1, 2)
        _core.forward(
            q=query,
            k=key,
            v=value,
            out=out,
            lse=lse,
            softmax_scale=scale,
            **_flash_options(attn_mask, is_causal),
        )
        return out, lse

    def _backward(
        self,
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        dropout_p,
        is_causal,
        *,
        attn_mask=None,
        scale=None,
    ):
        self.calls["libattn", "_scaled_dot_product_flash_attention_for_cpu_backward"] += 1
        grads = [
            torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype) for x in (query, key, value)
        ]
        _core.backward(
            q=query,
            k=key,
            v=value,
            out=out,
            lse=logsumexp,
            d_out=grad_out,
            dq=grads[0],
            dk=grads[1],
            dv=grads[2],
            softmax_scale=scale,
            **_flash_options(attn_mask, is_causal),
        )
        return tuple(grads)


def _takes_both():
    """Whether PyTorch's kernel takes a mask beside is_causal; from 2.14 on that is an error."""
    one = torch.zeros(1, 1, 1, 1)
    try:
        F.scaled_dot_product_attention(one, one, one, one, is_causal=True)
    except RuntimeError:
        return False
    return True


def _flash_options(attn_mask, is_causal):
    name = "mask" if attn_mask is not None and attn_mask.dtype == torch.bool else "bias"
    return {name: attn_mask, "causal": is_causal, "top_left": is_causal, "layout": "bhsd"}


def install() -> Installation:
    """Lets libattn compute every attention that PyTorch computes on CPU tensors.

    F.scaled_dot_product_attention, what is built on it (nn.MultiheadAttention, transformers'
    "sdpa" ...), and compiled or exported programs that name its CPU kernel. That includes what
    PyTorch's kernel leaves to stored scores: dropout, Ev other than E, gradients of the mask,
    more than four axes. Results lie in memory as PyTorch's would.

    Returns an Installation: its `calls` and `report()` tell how many calls went where and why,
    remove() ends it, and `with install():` ends it by itself.
    """
    if _installed:
        return _installed[0]
    _installed.append(Installation())
    return _installed[0]
