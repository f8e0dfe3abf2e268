"""A cache of keys and values in pages that sequences share."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import _arrays, _core


class Cache:
    """Keys and values of many sequences in pages of two arrays of yours, the pools.

        pool_k, pool_v = np.zeros((2, 256, 16, 8, 64), np.float32)  # pages, page size, heads, dim
        cache = libattn.Cache(pool_k, pool_v, sequences=32, length=2048)
        prompt = cache.alloc()
        cache.extend(prompt, 100)  # room for the keys of the prompt, which the call writes
        out = libattn.attention(q, k_new=k, v_new=v, causal=True, **cache.view([prompt]))
        answers = [cache.fork(prompt) for _ in range(4)]  # share all pages
        for step in ...:
            for answer in answers:
                cache.extend(answer)
            libattn.attention(q, k_new=k, v_new=v, causal=True, **cache.view(answers))

    Shapes:

        k                  (pages, page size, Hk, d)     any type that attention takes; uint8 is
        v                  (pages, page size, Hk, d_v)   int4, two codes a byte
        k_scale, v_scale   (pages, page size, Hk, groups), axes possibly 1: those of quantised
        k_shift, v_shift   pools, as in attention

    layout="bhsd" puts heads before the page's rows, and goes to attention too. sequences: the most
    at once. length: the most keys of one.

    The cache keeps the pools alive and allocates nothing later. A sequence is a number. Pages that
    forks share are copied before they are written to. Methods may be called from many threads. Each
    of them does all or nothing: out of pages or sequences is a MemoryError, after which everything
    is as before, and a number that is not in use a ValueError.
    """

    def __init__(
        self,
        k: Any,
        v: Any,
        *,
        sequences: int,
        length: int,
        k_scale: Any = None,
        k_shift: Any = None,
        v_scale: Any = None,
        v_shift: Any = None,
        layout: str = "bshd",
    ) -> None:
        factors = {"k_scale": k_scale, "k_shift": k_shift, "v_scale": v_scale, "v_shift": v_shift}
        self._heads_first = _arrays.heads_first(layout)
        self._pools = {"k": k, "v": v} | {n: x for n, x in factors.items() if x is not None}
        self._cache = _core.Cache(
            **self._pools,
            sequences=sequences,
            length=length,
            copy=None if _arrays.is_on_cpu(k) else _copier(self._pools, self._heads_first),
            heads_first=self._heads_first,
        )
        self._columns = -(-length // k.shape[2 if self._heads_first else 1])

    def alloc(self) -> int:
        """A new sequence without keys."""
        return self._cache.alloc()

    def extend(self, sequence: int, rows: int = 1) -> None:
        """Room for more keys at a sequence's end, which its length counts from now on."""
        self._cache.extend(sequence, rows)

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence that shares the first `length` keys of another; None: all of them."""
        return self._cache.fork(sequence, self.length(sequence) if length is None else length)

    def truncate(self, sequence: int, length: int) -> None:
        """Drops the keys from `length` on, with the pages that only they were in."""
        self._cache.truncate(sequence, length)

    def free(self, sequence: int) -> None:
        """Gives a sequence's number back, and the pages that no other sequence has."""
        self._cache.free(sequence)

    def length(self, sequence: int) -> int:
        """The number of a sequence's keys."""
        return int(self._tables([sequence])[1][0])

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence has."""
        return self._cache.free_pages()

    def view(self, sequences: Iterable[int], heads: slice | None = None) -> dict[str, Any]:
        """Keywords of attention for some sequences, a batch in this order.

        k, v and their scales and shifts; block_table (B, ceil(length / page size)), int32, -1
        behind a sequence's pages; seqused_k (B), int64. The table and the lengths are copies, right
        until one of the sequences is extended, truncated or freed.

        heads: some of the pools' heads; pools can hold those of all layers of a model, which then
        share a table: heads=slice(layer * Hk, (layer + 1) * Hk).
        """
        table, lengths = self._tables(sequences)
        pools = self._pools
        if heads is not None:
            pools = {name: self._some(pool, heads) for name, pool in pools.items()}
        like = self._pools["k"]
        return {
            **pools,
            "block_table": _arrays.give(like, table),
            "seqused_k": _arrays.give(like, lengths),
        }

    def _tables(self, sequences: Iterable[int]) -> tuple[Any, Any]:
        if not isinstance(sequences, Iterable):
            raise TypeError(f"sequences is {sequences!r}; it must be a list of sequences")
        numbers = _arrays.lengths(list(sequences), "sequences")
        table = np.empty((len(numbers), self._columns), np.int32)
        lengths = np.empty(len(numbers), np.int64)
        self._cache.view(numbers, table, lengths)
        return table, lengths

    def _some(self, pool: Any, heads: slice) -> Any:
        axis = 1 if self._heads_first else 2
        if pool.shape[axis] == 1 < self._pools["k"].shape[axis]:  # a scale of all heads
            return pool
        return pool[(slice(None),) * axis + (heads,)]


def _copier(pools: dict[str, Any], heads_first: bool) -> Callable[[int, int, int], None]:
    """The copy of a page's first rows where the library cannot do it, by the arrays' own package,
    on its stream."""
    pages = len(pools["k"])
    paged = [pool for pool in pools.values() if len(pool) == pages]

    def copy(to: int, source: int, rows: int) -> None:
        part = (slice(None), slice(rows)) if heads_first else slice(rows)
        for pool in paged:
            pool[to][part] = pool[source][part]

    return copy
