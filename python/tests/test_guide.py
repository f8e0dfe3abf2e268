"""Code of README.md and docs/guide/python.md, run as it stands there, from the top down."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WEIGHTS = "AutoModelForCausalLM"  # of a block that wants a model by name: see test_models.py


@pytest.mark.parametrize("name, least", [("README.md", 1), ("docs/guide/python.md", 7)])
def test_code_runs(name, least):
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = [match for match in BLOCK.finditer(text) if WEIGHTS not in match[1]]
    assert len(blocks) >= least
    names = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], name, "exec"), names)
