"""FlashTrace next to its authors' package, wherever that is installed: ``make oracles`` does so."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens.methods.information_flow import FlashTrace

package = find_spec("flashtrace")  # whose other modules need much that this one does not
if package is None or package.origin is None:
    pytest.skip("flashtrace is not installed", allow_module_level=True)
spec = spec_from_file_location("flashtrace_core", Path(package.origin).with_name("core.py"))
assert spec is not None and spec.loader is not None
core: Any = module_from_spec(spec)
sys.modules[spec.name] = core  # where dataclasses look for it
spec.loader.exec_module(core)
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
