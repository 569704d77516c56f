"""HETA as a whole: every kind of model against the oracles, what must not matter, and what is reported."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative, signs
from helpers.heta import dense, oracle_gate
from heta_lens._util.numerics import Direction
from heta_lens.methods.heta.options import VARIANTS, Variant

KINDS = "bridge-(gpt2|llama|native)|hooked-rotary_gqa"


@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_variants_are_the_terms_of_eq4(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    full = explain(model, ids, beta=0.3, gamma=0.7, probes=2)
    gate, curvature, information = (full.parts[name] for name in ("gate", "curvature", "information"))
    expected: dict[Variant, Any] = {
        "full": gate * (0.5 * curvature + 0.5 * information),
        "transition_only": gate,
        "hessian_only": gate * curvature,
        "kl_only": gate * information,
        "no_gate": 0.5 * curvature + 0.5 * information,
        "uniform_gate": (0.5 * curvature + 0.5 * information) / 6,
    }
    assert expected.keys() == VARIANTS.keys() - {"lr", "ls", "win", "lr+win", "ls+win", "gs", "gn"}
    for variant, scores in expected.items():
        probes = {"probes": 2} if VARIANTS[variant].estimator else {}
        assert relative(explain(model, ids, variant=variant, **probes).scores, scores) < 1e-9, variant


def masked(diagnostics: Any) -> int:
    """Forwards beside those that a gradient was taken of."""
    return diagnostics["forwards"] - diagnostics["backwards"]


def test_a_part_without_weight_is_not_computed() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    first_order = explain(model, ids, beta=0.0, gamma=1.0)
    assert set(first_order.parts) == {"gate", "information"}
    assert (first_order.diagnostics["hvps"], first_order.diagnostics["forwards"]) == (0, 6)
    second_order = explain(model, ids, gamma=0.0)
    assert set(second_order.parts) == {"gate", "curvature"}
    assert (second_order.diagnostics["hvps"], masked(second_order.diagnostics)) == (50, 1)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|mistral|gemma2)|hooked-(rotary_gqa|local|sinks)"))
def test_reusing_a_prefix_does_not_matter(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    reused = explain(model, ids, probes=2)
    handle = model.unembed.register_forward_hook(lambda *_: None)
    try:
        full = explain(model, ids, probes=2)
    finally:
        handle.remove()
    assert reused.diagnostics["prefix_reuse"] == "on"
    assert full.diagnostics["prefix_reuse"].startswith("off: hooks")
    assert relative(reused.scores, full.scores) < 1e-6


def test_the_seed_decides_the_probes_and_nothing_else_does() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 5)
    torch.manual_seed(1)
    one = explain(model, ids, probes=2, seed=4)
    torch.manual_seed(2)
    again, other = (explain(model, ids, probes=2, seed=seed) for seed in (4, 5))
    assert torch.equal(one.scores, again.scores)
    assert not torch.allclose(one.parts["curvature"], other.parts["curvature"])
    assert torch.equal(one.parts["information"], other.parts["information"])


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("seed", range(3))
def test_a_model_with_kinks_is_not_taken_for_one_without_second_derivatives(seed: int) -> None:
    model = zoo.hooked_config("relu")
    assert explain(model, zoo.prompt(model, 6, seed=seed), variant="hessian_only").scores.any()


N, PROBES = 5, 3


def oracle_parts(model: Any, ids: Tensor, target: int) -> tuple[Tensor, Tensor, Tensor]:
    """M, S and I, each transcribed from the paper, on full runs of the model."""
    embeddings, log_probs = plain_embeddings(model, ids).double(), plain_log_probs(model, ids)
    probes = signs(0, PROBES, *embeddings.shape)
    with torch.no_grad():
        information = oracles.information(log_probs, embeddings, torch.zeros_like(embeddings[0]), "orig_masked")
    return oracle_gate(model, ids), oracles.block_l1(dense(model, ids, target), probes).mean(0), information


@pytest.mark.parametrize("name", [name for name, _ in zoo.KINDS])
def test_attribution_equals_the_oracle(name: str) -> None:
    model = dict(zoo.KINDS)[name]()
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, target=7, probes=PROBES)
    gate, curvature, information = oracle_parts(model, ids, target=7)
    assert relative(attribution.parts["gate"], gate) < 1e-10
    assert relative(attribution.parts["curvature"], curvature) < zoo.tolerance(name)
    assert relative(attribution.parts["information"], information) < zoo.tolerance(name)
    assert relative(attribution.scores, oracles.eq4(gate, curvature, information, 0.5, 0.5)) < zoo.tolerance(name)


DIRECTIONS = get_args(Direction)
SOME = "hooked-(standard|llama|gptj)|bridge-(gpt2|neox|native)"


def information_of(model: Any, ids: Tensor, **options: Any) -> Tensor:
    return explain(model, ids, variant="kl_only", **options).parts["information"]


def oracle_information(model: Any, ids: Tensor, mask: Tensor, direction: str = "orig_masked") -> Tensor:
    with torch.no_grad():
        return oracles.information(plain_log_probs(model, ids), plain_embeddings(model, ids), mask, direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("build", zoo.models(SOME))
def test_equals_one_masked_forward_a_token(build: Any, direction: Direction) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    zero = torch.zeros_like(plain_embeddings(model, ids)[0])
    assert relative(information_of(model, ids, kl=direction), oracle_information(model, ids, zero, direction)) < 1e-8


@pytest.mark.parametrize("build", zoo.models("gpt2|gemma2|bloom"))
def test_every_mask_is_what_its_name_says(build: Any) -> None:
    """Gemma scales its embeddings and Bloom normalises them: masks are what the model would really see."""
    model = build()
    ids = zoo.prompt(model, 6)
    embeddings = plain_embeddings(model, ids)
    everything = torch.arange(model.cfg.d_vocab)
    seen = torch.cat([plain_embeddings(model, batch[None]) for batch in everything.split(zoo.N_CTX)])
    vector = torch.linspace(-1, 1, embeddings.shape[1], dtype=embeddings.dtype)
    for mask, stands_for in (
        ("zero", torch.zeros_like(vector)),
        ("mean", embeddings.mean(0)),
        ("vocab_mean", seen.mean(0)),
        (11, seen[11]),
        (vector, vector),
    ):
        assert relative(information_of(model, ids, mask=mask), oracle_information(model, ids, stands_for)) < 1e-5, mask


@pytest.mark.parametrize("build", zoo.models(SOME))
def test_a_mask_that_changes_nothing_gives_exactly_zero(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, variant="kl_only", mask=int(ids[0, 3]))
    same = ids[0] == ids[0, 3]
    assert (attribution.parts["information"][same] == 0).all()
    assert (attribution.parts["information"][~same] > 0).any()
    assert attribution.diagnostics["forwards"] == int((~same).sum()) + 1  # in which all tokens are masked
