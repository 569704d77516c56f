"""What is reported beside a score: shares, drops, envelopes, additivity, and the audit."""

from contextlib import nullcontext
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import Tensor

from helpers import oracles, zoo
from helpers.asking import explain, plain_embeddings, plain_log_probs, relative
from heta_lens.methods.heta.diagnostics import SUBSETS, subsets
from heta_lens.methods.heta.score import Balance

TARGET, N = 7, 6


def found(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, **{"probes": 2} | options)


def objective(model: Any, ids: Tensor, target: Any = TARGET) -> Any:
    log_probs = plain_log_probs(model, ids)

    @torch.no_grad()
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return g


def check_audit(attribution: Any, model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> None:
    """Every set of tokens masked by the oracle; the scale fitted on one half of them, and evaluated on the other."""
    at, g = plain_embeddings(model, ids), objective(model, ids, target)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    generator = np.random.default_rng([attribution.options["seed"], *ids[0].tolist()])
    members = subsets(generator, len(at))
    order = generator.permutation(len(members))
    drops = torch.stack([oracles.drop(g, at, vector, row.nonzero().flatten().tolist()) for row in members])
    sums = torch.stack([attribution.scores[row].sum() for row in members])
    half = len(order) // 2
    fitted, evaluated = order[:half], order[half:]
    scale = oracles.best_scale(drops[fitted], sums[fitted])
    left = oracles.faithfulness_errors(drops[evaluated], scale * sums[evaluated])
    expected = {
        "raw": float(oracles.faithfulness_errors(drops, sums).mean()),
        "calibrated": float(left.mean()),
        "calibrated_standard_error": float(left.std() / len(evaluated) ** 0.5),
        "nothing": float(drops[evaluated].abs().mean()),
        "scale": float(scale),
        "subsets": len(drops),
    }
    assert attribution.diagnostics["faithfulness"] == pytest.approx(expected, rel=1e-6)
    assert attribution.diagnostics["audit"] == len(drops) == len(at) + SUBSETS


@pytest.mark.parametrize("balance", get_args(Balance))
def test_the_balanced_score_is_always_reported_beside_the_literal_one(balance: Balance) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    attribution = explain(model, ids, balance=balance)
    gate, curvature, information = (attribution.parts[name] for name in ("gate", "curvature", "information"))
    expected = gate * (curvature / curvature.sum() + information / information.sum()) / 2
    torch.testing.assert_close(attribution.diagnostics["balanced"], expected)
    if balance == "sum":
        torch.testing.assert_close(attribution.scores, expected)


@pytest.mark.slow
def test_standard_errors_are_of_what_is_random() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    errors = explain(model, ids).standard_errors
    assert errors["gate"] is None
    assert errors["information"] is None
    torch.testing.assert_close(errors["scores"], explain(model, ids).parts["gate"] * 0.5 * errors["curvature"])
    for options in ({"probes": 1}, {"norm": "exact"}, {"norm": "entrywise"}, {"variant": "kl_only"}):
        assert set(explain(model, ids, **options).standard_errors.values()) == {None}, options


SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def single_drops(model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> Tensor:
    at = plain_embeddings(model, ids)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    g = objective(model, ids, target)
    return torch.stack([oracles.drop(g, at, vector, [i]) for i in range(len(at))])


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, (7, 9)])
@pytest.mark.parametrize(("name", "build"), zoo.named(SEVERAL))
def test_drops_gap_and_envelope_are_the_oracles(name: str, build: Any, target: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), zoo.tolerance(name)
    attribution = found(model, ids, target, beta=0.3, gamma=0.6)
    facts, at = attribution.diagnostics, plain_embeddings(model, ids)
    drops = single_drops(model, ids, target=target)
    assert relative(facts["drop"], drops) < close
    gap = oracles.additivity_gap(attribution.scores, objective(model, ids, target), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=close, abs=close)
    gate, curvature, information = (attribution.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(facts["envelope"], oracles.envelope(gate, curvature, drops, 0.3, 0.6)) < close
    assert facts["envelope_share"] == oracles.envelope_share(information, drops)
    bounded = attribution.scores <= facts["envelope"]
    assert float(bounded.double().mean()) == facts["envelope_share"]


@pytest.mark.thorough
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-rotary_gqa"))
@pytest.mark.usefixtures("unchecked")
def test_the_audit_masks_sets_of_tokens_as_the_oracle_does(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    check_audit(explain(model, ids, TARGET, audit=True, variant="kl_only", seed=3, batch=5), model, ids)
    contrast = found(model, ids, (7, 9), audit=True)
    check_audit(contrast, model, ids, target=(7, 9))
    assert "against_full" not in contrast.diagnostics


@pytest.mark.thorough
@pytest.mark.parametrize("hooked", [False, True])
def test_the_audit_at_a_position_knows_the_tokens_before_it_only(hooked: bool) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N + 3)
    scale = [("blocks.0.hook_resid_post", lambda live, hook: live * 1.5)]  # noqa: ARG005
    with model.hooks(fwd_hooks=scale) if hooked else nullcontext():
        check_audit(found(model, ids, audit=True, position=N), model, ids[:, :N])
        if not hooked:
            check_audit(found(model, ids[:, :1], audit=True), model, ids[:, :1])


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "own"),
    [
        ("lr", {"rank": 2, "probes": 3, "norm": "entrywise"}),
        ("ls", {"layers": 1, "probes": 3, "seed": 4}),
        ("gn", {"probes": 3, "support": "row"}),
        ("gs", {"flow": "direct", "balance": "sum"}),
        ("win", {"window": 3, "window_gate": "per_window", "beta": 0.2, "probes": 3}),
        ("win", {"window": 3, "window_mode": "chunk", "probes": 2, "mask": torch.ones(8).double()}),
        ("lr+win", {"window": 3, "rank": 2, "probes": 2, "kl": "js"}),
        ("ls+win", {"window": 4, "layers": 1, "overlap": 0.25, "probes": 2}),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_cheaper_variant_is_audited_against_the_full_one(variant: str, own: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cheap = explain(model, ids, TARGET, variant=variant, audit=True, **own)
    drawn = {"probes"} if own.get("norm") == "entrywise" else set()  # which are for the low rank alone
    shared = {name: value for name, value in own.items() if name not in {"rank", "layers", "overlap"} | drawn}
    full = explain(model, ids, TARGET, **{k: v for k, v in shared.items() if not k.startswith("window")}).scores
    facts = cheap.diagnostics["against_full"]
    known = {"rank_correlation", "l1", "forwards", "backwards", "hvps", "checks"}
    assert facts.keys() == known | ({"near_edges"} if "win" in variant else set())
    one, other = cheap.scores, full
    ranks = np.corrcoef(rankdata(one), rankdata(other))[0, 1]
    assert facts["rank_correlation"] == pytest.approx(ranks)
    distance = (one / one.sum() - other / other.sum()).abs()
    assert facts["l1"] == pytest.approx(float(distance.sum()))
    assert facts["l1"] > 1e-3
    if "win" in variant:  # every token of so short a prompt is near an edge
        assert facts["near_edges"] == pytest.approx(float(distance.sum()) / 2)
    # What is audited is what comes without an audit.
    assert torch.equal(cheap.scores, explain(model, ids, TARGET, variant=variant, **own).scores)
