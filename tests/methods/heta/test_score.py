"""Eq. 4, summed, balanced and geometric, against the oracle; and how sure a score is."""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative
from helpers.heta import OWN
from heta_lens import Attribution, Heta
from heta_lens._util.numerics import student_t
from heta_lens.methods.heta import probes
from heta_lens.methods.heta.score import Balance, Combine, Parts


def parts(seed: int = 0, n: int = 6, samples: int = 5, beta: float = 0.5, gamma: float = 0.25) -> Parts:
    """Random parts, of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    gate, information = torch.rand(2, n, generator=generator, dtype=torch.float64)
    curvature = 100 * torch.rand(samples, n, generator=generator, dtype=torch.float64)
    return Parts(gate / gate.sum(), curvature, information, beta, gamma)


def test_eq4_and_its_balanced_forms_equal_the_oracle() -> None:
    own = parts()
    arguments = own.gate, own.curvature.mean(0), own.information, 0.5, 0.25
    torch.testing.assert_close(own.score("none"), oracles.eq4(*arguments), rtol=1e-14, atol=0)
    for by in ("sum", "max"):
        torch.testing.assert_close(own.score(by), oracles.balanced(*arguments, by=by), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("beta", "gamma"), [(0.5, 0.5), (3.0, 1.0), (0.2, 2.0)])
def test_the_geometric_score_equals_the_oracle_and_no_scale_changes_its_ranks(beta: float, gamma: float) -> None:
    own = replace(parts(beta=beta, gamma=gamma), combine="geometric")
    signs = torch.tensor([1, -1, 1, 0, -1, 1])
    own = replace(own, information=own.information * signs)
    expected = oracles.geometric(own.gate, own.curvature.mean(0), own.information, beta, gamma)
    torch.testing.assert_close(own.score("none"), expected, rtol=1e-14, atol=0)
    assert torch.equal(own.score("sum"), own.score("none"))
    scaled = replace(own, curvature=1e6 * own.curvature, information=1e-3 * own.information)
    assert scaled.score("none").argsort().tolist() == expected.argsort().tolist()


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.parametrize(("combine", "balance"), [*product(["sum"], get_args(Balance)), ("geometric", "none")])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.usefixtures("unchecked")
def test_standard_errors_equal_the_spread_over_repeats(combine: Combine, balance: Balance, shared: bool) -> None:
    """Whether each token has its own probes or (row support) all share them, and whatever they are divided by."""
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1, 2, 3, 4, 5, 9], dtype=torch.float64)

    def draw() -> Parts:
        noise = torch.randn(10, 1 if shared else 6, generator=generator, dtype=torch.float64)
        own = torch.randn(10, 6, generator=generator, dtype=torch.float64)
        curvature = size * (4 + 0.5 * noise + 0.2 * own)
        return Parts(torch.full((6,), 1 / 6, dtype=torch.float64), curvature, size / 9, 0.5, 0.5)

    repeats = [replace(draw(), combine=combine) for _ in range(250)]
    spread = torch.stack([repeat.score(balance) for repeat in repeats]).std(0)
    claimed = torch.stack([repeat.standard_errors(balance)["scores"] for repeat in repeats]).square().mean(0).sqrt()
    steady = spread < 1e-3 * spread.max()  # the largest part divided by itself does not vary
    assert relative(claimed[~steady], spread[~steady]) < 0.1


N = 5
geometric = partial(explain, combine="geometric")
KINDS = "bridge-(gpt2|llama|native)|hooked-rotary_gqa"


def total(logits: Tensor) -> Tensor:
    return logits[..., 5] - logits[..., :4].logsumexp(-1)


TARGETS: dict[str, tuple[Any, Any]] = {  # a target, and g of the log-probabilities
    "token": (7, lambda log_probs: log_probs[7]),
    "set": (frozenset({3, 7}), lambda log_probs: log_probs[[3, 7]].logsumexp(-1)),
    "contrast": ((7, 9), lambda log_probs: log_probs[7] - log_probs[9]),
    "function": (total, total),  # of logits and log-probabilities alike, as it is a difference
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("build", zoo.models(KINDS))
def test_the_score_of_every_target_equals_the_oracle(build: Any, kind: str) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    target, of = TARGETS[kind]
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    zero, ones = torch.zeros_like(embeddings[0]), embeddings.new_ones(N)

    def g(states: Tensor) -> Tensor:
        return of(log_probs(states))

    with torch.no_grad():
        moved = oracles.information(log_probs, embeddings, zero, "orig_masked")
        masked = [embeddings.clone().index_fill_(0, torch.tensor([i]), 0) for i in range(N)]
        effect = torch.stack([g(embeddings) - g(own) for own in masked])
    squared = oracles.squared_gradient(g, embeddings)
    own = geometric(model, ids, target, variant="gs", gate="none", beta=0.25, gamma=0.75)
    assert relative(own.scores, oracles.geometric(ones, squared, moved, 0.25, 0.75)) < 1e-6
    signed = geometric(model, ids, target, variant="gs", gate="uniform", information="target")
    assert relative(signed.scores, oracles.geometric(ones / N, squared, effect, 0.5, 0.5)) < 1e-6
    assert (signed.signed, own.signed) == (True, False)
    assert "whole next-token" in own.diagnostics["note"]
    assert "whole next-token" not in signed.diagnostics["note"]
    summed = explain(model, ids, target, variant="kl_only", gate="none", information="target")
    assert relative(summed.scores, effect.abs()) < 1e-6 and not summed.signed


@pytest.mark.sample(quick=2, test=4)
@pytest.mark.parametrize("gate", ["flow", "uniform", "none"])
@pytest.mark.parametrize("variant", ["full", "lr", "ls", "win", "lr+win", "ls+win", "gs", "gn"])
def test_the_score_is_made_of_its_parts_with_every_variant(variant: str, gate: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 7)
    options = {name: value for name, value in OWN[variant].items() if (name, gate) != ("window_gate", gate)}
    if gate != "flow":
        options.pop("window_gate", None)
    own = geometric(model, ids, 7, variant=variant, gate=gate, gamma=1.5, **options)
    parts = [own.parts[name] for name in ("gate", "curvature", "information")]
    torch.testing.assert_close(own.scores, oracles.geometric(*parts, 0.5, 1.5), rtol=1e-9, atol=0)
    if gate != "flow":
        assert own.parts["gate"].tolist() == [1.0 if gate == "none" else pytest.approx(1 / 7)] * 7
    summed = explain(model, ids, 7, variant=variant, gate=gate, gamma=1.5, **options)
    for name, part in own.parts.items():
        torch.testing.assert_close(part, summed.parts[name])


def test_a_contrast_is_answered_with_a_direction() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    one, other = (geometric(model, ids, pair, information="target", probes=2) for pair in ((7, 9), (9, 7)))
    torch.testing.assert_close(one.scores, -other.scores)
    assert (one.scores < 0).any() and (one.scores > 0).any()
    assert any("above 0 speaks for the target" in note for note in one.notes)


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_rounding_is_not_lifted_by_the_root(batch: int) -> None:
    """Tokens beyond the reach of sliding windows change nothing, and differ from nothing by rounding."""
    model = zoo.bridge("mistral", torch.float32)
    ids = zoo.prompt(model, 30)
    reached = 2 * (zoo.SLIDING_WINDOW - 1) + 1
    options: dict[str, Any] = {"variant": "gs", "batch": batch}
    own = geometric(model, ids, 7, **options)
    assert not own.scores[:-reached].any() and not own.parts["information"][:-reached].any()
    assert own.scores[-reached:].all()
    assert f"masking {30 - reached} of 30 tokens changes no more than rounding does" in own.diagnostics["note"]
    signed = geometric(model, ids, 7, information="target", **options)
    assert not signed.scores[:-reached].any()


def test_intervals_are_the_transformed_ends_of_the_curvatures_interval(tmp_path: Path) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 8)
    own = geometric(model, ids, (7, 9), information="target", probes=3, beta=1.0, gamma=2.0)
    assert (own.scores < 0).any()
    for confidence in (0.5, 0.95):
        reach = student_t(3, confidence) * own.standard_errors["curvature"]
        curvature = own.parts["curvature"]
        ends = [
            oracles.geometric(
                own.parts["gate"], (curvature + side * reach).clamp(min=0), own.parts["information"], 1, 2
            )
            for side in (-1, 1)
        ]
        low, high = own.interval(confidence)
        torch.testing.assert_close(low, torch.stack(ends).amin(0), rtol=1e-9, atol=1e-15)
        torch.testing.assert_close(high, torch.stack(ends).amax(0), rtol=1e-9, atol=1e-15)
        own.save(tmp_path / "own.safetensors")
        loaded = Attribution.load(tmp_path / "own.safetensors").without([0]).interval(confidence)
        torch.testing.assert_close(loaded, (low[1:], high[1:]))


def test_tokens_with_a_large_information_are_probed_alone_where_cross_talk_hides_their_curvature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "MOST_CROSS_TALK", 1e-6)  # so that all with any cross-talk are capped
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 20)
    own, alone = (geometric(model, ids, 7, probes=4, groups=groups) for groups in (4, None))
    large = own.parts["information"] > own.parts["information"].mean()
    shared = explain(model, ids, 7, probes=4, groups=4)
    curvature, capped = own.parts["curvature"], shared.diagnostics["cross_talk"] != 0
    assert (large & capped).any() and (~large & capped).any()
    torch.testing.assert_close(curvature[large & capped], alone.parts["curvature"][large & capped])
    torch.testing.assert_close(curvature[~(large & capped)], shared.parts["curvature"][~(large & capped)])
    assert own.diagnostics["hvps"] == shared.diagnostics["hvps"] + 4 * int((large & capped).sum())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, r"which variant='full' weighs by \(0\.?0?, 0\.5\): use"),
        ({"variant": "kl_only"}, r"which variant='kl_only' weighs by \(0, 1\): use"),
        ({"variant": "hessian_only"}, r"which variant='hessian_only' weighs by \(1, 0\): use"),
        ({"combine": "product"}, "combine='product' is not one of 'sum', 'geometric'"),
        ({"gate": "open"}, "gate='open' is not one of 'flow', 'uniform', 'none'"),
    ],
)
def test_options_that_contradict_it_are_refused(options: dict[str, Any], message: str) -> None:
    make: Any = Heta
    with pytest.raises(ValueError, match=message):
        make(**{"combine": "geometric", **options})
