"""Threads and kernels that calls run on."""

from typing import NamedTuple

from . import _core


class Info(NamedTuple):
    """The build and its machine; caches in bytes, of one core."""

    version: str
    build: str
    cpu_features: str
    cpu_table: str
    cpu_tables: str
    threads: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int


def info(context: _core.Context | None = None) -> Info:
    """The build and the machine of calls on the CPU: version, tables, threads, caches."""
    return Info(*_core.info(context))


def set_num_threads(threads: int) -> None:
    """Threads of the calls that name no context; 0 = one per core that this process may use.

    Results have the same bits for any number of threads.
    """
    _core.set_default(_core.Context(threads=threads) if threads else None)
