"""`python -m libattn` prints what `attn info` prints; `attn` is the program."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from ._machine import info

PROGRAM = Path(__file__).with_name("bin") / "attn"


def program() -> NoReturn:
    """The program attn, in place of this process."""
    if not PROGRAM.exists():
        sys.exit("attn: this build has no program: it was made without cJSON's headers")
    os.execv(PROGRAM, ["attn", *sys.argv[1:]])


def _print_info() -> None:
    for name, value in info()._asdict().items():
        print(f"{name:13} {value}")


if __name__ == "__main__":
    if PROGRAM.exists():
        os.execv(PROGRAM, ["attn", "info", *sys.argv[1:]])
    _print_info()
