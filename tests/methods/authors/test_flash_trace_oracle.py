"""FlashTrace next to its authors' package, wherever that is installed: ``make oracles`` does so."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens.methods.information_flow import FlashTrace

if find_spec("flashtrace") is None:
    pytest.skip("flashtrace is not installed", allow_module_level=True)
for absent in ("seaborn", "spacy", "spacy.language", "spacy.tokens", "wordfreq"):  # for its plots and sentences
    sys.modules.setdefault(absent, MagicMock())
package, core = import_module("flashtrace"), import_module("flashtrace.core")
N, REASONING, ANSWER = 11, (5, 8), (8, 11)
FLOAT32 = 1e-5  # in which their norms and sums are
FAMILIES = pytest.mark.parametrize("family", ["llama", "mistral"])


def theirs(family: str, ids: Tensor) -> dict[str, Any]:
    model = zoo.huggingface(family, torch.float32)
    config, layers = model.config, model.model.layers
    cache, handles = core.attach_hooks(layers, torch.float32)
    config._attn_implementation = "eager"
    output = model(ids, output_attentions=True, use_cache=False)
    for handle in handles:
        handle.remove()
    about = core.extract_model_metadata(model)
    sizes = {"n_layers": about.n_layers, "n_heads_q": about.n_heads_q, "n_kv_heads": about.n_kv_heads}
    sizes |= {"head_dim": about.head_dim, "group_size": about.group_size, "d_model": about.d_model}
    chunks = {"model_dtype": torch.float32, "chunk_tokens": 4, "sink_chunk_tokens": 2}
    return {
        "cache": cache,
        "attentions": output.attentions,
        "weight_pack": core.build_weight_pack(about, torch.float32),
        "params": core.IFRParameters(**sizes, sequence_length=N, **chunks),
    }


def ours(family: str, **options: Any) -> Tensor:
    model = zoo.bridge(family, torch.float32)
    return FlashTrace(**options)(predict(model, zoo.prompt(model, N), 7)).scores


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Scores add up to at most one a layer; where a window hides all that is not masked, they are 0."""
    return float((ours - theirs).abs().max())


def ids_of(family: str) -> Tensor:
    return zoo.prompt(zoo.bridge(family, torch.float32), N)


@torch.no_grad()
@FAMILIES
def test_of_one_position(family: str) -> None:
    found = core.compute_ifr_for_position(N - 1, **theirs(family, ids_of(family)))
    assert apart(ours(family), found.token_importance_total) < FLOAT32


@torch.no_grad()
@FAMILIES
@pytest.mark.parametrize("threshold", [0.0, 0.05])
def test_of_a_span(family: str, threshold: float) -> None:
    start, stop = ANSWER
    found = core.compute_ifr_sentence_aggregate(
        start, stop - 1, **theirs(family, ids_of(family)), renorm_threshold=threshold
    )
    scores = ours(family, answer=ANSWER, threshold=threshold)
    assert apart(scores[:start], found.token_importance_total[:start]) < FLOAT32
    assert not scores[start:].any()


@torch.no_grad()
@FAMILIES
@pytest.mark.parametrize("hops", [0, 1, 3])
def test_of_hops(family: str, hops: int) -> None:
    start, stop = ANSWER
    thinking = REASONING[0], REASONING[1] - 1
    found = core.compute_multi_hop_ifr(start, stop - 1, thinking, hops, **theirs(family, ids_of(family)))
    assert apart(ours(family, answer=ANSWER, reasoning=REASONING, hops=hops), found.observation["sum"]) < FLOAT32


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_of_all_that_was_written_as_their_tracer_does(hops: int) -> None:
    """It leaves out commas, full stops and blanks, which these texts are without."""
    prompt, written = "The tower is in Paris", " not in Rome The cat sat on"
    source, tokenizer = zoo.huggingface("llama", torch.float32), zoo.tokenizer()
    source.config._attn_implementation = "eager"
    found = package.FlashTrace(source, tokenizer).trace(prompt=prompt, target=written, hops=hops)
    context, rest = (tokenizer(text).input_ids for text in (prompt, written))
    start, stop = len(context), len(context) + len(rest)
    prediction = predict(zoo.bridge("llama", torch.float32), torch.tensor([context + rest]), 7)
    scores = FlashTrace(answer=(start, stop), reasoning=(start, stop), hops=hops)(prediction).scores
    assert apart(scores[:start], torch.tensor(found.scores)) < FLOAT32
