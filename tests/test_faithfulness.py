"""What scores are worth: do they add up, what bounds them, how far is a cheaper variant from the full one."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import variant_oracles as variants
from asking import doubts_allowed, explain, plain_embeddings, plain_log_probs, predict, relative
from scipy.stats import rankdata
from test_curvature import named
from test_families import tolerance
from torch import Tensor

import heta_lens
import zoo
from heta_lens.cached import Activations
from heta_lens.diagnostics import agreement
from heta_lens.faithfulness import SUBSETS, best_scale, envelope, faithfulness, subsets
from heta_lens.lens import Lens
from heta_lens.prediction import predictions

TARGET, N = 7, 6
SEVERAL = "bridge-(gpt2|llama|native)|hooked-(rotary_gqa|alibi)"


def found(model: Any, ids: Tensor, target: Any = TARGET, **options: Any) -> Any:
    return explain(model, ids, target, **{"probes": 2} | options)


def objective(model: Any, ids: Tensor, target: Any = TARGET) -> Any:
    log_probs = plain_log_probs(model, ids)

    @torch.no_grad()
    def g(e: Tensor) -> Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    return g


def single_drops(model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> Tensor:
    at = plain_embeddings(model, ids)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    g = objective(model, ids, target)
    return torch.stack([variants.drop(g, at, vector, [i]) for i in range(len(at))])


# ------------------------------------------------------------------------------------------- without further runs
@pytest.mark.parametrize("target", [TARGET, (7, 9)])
@pytest.mark.parametrize(("name", "build"), named(SEVERAL))
def test_drops_gap_and_envelope_are_the_oracles(name: str, build: Any, target: Any) -> None:
    model = build()
    ids, close = zoo.prompt(model, N), tolerance(name)
    attribution = found(model, ids, target, beta=0.3, gamma=0.6)
    facts, at = attribution.diagnostics, plain_embeddings(model, ids)
    drops = single_drops(model, ids, target=target)
    assert relative(facts["drop"], drops) < close
    gap = variants.additivity_gap(attribution.scores, objective(model, ids, target), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=close, abs=close)
    gate, curvature, information = (attribution.parts[part] for part in ("gate", "curvature", "information"))
    assert relative(facts["envelope"], variants.envelope(gate, curvature, drops, 0.3, 0.6)) < close
    assert facts["envelope_share"] == variants.envelope_share(information, drops)
    bounded = attribution.scores <= facts["envelope"]
    assert float(bounded.double().mean()) == facts["envelope_share"]


@pytest.mark.parametrize("mask", ["mean", "vocab_mean", 9])
def test_what_masks_a_token_masks_all_of_them(mask: Any) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    at, table = plain_embeddings(model, ids), model.embed.W_E.detach()
    vector = {"mean": at.mean(0), "vocab_mean": table.mean(0), 9: table[9]}[mask]
    attribution = found(model, ids, mask=mask, audit=True)
    gap = variants.additivity_gap(attribution.scores, objective(model, ids), at, vector)
    assert attribution.diagnostics["additivity_gap"] == pytest.approx(float(gap), rel=1e-8)
    assert relative(attribution.diagnostics["drop"], single_drops(model, ids, vector)) < 1e-8
    check_audit(attribution, model, ids, vector)


@pytest.mark.parametrize("variant", ["transition_only", "hessian_only", "kl_only", "no_gate", "gs", "gn"])
def test_every_variant_says_how_far_it_is_from_adding_up(variant: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    attribution = explain(model, ids, TARGET, variant=variant)
    at, facts = plain_embeddings(model, ids), attribution.diagnostics
    gap = variants.additivity_gap(attribution.scores, objective(model, ids), at, torch.zeros_like(at[0]))
    assert facts["additivity_gap"] == pytest.approx(float(gap), rel=1e-8)
    without_information = variant in ("transition_only", "hessian_only")
    for name in ("drop", "envelope", "envelope_share"):
        assert (name in facts) != without_information, name
    if variant == "kl_only":
        gain = attribution.parts["gate"] * facts["drop"].clamp(min=0)
        torch.testing.assert_close(facts["envelope"], gain)
    assert "faithfulness" not in facts and "against_full" not in facts


def test_every_target_of_a_prompt_has_its_own_drops_and_gap() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    cache = model.run_with_cache(ids)[1]
    lens = Lens.of(cache)
    with lens.undisturbed():
        cached = Activations.of(cache)
        both = predictions(lens, cached, {3: 7, N: 9}, tokens=ids, follow=True)
    with doubts_allowed():
        results = heta_lens.Heta(probes=2).each(both)
    for attribution, n, target in zip(results, (3, N), (7, 9), strict=True):
        alone = found(model, ids[:, :n], target).diagnostics
        assert relative(attribution.diagnostics["drop"], alone["drop"]) < 1e-8
        assert attribution.diagnostics["additivity_gap"] == pytest.approx(alone["additivity_gap"], rel=1e-8)
        assert relative(attribution.diagnostics["envelope"], alone["envelope"]) < 1e-8


# ------------------------------------------------------------------------------------------------------ the audit
def check_audit(attribution: Any, model: Any, ids: Tensor, vector: Tensor | None = None, target: Any = TARGET) -> None:
    """Every set of tokens masked by the oracle; the scale fitted on one half of the sets, and judged on the other."""
    at, g = plain_embeddings(model, ids), objective(model, ids, target)
    vector = torch.zeros_like(at[0]) if vector is None else vector
    members = subsets(attribution.options["seed"], len(at))
    drops = torch.stack([variants.drop(g, at, vector, row.nonzero().flatten().tolist()) for row in members])
    sums = torch.stack([attribution.scores[row].sum() for row in members])
    order = np.random.default_rng([attribution.options["seed"], len(drops)]).permutation(len(drops))
    half = len(order) // 2
    fitted, judged = order[:half], order[half:]
    scale = variants.best_scale(drops[fitted], sums[fitted])
    left = variants.faithfulness_errors(drops[judged], scale * sums[judged])
    expected = {
        "raw": float(variants.faithfulness_errors(drops, sums).mean()),
        "calibrated": float(left.mean()),
        "calibrated_standard_error": float(left.std() / len(judged) ** 0.5),
        "nothing": float(drops[judged].abs().mean()),
        "scale": float(scale),
        "subsets": len(drops),
    }
    assert attribution.diagnostics["faithfulness"] == pytest.approx(expected, rel=1e-6)
    assert attribution.diagnostics["audit"] == len(drops) == len(at) + SUBSETS


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-rotary_gqa"))
@pytest.mark.usefixtures("unchecked")
def test_the_audit_masks_sets_of_tokens_as_the_oracle_does(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    for options in ({}, {"variant": "kl_only", "seed": 3}, {"batch": 5}):
        check_audit(explain(model, ids, TARGET, audit=True, **options), model, ids)
    check_audit(found(model, ids, (7, 9), audit=True), model, ids, target=(7, 9))
    assert "against_full" not in found(model, ids, audit=True).diagnostics


@pytest.mark.parametrize("hooked", [False, True])
def test_the_audit_at_a_position_knows_the_tokens_before_it_only(hooked: bool) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N + 3)
    scale = [("blocks.0.hook_resid_post", lambda live, hook: live * 1.5)]  # noqa: ARG005
    with model.hooks(fwd_hooks=scale) if hooked else nullcontext():
        check_audit(found(model, ids, audit=True, position=N), model, ids[:, :N])
        if not hooked:
            check_audit(found(model, ids[:, :1], audit=True), model, ids[:, :1])


@pytest.mark.parametrize(
    ("variant", "own"),
    [
        ("lr", {"rank": 2, "probes": 3, "norm": "entrywise"}),
        ("ls", {"layers": 1, "probes": 3, "seed": 4}),
        ("gn", {"probes": 3, "support": "row"}),
        ("gs", {"flow": "direct", "balance": "sum"}),
        ("win", {"window": 3, "window_gate": "per_window", "beta": 0.2, "probes": 3}),
        ("win", {"window": 3, "window_mode": "chunk", "window_gate": "per_window", "mask": torch.ones(8).double()}),
        ("lr+win", {"window": 3, "rank": 2, "kl": "js"}),
        ("ls+win", {"window": 4, "layers": 1, "overlap": 0.25, "interactions": False}),
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


def test_a_variant_that_leaves_nothing_out_is_no_different_from_the_full_one() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    facts = found(model, ids, variant="lr", audit=True).diagnostics["against_full"]
    assert facts["rank_correlation"] == pytest.approx(1) and facts["l1"] < 1e-10
    facts = found(model, ids, variant="win", audit=True).diagnostics["against_full"]
    assert facts["l1"] == facts["near_edges"] == 0


def test_tokens_far_from_every_edge_do_not_count_as_near_one() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 60)
    how = {"window": 30, "overlap": 0.0, "window_gate": "per_window", "window_mode": "restrict", "beta": 0}
    cheap = explain(model, ids, TARGET, variant="win", audit=True, **how)
    full = explain(model, ids, TARGET, beta=0).scores
    distance = (cheap.scores / cheap.scores.sum() - full / full.sum()).abs()
    facts = cheap.diagnostics["against_full"]
    assert facts["near_edges"] == pytest.approx(float(distance[14:46].sum()) / 2, rel=1e-6)
    assert facts["near_edges"] < 0.99 * facts["l1"] / 2


@pytest.mark.parametrize("gate", ["global", "per_window"])
def test_frozen_windows_have_their_edges_where_tokens_change_windows(gate: str) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 60)
    how = {"window": 40, "overlap": 0.5, "window_gate": gate}  # 0:40 and 20:60 meet at 30
    cheap = explain(model, ids, TARGET, variant="win", audit=True, **how, probes=2)
    full = explain(model, ids, TARGET, probes=2).scores
    distance = (cheap.scores / cheap.scores.sum() - full / full.sum()).abs()
    near = distance[14:46] if gate == "global" else distance[4:56]
    assert cheap.diagnostics["against_full"]["near_edges"] == pytest.approx(float(near.sum()) / 2, rel=1e-5)


def test_an_audit_of_a_weak_part_warns_once() -> None:
    model = zoo.bridge("gpt2")
    with pytest.warns(UserWarning, match="makes up less than 1 %") as warned:
        heta_lens.Heta(variant="lr", gamma=0.001, audit=True)(predict(model, zoo.prompt(model, 4)))
    assert len(warned) == 1


def test_an_audit_can_be_kept_and_shown(tmp_path: Path) -> None:
    model = zoo.bridge("gpt2")
    saved = found(model, zoo.prompt(model, N), variant="lr", rank=2, audit=True)
    saved.save(tmp_path / "audit")
    loaded = heta_lens.Attribution.load(tmp_path / "audit")
    for name in ("faithfulness", "against_full", "envelope_share", "additivity_gap", "tail_energy"):
        assert loaded.diagnostics[name] == saved.diagnostics[name], name
    rest = loaded.without([1])
    for name in ("drop", "envelope", "balanced"):
        assert torch.equal(rest.diagnostics[name], saved.diagnostics[name][[0, 2, 3, 4, 5]]), name


# --------------------------------------------------------------------------------------------------- of the core
def test_subsets_are_every_token_and_random_sets_of_all_sizes() -> None:
    members = subsets(0, 5, 3000)
    assert torch.equal(members[:5], torch.eye(5, dtype=torch.bool))
    sizes = members[5:].sum(1)
    assert [int((sizes == size).sum()) for size in range(7)] == [0, *[pytest.approx(600, abs=90)] * 5, 0]
    assert members[5:].double().mean(0).tolist() == pytest.approx([0.6] * 5, abs=0.04)
    assert torch.equal(subsets(0, 5), subsets(0, 5)) and not torch.equal(subsets(0, 5), subsets(1, 5))
    assert subsets(0, 1).all() and subsets(0, 9).shape == (9 + SUBSETS, 9)


def test_scores_that_add_up_have_no_error_at_any_scale() -> None:
    slope = torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    members = subsets(0, 6).double()
    exact = faithfulness(members @ slope, members @ slope, 0)
    assert (exact["raw"], exact["calibrated"], exact["scale"]) == pytest.approx((0, 0, 1), abs=1e-12)
    scaled = faithfulness(members @ slope, members @ slope * 4, 0)
    assert scaled["calibrated"] == pytest.approx(0, abs=1e-12) and scaled["scale"] == pytest.approx(0.25)
    assert scaled["raw"] == pytest.approx(float(3 * (members @ slope).mean()))
    opposed = faithfulness(members @ slope, -(members @ slope), 0)
    assert opposed["scale"] == 0 and opposed["calibrated"] == opposed["nothing"]
    assert faithfulness(members @ slope, torch.zeros(len(members)).double(), 0)["scale"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_best_scale_is_the_oracles(seed: int) -> None:
    drops, sums = torch.randn(2, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert best_scale(drops, sums) == pytest.approx(float(variants.best_scale(drops, sums)))


def test_the_envelope_by_hand() -> None:
    information, drop = torch.tensor([0.5, 0.2, 0.1, 0.0]), torch.tensor([0.5, 0.1, -3.0, -1.0])
    gain, share = envelope(information, drop)
    assert gain.tolist() == [0.5, pytest.approx(0.1), 0.0, 0.0]
    assert share == 0.5


def test_agreement_by_hand() -> None:
    found = agreement(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([4.0, 2.0, 10.0]))
    assert found == pytest.approx({"rank_correlation": 0.5, "l1": 1 / 8 + 1 / 8})
    assert np.isnan(agreement(torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))["rank_correlation"])


@pytest.mark.parametrize("balance", ["none", "sum", "max"])
def test_the_envelope_is_on_the_scale_of_the_scores(balance: str) -> None:
    """So that it bounds those whose information is no more than their drop, and only those."""
    model = zoo.bridge("gpt2")
    attribution = explain(model, zoo.prompt(model, 6), 7, probes=2, balance=balance)
    facts = attribution.diagnostics
    bounded = attribution.parts["information"] <= facts["drop"].clamp(min=0)
    assert torch.equal(attribution.scores <= facts["envelope"], bounded)
    assert facts["envelope_share"] == int(bounded.sum()) / 6
