"""The study of HETA's setting: what its candidates, measures and prompts are."""

import json
from functools import cache
from itertools import islice
from typing import get_args

import numpy as np
import pytest
import torch

import heta_lens
from benchmarks.copied_words.build import NEAREST, P_MIN, SWAP_RATIO, TOKENS
from benchmarks.study import contest, local_families
from benchmarks.study.candidates import CANDIDATES, KL_ONLY, LITERAL, Candidate
from benchmarks.study.choice import ranks_of
from benchmarks.study.families import FAMILIES, STORIES, Case, copied, recall
from benchmarks.study.interventions import MEASURES, measures
from benchmarks.study.parts import Measured, contrasted, curvatures, gates, gradient_gate, informations, measured
from heta_lens.data.recall import Split
from heta_lens.metrics import abpc, curve, mean_effect, patch_correlation
from heta_lens.metrics.scores import ordinary
from heta_lens.model.hooks import values_name
from heta_lens.prediction.patching import effects


@cache
def case() -> Case:
    return next(FAMILIES["recall"].cases("recall", "dev", 1))


@cache
def parts() -> Measured:
    return measured(case().prediction, ("zero", "mean"), ("block", "gs"))


@pytest.mark.parametrize(
    ("candidate", "options"),
    [
        (LITERAL, {}),
        (KL_ONLY, {"variant": "kl_only"}),
        (Candidate(gate="rollout2", balance="sum"), {"flow": "rollout", "value_norm": 2, "balance": "sum"}),
        (
            Candidate(information="mean/js", beta=0.2, gamma=0.8),
            {"mask": "mean", "kl": "js", "beta": 0.2, "gamma": 0.8},
        ),
        (
            Candidate(gate="direct1", curvature="gs", beta=1.0, gamma=0.0),
            {"flow": "direct", "variant": "gs", "beta": 1.0, "gamma": 0.0},
        ),
        (Candidate(gate="suffix1", beta=0.0, gamma=0.0), {"variant": "transition_only"}),
    ],
)
@pytest.mark.slow
def test_a_candidate_is_heta_with_its_options(candidate: Candidate, options: dict[str, object]) -> None:
    expected = heta_lens.Heta(**options, progress=False)(case().prediction).scores  # type: ignore[arg-type]
    assert torch.allclose(candidate.score(parts()), expected, rtol=1e-4, atol=1e-6 * float(expected.max()))


def test_candidates_are_distinct_and_hold_what_they_change() -> None:
    assert len({one.name for one in CANDIDATES}) == len(CANDIDATES) == len(set(CANDIDATES))
    assert LITERAL in CANDIDATES and KL_ONLY.simple in CANDIDATES
    assert all(one.simple == one for one in CANDIDATES)


@pytest.mark.slow
def test_costs_are_those_of_the_parts_in_use() -> None:
    found = measured(case().prediction, ("zero",), ("block",))
    n = len(case().prediction)
    assert KL_ONLY.runs(found) == n
    assert LITERAL.runs(found) == n + found.curvatures["block"].runs > n + 2 * 160
    assert Candidate(gate="gradient", beta=0.0, gamma=0.0).runs(found) == 3


@pytest.mark.slow
def test_a_tempered_gate_is_a_power_of_it() -> None:
    plain, tempered = (Candidate(power=power, beta=0.0, gamma=1.0).score(parts()) for power in (1.0, 0.5))
    assert torch.allclose(tempered * parts().gates["suffix1"].values ** 0.5, plain)


@pytest.mark.slow
def test_the_gradient_gate_is_what_values_add_to_first_order() -> None:
    prediction, step = case().prediction, 1e-3
    adapter = prediction.adapter
    shares = torch.zeros(len(prediction), dtype=torch.float64)
    heads, layers = adapter.model.cfg.n_heads, adapter.layers
    with prediction.running(), torch.no_grad():
        for layer in range(layers):
            for head in range(heads):
                copies = []
                for sign in (1, -1):

                    def grown(live: torch.Tensor, head: int = head, sign: int = sign) -> torch.Tensor:
                        scaled = live.clone()
                        rows = torch.arange(len(live))
                        scaled[rows, rows, head] *= 1 + sign * step
                        return scaled

                    with adapter.hooked([(values_name(layer), grown)]):
                        states = prediction.embeddings.expand(len(prediction), -1, -1)
                        logits = prediction.logits_from(0)(states)
                    copies.append(logits.double().log_softmax(-1)[:, prediction.target])
                shares += ((copies[0] - copies[1]) / (2 * step)).abs()
    expected = shares / shares.sum()
    found = gradient_gate(prediction).double()
    assert float(found.sum()) == pytest.approx(1)
    assert float((found - expected).abs().sum()) < 0.05


def test_the_mask_other_is_the_embedding_of_other_tokens() -> None:
    found = informations(case().prediction, ("zero", "other"))
    assert found["other/js"].runs == 4 * found["zero/js"].runs
    assert not torch.allclose(found["other/js"].values, found["zero/js"].values)
    assert (found["other/js"].values <= np.log(2)).all()


@pytest.mark.slow
def test_the_contrast_is_with_the_strongest_other_token() -> None:
    prediction = case().prediction
    first, second = prediction.log_probs.topk(2).indices.tolist()
    assert contrasted(prediction).target == (first, second)
    other = curvatures(prediction, ("contrast",))["contrast"].values
    assert not torch.allclose(other, parts().curvatures["block"].values)


@pytest.mark.slow
def test_measures_are_those_of_the_library() -> None:
    prediction, places = case().prediction, ordinary(case().prediction)
    scores = torch.stack([parts().gates["suffix1"].values, torch.rand(len(prediction))])
    found = measures(case(), scores)
    ways = [
        effects(prediction),
        effects(prediction, how="input", mask="mean"),
        effects(prediction, how="resid_patch", layer=3),
        effects(prediction, how="input", reference=case().other),
    ]
    for row, own in zip(found, scores.double(), strict=True):
        expected = [patch_correlation(own, way.double(), candidates=places) for way in ways]
        expected += [mean_effect(own, way.double(), 5, candidates=places) for way in ways]
        for ablate in ("mask", "remove"):
            curves = (curve(prediction, own, order=order, ablate=ablate) for order in ("morf", "lerf"))  # type: ignore[arg-type]
            expected.append(abpc(*curves))
        assert row.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert found.shape == (2, len(MEASURES))


def test_the_best_candidate_has_the_lowest_mean_rank() -> None:
    means = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 0.5]])
    assert ranks_of(means).tolist() == [1.5, 1.5, 3.0]


@pytest.mark.parametrize("prompts", [local_families.lists, local_families.pronouns])
def test_dev_and_test_have_no_wording_in_common(prompts: object) -> None:
    dev, test = ([*islice(prompts(split), 40)] for split in ("dev", "test"))  # type: ignore[operator]
    number = [{one.template.split(",")[0] for one in some} for some in (dev, test)]
    assert len(number[0]) == len(number[1]) == 6 and not number[0] & number[1]
    for one in dev:
        told = {one.text[start:stop] for start, stop in one.evidence}
        assert len(told) == 1 and one.text != one.counterfactual
        assert (one.foil is None and f" {told.pop()}" == one.target) or one.foil in (" he", " she")


def test_recall_asks_after_stories_of_all_sizes() -> None:
    some = [*islice(recall(2, "dev"), 8)]
    assert all(len(one.evidence) == 2 for one in some)
    assert len({one.id for one in some}) == 8


@pytest.mark.slow
def test_the_contest_model_knows_who_has_the_highest_number() -> None:
    cases = [*FAMILIES["contest"].cases("contest", "test", 50)]
    drawn = [*islice(contest.instances("test"), 50)]
    assert len({case.id for case in cases} & {one.id for one in drawn}) >= 48
    for one in cases[:5]:
        text, spans = one.prediction.located
        told = "".join(text[spans[place].start : spans[place].stop] for place in one.evidence).split()
        assert told[0] == str(one.prediction.target_text).strip()
        assert int(told[1]) == max(
            int(word) for word in text.replace(",", " ").replace(".", " ").split() if word.isdigit()
        )


def test_gates_are_of_sum_one() -> None:
    assert all(float(gate.values.sum()) == pytest.approx(1, rel=1e-4) for gate in gates(case().prediction).values())


def test_more_stories_with_copied_words_are_others_by_the_same_rule() -> None:
    first, more = ([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in STORIES)
    texts, ids = ([one[key] for one in first + more] for key in ("text", "id"))
    assert len(set(texts)) == len(set(ids)) == len(texts)
    for one in more:
        assert one["p"] > P_MIN and one["p_swapped"] <= SWAP_RATIO * one["p"]
        assert len(one["ids"]) in TOKENS and one["distance"] >= NEAREST
        assert [place for place, token in enumerate(one["ids"]) if token == one["target_id"]] == one["source_positions"]


def test_copied_words_begin_with_those_of_the_study() -> None:
    first = {json.loads(line)["id"] for line in STORIES[0].read_text(encoding="utf-8").splitlines()}
    for split in get_args(Split):
        own = [prompt.id in first for prompt in copied(split)]
        assert own == sorted(own, reverse=True) and 70 < sum(own) < len(own)
