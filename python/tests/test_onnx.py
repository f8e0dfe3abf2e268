"""libattn.onnx.attention against the node tests that the package onnx generates."""

import warnings

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import libattn.onnx  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402


def find_cases():
    """One node of type Attention each, with inputs, outputs and tolerances."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases("Attention")
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type == "Attention":
            found.append(case)
    return found


CASES = find_cases()


def test_all_are_there():
    assert len(CASES) == 93


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_node(case):
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    outputs = dict(zip(libattn.onnx.Results._fields, node.output, strict=False))
    for inputs, expected in case.data_sets:
        given = iter(inputs)
        arguments = [next(given) if name else None for name in node.input]
        wants_scores = bool(outputs.get("qk_matmul_output"))
        results = libattn.onnx.attention(
            *arguments, qk_matmul_output=wants_scores, **attributes
        )._asdict()
        named = [results[name] for name, asked in outputs.items() if asked]
        assert len(named) == len(expected)
        for own, other in zip(named, expected, strict=True):
            assert own.dtype == other.dtype and own.shape == other.shape
            # As onnx's own runner has it: two units in the last place of bfloat16.
            rtol = max(case.rtol, 2**-6) if own.dtype == ml_dtypes.bfloat16 else case.rtol
            np.testing.assert_allclose(
                own.astype(np.float64),
                np.asarray(other).astype(np.float64),
                rtol=rtol,
                atol=case.atol,
            )


def test_refusals():
    x = np.zeros((1, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match="one of them is missing"):
        libattn.onnx.attention(x, x, x, past_key=x)
    with pytest.raises(ValueError, match="cache outside"):
        libattn.onnx.attention(x, x, x, None, x, x, np.array([3]))
    with pytest.raises(ValueError, match="q_num_heads"):
        libattn.onnx.attention(x[0], x[0], x[0])
