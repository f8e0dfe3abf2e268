"""flash_attn.bert_padding: padded sequences into packed ones and back."""

import torch
from torch import Tensor


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of x."""
    return x[indices]


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rows in use of hidden_states (batch, seqlen, ...), by attention_mask (batch, seqlen).

    Returns (rows (total, ...), indices into batch * seqlen, cu_seqlens (batch + 1) int32, longest
    sequence, lengths (batch) int32). Rows of unused_mask are kept but count in no length.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    longest = int(lengths.max()) if lengths.numel() else 0
    return rows, indices, ends, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Rows (total, ...) back into (batch, seqlen, ...), zeros elsewhere."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    padded = padded.index_put((indices,), hidden_states)
    return padded.unflatten(0, (batch, seqlen))
