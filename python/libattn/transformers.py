"""libattn for Hugging Face transformers: attn_implementation="libattn".

    import libattn.transformers
    libattn.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="libattn")

or, for a model that is there already, model.set_attn_implementation("libattn"). Softcap, sinks,
relative position biases with their gradients, shared KV heads, windows, padding, static and
dynamic caches: what eager attention computes, without its matrix of scores.
"""

import torch

from .torch import attention

NAME = "libattn"


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name mean libattn, in every model of transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)  # boolean masks, none where causality says all


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    cache=None,
    **_,
):
    """Attention as transformers' models call it.

    query (batch, heads, queries, dim), key and value (batch, kv_heads, keys, dim); attention_mask
    boolean, True = takes part, or added; s_aux: sinks (heads); position_bias: added, (batch or 1,
    heads, queries, keys). Windows are in the mask. Returns out, (batch, queries, heads, dim), and
    None in place of weights.
    """
    if cache is not None:
        raise NotImplementedError("libattn has no paged attention of transformers' batching yet")
    queries = query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and queries > 1 and attention_mask is None
    mask, bias = None, position_bias
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask if bias is None else bias + attention_mask
    out = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        sinks=None if s_aux is None else _of_sums(s_aux, query),
        softmax_scale=scaling,
        causal=causal,
        top_left=causal,  # a prefill into an empty static cache has more keys than queries
        softcap=softcap or 0.0,
        dropout_p=dropout,
        layout="bhsd",
    )
    return out.transpose(1, 2).contiguous(), None


def _of_sums(sinks, query):
    """Sinks in the type of sums; gradients come back in their own."""
    return sinks.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
