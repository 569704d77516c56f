"""The audit against the oracle: sets of tokens that are masked, and the distance from the full variant."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

import heta_lens
from helpers import zoo
from helpers.asking import explain
from helpers.masked_sets import TARGET, N, check_audit, found


@pytest.mark.slow
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|native)|hooked-rotary_gqa"))
@pytest.mark.usefixtures("unchecked")
def test_the_audit_masks_sets_of_tokens_as_the_oracle_does(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    for options in ({}, {"variant": "kl_only", "seed": 3}, {"batch": 5}):
        check_audit(explain(model, ids, TARGET, audit=True, **options), model, ids)
    check_audit(found(model, ids, (7, 9), audit=True), model, ids, target=(7, 9))
    assert "against_full" not in found(model, ids, audit=True).diagnostics


@pytest.mark.slow
@pytest.mark.parametrize("hooked", [False, True])
def test_the_audit_at_a_position_knows_the_tokens_before_it_only(hooked: bool) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N + 3)
    scale = [("blocks.0.hook_resid_post", lambda live, hook: live * 1.5)]  # noqa: ARG005
    with model.hooks(fwd_hooks=scale) if hooked else nullcontext():
        check_audit(found(model, ids, audit=True, position=N), model, ids[:, :N])
        if not hooked:
            check_audit(found(model, ids[:, :1], audit=True), model, ids[:, :1])


@pytest.mark.slow
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


@pytest.mark.slow
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
