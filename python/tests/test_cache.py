"""libattn.Cache against a plain model: lists of rows for each sequence."""

import gc
import random
import re
import threading
import weakref

import libattn
import numpy as np
import pytest
from libattn import _arrays, _core

PAGES, PAGE, HEADS, DIM = 24, 4, 2, 8


def floats(layout="bshd"):
    shape = (PAGES, HEADS, PAGE, DIM) if layout == "bhsd" else (PAGES, PAGE, HEADS, DIM)
    return {"k": np.full(shape, np.nan, np.float32), "v": np.full(shape, np.nan, np.float32)}


def codes(kind="int8", shift=False):
    pools = {}
    for name in "kv":
        zeros = np.zeros((PAGES, PAGE, HEADS, DIM), np.float32)
        parts = libattn.quantize(zeros, kind, groups=2, shift=shift)
        pools |= {name: parts.codes, name + "_scale": parts.scale, name + "_shift": parts.shift}
    return pools


def pages_for(length):
    return -(-length // PAGE)


def rows(cache, sequence):
    """What the pools hold of a sequence, by its table."""
    view = cache.view([sequence])
    length = int(view["seqused_k"][0])
    pages = view["block_table"][0, : pages_for(length)]
    assert (view["block_table"][0, pages_for(length) :] == -1).all()
    pool = view["k"]
    if cache._heads_first:
        pool = pool.swapaxes(1, 2)
    return pool[pages].reshape(-1, HEADS, DIM)[:length].copy()


class Model:
    """A cache, and beside it a list of keys for each sequence."""

    def __init__(self, cache, seed, layout="bshd"):
        self.cache, self.layout, self.random = cache, layout, random.Random(seed)
        self.draw = np.random.default_rng(seed)
        self.keys = {}

    def some(self):
        return self.random.choice(list(self.keys)) if self.keys else None

    def append(self, sequence, count):
        """New keys by a call of attention, as a model does it."""
        new = self.draw.standard_normal((1, count, HEADS, DIM)).astype(np.float32)
        given = new.swapaxes(1, 2) if self.layout == "bhsd" else new
        view = self.cache.view([sequence])
        out = libattn.attention(
            given, k_new=given, v_new=given, causal=True, layout=self.layout, **view
        )
        self.keys[sequence] = np.concatenate([self.keys[sequence], new[0]])
        keys = self.keys[sequence][None]
        if self.layout == "bhsd":
            keys = keys.swapaxes(1, 2)
        alone = libattn.attention(given, keys, keys, causal=True, layout=self.layout)
        assert (out == alone).all()

    def step(self):
        cache, sequence = self.cache, self.some()
        act = self.random.choice(
            ["alloc", "extend", "extend", "extend", "fork", "truncate", "free"]
        )
        if act == "alloc" or sequence is None:
            made = cache.alloc()
            assert made not in self.keys
            self.keys[made] = np.empty((0, HEADS, DIM), np.float32)
        elif act == "extend":
            count = self.random.randrange(1, 2 * PAGE)
            cache.extend(sequence, count)
            self.append(sequence, count)
        elif act == "fork":
            length = self.random.choice([None, self.random.randint(0, len(self.keys[sequence]))])
            self.keys[cache.fork(sequence, length)] = self.keys[sequence][:length].copy()
        elif act == "truncate":
            length = self.random.randint(0, len(self.keys[sequence]))
            cache.truncate(sequence, length)
            self.keys[sequence] = self.keys[sequence][:length]
        else:
            cache.free(sequence)
            del self.keys[sequence]

    def check(self):
        for sequence, keys in self.keys.items():
            assert self.cache.length(sequence) == len(keys)
            assert (rows(self.cache, sequence) == keys).all()


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("by_callable", [False, True])
def test_random_program(layout, by_callable, monkeypatch):
    """Exceptions on the way (out of pages, sequences, beyond the length) change nothing."""
    if by_callable:  # the way of pools on a GPU
        monkeypatch.setattr(_arrays, "is_on_cpu", lambda array: False)
    cache = libattn.Cache(**floats(layout), sequences=5, length=40, layout=layout)
    model, refusals = Model(cache, 19, layout), set()
    for _ in range(1500):
        try:
            model.step()
        except (MemoryError, ValueError) as refusal:
            refusals.add(re.sub(r"\d+", "#", str(refusal).partition(",")[0]))
        model.check()
    assert refusals == {"# pages are wanted", "all # sequences are in use", "rows = #"}
    for sequence in model.keys:
        cache.free(sequence)
    assert cache.free_pages == PAGES


@pytest.mark.parametrize("kind, shift", [("int8", False), ("int8", True), ("int4", True)])
def test_quantised_pools(kind, shift):
    """A fork has the codes and factors of its prompt: the same keys give the same bits."""
    cache = libattn.Cache(**codes(kind, shift), sequences=3, length=30)
    new = np.random.default_rng(1).standard_normal((1, 11, HEADS, DIM)).astype(np.float32)

    def step(sequence, part):
        cache.extend(sequence, part.shape[1])
        view = cache.view([sequence])
        return libattn.attention(part, k_new=part, v_new=part, causal=True, **view)

    whole, prompt = cache.alloc(), cache.alloc()
    expected = step(whole, new)
    start = step(prompt, new[:, :6])  # a page and a half
    answer = cache.fork(prompt)
    step(prompt, -new[:, 6:])
    assert (start == expected[:, :6]).all()
    assert (step(answer, new[:, 6:]) == expected[:, 6:]).all()
    values = np.abs(expected - libattn.attention(new, new, new, causal=True)).max()
    assert 0 < values < (0.05 if kind == "int8" else 0.6)


def test_layers_share_a_table():
    """Pools hold the heads of all layers; their scales may be those of all heads."""
    shape = (PAGES, PAGE, 3 * HEADS, DIM)
    pool_k, pool_v = np.zeros((2, *shape), np.int8)
    scale = np.full((1, 1, 1, 1), 0.03, np.float32)
    own = np.full((1, 1, 3 * HEADS, 1), 0.03, np.float32)
    cache = libattn.Cache(pool_k, pool_v, k_scale=scale, v_scale=own, sequences=1, length=PAGE * 3)
    sequence = cache.alloc()
    cache.extend(sequence, 9)
    pool_k[:] = np.random.default_rng(2).integers(-99, 99, shape)
    pool_v[:] = pool_k
    q = np.ones((1, 9, HEADS, DIM), np.float32)
    keys = pool_k[cache.view([sequence])["block_table"][0, :3]].reshape(1, 3 * PAGE, -1, DIM)
    for layer in range(3):
        heads = slice(layer * HEADS, (layer + 1) * HEADS)
        view = cache.view([sequence], heads)
        assert view["v_scale"].shape == (1, 1, HEADS, 1)
        part = keys[:, :9, heads]
        alone = libattn.attention(q, part, part, k_scale=scale, v_scale=scale)
        assert (libattn.attention(q, **view) == alone).all()


def test_torch():
    torch = pytest.importorskip("torch")
    pools = torch.zeros(2, PAGES, PAGE, HEADS, DIM, dtype=torch.bfloat16)
    cache = libattn.Cache(*pools, sequences=4, length=50)
    a, b = cache.alloc(), cache.alloc()
    cache.extend(a, 7), cache.extend(b, 5)
    q, k, v = torch.randn(3, 2, 5, HEADS, DIM).bfloat16()
    cache.truncate(a, 5)
    view = cache.view(torch.tensor([b, a]))
    assert view["block_table"].dtype == torch.int32 and view["seqused_k"].tolist() == [5, 5]
    out = libattn.attention(q, k_new=k, v_new=v, causal=True, **view)
    assert out.equal(libattn.attention(q, k, v, causal=True))


def test_out_of_pages_leaves_everything_usable():
    cache = libattn.Cache(**floats(), sequences=2, length=PAGES * PAGE + 9)
    a = cache.alloc()
    model = Model(cache, 3)
    model.keys[a] = np.empty((0, HEADS, DIM), np.float32)
    cache.extend(a, 6), model.append(a, 6)
    with pytest.raises(MemoryError, match="23 pages are wanted, 22 of 24 are free"):
        cache.extend(a, PAGES * PAGE - 6 + 1)
    with pytest.raises(ValueError, match="rows = 100"):
        cache.extend(a, 100)
    model.keys[cache.fork(a)] = model.keys[a]
    with pytest.raises(MemoryError, match="all 2 sequences are in use"):
        cache.fork(a)
    with pytest.raises(MemoryError, match="23 pages are wanted"):  # one of them for a copy
        cache.extend(a, PAGES * PAGE - 8)
    model.check()
    cache.extend(a, PAGES * PAGE - 12), model.append(a, PAGES * PAGE - 12)
    model.check()
    assert cache.free_pages == 0


POOL = np.zeros((PAGES, PAGE, HEADS, DIM), np.float32)
READ_ONLY = POOL.view()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (ValueError, "sequence 7 is not in use", lambda c: c.extend(7)),
        (ValueError, "sequence -1 is not in use", lambda c: c.view([0, -1])),
        (ValueError, "sequence 1 is not in use", lambda c: c.free(1)),
        (ValueError, r"length = 5, must be in \[0, 3\]", lambda c: c.fork(0, 5)),
        (ValueError, r"length = -2, must be in \[0, 3\]", lambda c: c.truncate(0, -2)),
        (TypeError, "sequences is .* whole numbers", lambda c: c.view([0.0])),
        (TypeError, "sequences is 0; it must be a list", lambda c: c.view(0)),
        (TypeError, "rows is 1.5; .* whole number", lambda c: c.extend(0, 1.5)),
        (ValueError, "sequence is .* 64 bits", lambda c: c.free(2**70)),
        (ValueError, "sequences is .* 64 bits", lambda c: c.view([2**70])),
        (ValueError, "length is .* 64 bits", lambda c: c.truncate(0, -(2**70))),
        (
            ValueError,
            "sequences is .* 64 bits",
            lambda c: libattn.Cache(POOL, POOL, sequences=2**70, length=1),
        ),
        (ValueError, "k has 3 axes", lambda c: libattn.Cache(POOL[0], POOL, sequences=1, length=1)),
        (
            ValueError,
            "v is read-only",
            lambda c: libattn.Cache(POOL, READ_ONLY, sequences=1, length=1),
        ),
        (ValueError, "sequences = -1", lambda c: libattn.Cache(POOL, POOL, sequences=-1, length=1)),
        (
            MemoryError,
            "no memory for tables of [0-9]* bytes",
            lambda c: libattn.Cache(POOL, POOL, sequences=2**50, length=1),
        ),
        (ValueError, "v.shape", lambda c: libattn.Cache(POOL, POOL[1:], sequences=1, length=1)),
        (TypeError, "list", lambda c: libattn.Cache([[1.0]], POOL, sequences=1, length=1)),
        (
            ValueError,
            "layout is 'sbhd'",
            lambda c: libattn.Cache(POOL, POOL, sequences=1, length=1, layout="sbhd"),
        ),
        (
            ValueError,
            "do not fit",
            lambda c: c._cache.view(np.zeros(1, int), np.zeros((1, 2), np.int32), np.zeros(1, int)),
        ),
    ],
)
def test_refusals(kind, words, call):
    cache = libattn.Cache(POOL, POOL, sequences=2, length=20)
    cache.extend(cache.alloc(), 3)
    with pytest.raises(kind, match=words):
        call(cache)
    assert cache.length(0) == 3 and cache.free_pages == PAGES - 1


def test_exception_of_the_copy():
    def fail(to, source, count):
        raise OSError(f"no copy of {count} rows")

    cache = _core.Cache(POOL, POOL, 2, 20, copy=fail)
    cache.extend(cache.alloc(), 3)
    cache.fork(0, 3)
    for _ in range(2):
        with pytest.raises(OSError, match="no copy of 3 rows"):
            cache.extend(0, 1)
        assert cache.free_pages() == PAGES - 1


def test_pools_live_as_long_as_the_cache():
    class Pool(np.ndarray):
        pass

    pool = np.zeros((PAGES, PAGE, HEADS, DIM), np.float32).view(Pool)
    cache = libattn.Cache(pool, pool, sequences=1, length=8)
    alive = weakref.ref(pool)
    core = cache._cache
    del pool, cache
    gc.collect()
    assert alive() is not None
    core.extend(core.alloc(), 5)
    del core
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("by_callable", [False, True])
def test_threads(by_callable, monkeypatch):
    """Eight threads on one cache, each with sequences of its own and a model of them."""
    if by_callable:
        monkeypatch.setattr(_arrays, "is_on_cpu", lambda array: False)
    cache = libattn.Cache(**floats(), sequences=12, length=30)
    failures = []
    refusals = [0]

    def work(seed):
        model = Model(cache, seed)
        try:
            for _ in range(300):
                try:
                    model.step()
                except (MemoryError, ValueError):
                    refusals[0] += 1
                model.check()
            for sequence in model.keys:
                cache.free(sequence)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert refusals[0] > 0 and cache.free_pages == PAGES
