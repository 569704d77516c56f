"""Agreement of scores with masking and patching, against examples worked by hand."""

from itertools import permutations
from typing import Any

import pytest
import torch

from helpers import oracles, zoo
from helpers.asking import plain_embeddings, plain_log_probs, predict
from helpers.evaluating import ONE_EACH, TARGET, N, demo, prediction_of
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, figures
from heta_lens.evaluation.prompt_evaluation import ask, explained
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.metrics import (
    Drops,
    additivity_gap,
    faithfulness_error,
    mean_effect,
    misattribution,
    patch_correlation,
)
from heta_lens.metrics.metric_case import MetricCache
from heta_lens.prediction.masking import SUBSETS

SCORES = torch.tensor([4.0, 3, 2, 1])
EFFECTS = torch.tensor([0.5, 0.005, 0.2, 0])


@ONE_EACH
def test_scores_of_leave_one_out_add_up_for_single_tokens(build: Any) -> None:
    asked = prediction_of(build())
    scores, drops = LeaveOneOut()(asked).scores, Drops.of(asked)
    torch.testing.assert_close(drops.each[:N], scores.cpu(), check_dtype=False, rtol=1e-4, atol=1e-6)
    found, zero = faithfulness_error(drops, scores), faithfulness_error(drops, torch.zeros(N))
    assert 0 < found["raw"] != zero["raw"] and zero["scale"] == 0
    nothing = asked.rerun().log_probs(torch.zeros(1, N, 8)).detach()
    everything = float(asked.objective(asked.log_probs) - nothing[0, TARGET])
    assert additivity_gap(drops, torch.zeros(N)) == pytest.approx(abs(everything), rel=1e-6)
    assert additivity_gap(drops, torch.full((N,), everything / N)) == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, (TARGET, 9)])
def test_faithfulness_is_the_oracles(target: Any) -> None:
    """Every set of tokens masked by the oracle; the scale fitted on one half of them, and evaluated on the other."""
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    at, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)

    @torch.no_grad()
    def g(e: torch.Tensor) -> torch.Tensor:
        found = log_probs(e)
        return found[target[0]] - found[target[1]] if isinstance(target, tuple) else found[target]

    drops, scores = Drops.of(predict(model, ids, target), seed=3), torch.linspace(-0.1, 0.4, N).double()
    masked = [oracles.drop(g, at, torch.zeros_like(at[0]), row.nonzero().flatten().tolist()) for row in drops.sets]
    each, sums = torch.stack(masked), torch.stack([scores[row].sum() for row in drops.sets])
    assert len(each) == N + SUBSETS
    half = len(drops.order) // 2
    fitted, evaluated = drops.order[:half], drops.order[half:]
    scale = oracles.best_scale(each[fitted], sums[fitted])
    left = oracles.faithfulness_errors(each[evaluated], scale * sums[evaluated])
    expected = {
        "raw": float(oracles.faithfulness_errors(each, sums).mean()),
        "calibrated": float(left.mean()),
        "calibrated_standard_error": float(left.std() / len(evaluated) ** 0.5),
        "nothing": float(each[evaluated].abs().mean()),
        "scale": float(scale),
        "subsets": len(each),
    }
    assert faithfulness_error(drops, scores) == pytest.approx(expected, rel=1e-6)


def test_the_worked_example() -> None:
    assert patch_correlation(SCORES, EFFECTS, signed=True) == pytest.approx(0.8)
    assert misattribution(SCORES, EFFECTS, k=4, signed=True) == 0.5 == misattribution(SCORES, EFFECTS, signed=True)
    assert mean_effect(SCORES, EFFECTS, k=2) == pytest.approx(0.2525)
    assert mean_effect(SCORES, EFFECTS) == pytest.approx(0.705 / 4)
    assert mean_effect(torch.ones(4), EFFECTS, 1) == 0.5, "of equal scores the first is taken"


def test_effects_are_the_best_scores() -> None:
    assert patch_correlation(EFFECTS, EFFECTS, signed=True) == pytest.approx(1)
    assert patch_correlation(-EFFECTS, EFFECTS, signed=True) == pytest.approx(-1)
    for order in permutations(range(4)):
        scores = torch.tensor(order).double()
        for k in (1, 2, 3):
            assert mean_effect(scores, EFFECTS.double(), k) <= mean_effect(EFFECTS, EFFECTS, k) + 1e-7
            assert misattribution(scores, EFFECTS.double(), k, signed=True) >= misattribution(
                EFFECTS, EFFECTS, k, signed=True
            )


def test_scores_without_signs_are_compared_with_the_sizes_of_effects() -> None:
    against = torch.tensor([-0.5, 0.005, 0.2, 0])
    assert patch_correlation(SCORES, against, signed=False) == pytest.approx(0.8)
    assert patch_correlation(SCORES, against, signed=True) == pytest.approx(-0.4)
    assert misattribution(SCORES, against, k=2, signed=False) == 0.5
    assert misattribution(SCORES, against, k=2, signed=True) == 1
    assert mean_effect(SCORES, against, 1) == -0.5, "which keeps its sign"


@pytest.mark.parametrize("method", ["leave_one_out effect=kl", "leave_one_out"])
def test_the_metrics_know_if_an_attribution_is_signed(method: str) -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case = explained(demo(), instance, MetricCache(ask(demo(), instance)), Entry.read(method).ready)
    (values, _), at = figures(case, ["patch_correlation", "misattribution"]), case.candidates
    effects, signed = case.cached.edge_effects, "kl" not in method
    assert case.attribution.signed == signed and effects[at].min() < 0
    expected = oracles.agreement_with_effects(case.scores[at], effects[at], 10, 0.01, signed=signed)
    assert (values["patch_correlation"], values["misattribution"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (patch_correlation, (SCORES, EFFECTS[:3]), "3 effects for 4 scores"),
        (misattribution, (SCORES, EFFECTS / 0), r"effects\[0\] is inf"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_effects_are_refused(function: Any, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*given, signed=True)
