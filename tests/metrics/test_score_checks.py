"""What metrics are given: every public one refuses scores that are no finite number per token, and wrong positions."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict
from heta_lens import metrics
from heta_lens.metrics import Curve, Drops, Setting

pytestmark = [pytest.mark.usefixtures("unchecked")]

N, TARGET = 6, 7
EFFECTS = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.6])
TEXTS, LABELS = [[1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 1], [1, 1, 2, 2, 3, 3], [6, 5, 4, 3, 2, 1]] * 2, [0, 1] * 4


@pytest.fixture(scope="module")
def asked() -> Any:
    model = zoo.bridge("gpt2")
    return predict(model, zoo.prompt(model, N), TARGET)


def drops(seed: int = 0) -> Drops:
    sets = torch.rand(40, N, generator=torch.Generator().manual_seed(seed)) < 0.5
    each = torch.rand(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Drops(sets, each, 1.0, torch.arange(40))


# Each with a tensor of scores in place of good ones, and the prediction they explain.
OF_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    "additivity_gap": lambda scores, _: metrics.additivity_gap(drops(), scores),
    "cascade": lambda scores, asked: metrics.cascade(asked, lambda _: pytest.fail("explained"), scores),
    "curve": lambda scores, asked: metrics.curve(asked, scores),
    "dsa": lambda scores, _: metrics.dsa(scores, [1, 2], [3, 4], [1]),
    "evidence_mass": lambda scores, _: metrics.evidence_mass(scores, [1]),
    "exact_match_change": lambda scores, asked: metrics.exact_match_change(
        asked, scores, context=[1, 2], choices=[TARGET, 3]
    ),
    "f1": lambda scores, _: metrics.f1(scores, [1]),
    "faithfulness_error": lambda scores, _: metrics.faithfulness_error(drops(), scores),
    "hard": lambda scores, asked: metrics.hard(asked, scores),
    "kept_mass": lambda scores, _: metrics.kept_mass(scores, [1, 2]),
    "kept_share": lambda scores, _: metrics.kept_share(scores, [1, 2]),
    "mean_effect": lambda scores, _: metrics.mean_effect(scores, EFFECTS),
    "misattribution": lambda scores, _: metrics.misattribution(scores, EFFECTS),
    "normalised": lambda scores, _: metrics.normalised(scores),
    "passes": lambda scores, _: metrics.passes(scores, [1]),
    "patch_correlation": lambda scores, _: metrics.patch_correlation(scores, EFFECTS),
    "released": lambda scores, asked: metrics.released(asked, scores),
    "retrained": lambda scores, _: metrics.retrained(TEXTS, LABELS, [EFFECTS] * 7 + [scores]),
    "sensitivity": lambda scores, _: metrics.sensitivity(torch.stack([EFFECTS.to(scores), scores])),
    "soft": lambda scores, asked: metrics.soft(asked, scores),
    "soft, keep": lambda scores, asked: metrics.soft(asked, scores, keep=0.5),
    "soft_area": lambda scores, asked: metrics.soft_area(asked, scores),
    "with_mean": lambda scores, _: metrics.with_mean(scores, 0.5),
}
OF_A_CONTEXT = ["additivity_gap", "cascade", "curve", "exact_match_change", "faithfulness_error", "hard", "mean_effect"]
OF_A_CONTEXT += ["misattribution", "patch_correlation", "released", "retrained", "soft", "soft, keep", "soft_area"]
OF_NO_SCORES = {"abpc", "aopc", "area", "chance_of_passing", "first_token", "hit_change", "look_up", "relative_change"}
OF_NO_SCORES |= {"summed", "paraphrase_consistency", "under_noise"}
EVERY = pytest.mark.parametrize("name", OF_SCORES)
OF_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "dsa, support": lambda places, _: metrics.dsa(EFFECTS, places, [5], reading="segments"),
    "dsa, distractor": lambda places, _: metrics.dsa(EFFECTS, [5], places, reading="segments"),
    "dsa, gold": lambda places, _: metrics.dsa(EFFECTS, [0, 1, 2, 3], [5], places),
    "evidence_mass": lambda places, _: metrics.evidence_mass(EFFECTS, places),
    "evidence_mass, candidates": lambda places, _: metrics.evidence_mass(EFFECTS, [0], candidates=places),
    "f1": lambda places, _: metrics.f1(EFFECTS, places),
    "f1, candidates": lambda places, _: metrics.f1(EFFECTS, [0], candidates=places),
    "kept_mass": lambda places, _: metrics.kept_mass(EFFECTS, places),
    "kept_share": lambda places, _: metrics.kept_share(EFFECTS, places),
    "mean_effect": lambda places, _: metrics.mean_effect(EFFECTS, EFFECTS, candidates=places),
    "misattribution": lambda places, _: metrics.misattribution(EFFECTS, EFFECTS, candidates=places),
    "passes": lambda places, _: metrics.passes(EFFECTS, places),
    "patch_correlation": lambda places, _: metrics.patch_correlation(EFFECTS, EFFECTS, candidates=places),
    "hard": lambda places, asked: metrics.hard(asked, EFFECTS, candidates=places),
    "released": lambda places, asked: metrics.released(asked, EFFECTS, candidates=places),
    "soft": lambda places, asked: metrics.soft(asked, EFFECTS, candidates=places),
    "curve": lambda places, asked: metrics.curve(asked, EFFECTS, candidates=places),
    "exact_match_change": lambda places, asked: metrics.exact_match_change(
        asked, EFFECTS, context=places, choices=[TARGET, 3]
    ),
}
PLACED = pytest.mark.parametrize("name", OF_POSITIONS)


def test_every_public_function_is_asked() -> None:
    functions = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    assert {name.split(",")[0] for name in OF_SCORES} | OF_NO_SCORES == functions


@EVERY
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_is_no_finite_number_is_refused_by_position(
    name: str, value: float, dtype: torch.dtype, asked: Any
) -> None:
    scores = EFFECTS.to(dtype).clone()
    scores[2] = value
    with pytest.raises(ValueError, match=rf"\[(1, )?2\] is {value}"):
        OF_SCORES[name](scores, asked)


@EVERY
@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (EFFECTS.unflatten(0, (2, 3)), "shape"),
        (torch.ones(()), "shape"),
        (torch.empty(0), "shape"),
        (EFFECTS > 0.2, "bool"),
        ([0.5] * N, "is a list"),
        (None, "is a NoneType"),
    ],
    ids=["2-d", "scalar", "empty", "bool", "list", "None"],
)
def test_what_is_no_number_per_token_is_refused(name: str, scores: Any, message: str, asked: Any) -> None:
    if name == "sensitivity":
        pytest.skip("takes a row of scores per run")
    with pytest.raises((TypeError, ValueError), match=message):
        OF_SCORES[name](scores, asked)


@pytest.mark.parametrize("runs", [EFFECTS, torch.empty(2, 0), EFFECTS[None] > 0, [[0.5], [0.25]]], ids=str)
def test_runs_are_rows_of_scores(runs: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"shape|bool|is a list"):
        metrics.sensitivity(runs)


@pytest.mark.parametrize("name", OF_A_CONTEXT)
@pytest.mark.parametrize("length", [N - 1, N + 1])
def test_scores_of_another_number_of_tokens_are_refused(name: str, length: int, asked: Any) -> None:
    with pytest.raises(ValueError, match=f"{length} .*{N}|{N} .*{length}"):
        OF_SCORES[name](torch.ones(length), asked)


@EVERY
def test_whole_numbers_are_scores_too(name: str, asked: Any) -> None:
    if name in ("cascade", "retrained", "sensitivity"):
        pytest.skip("takes more than one tensor of scores")
    whole = torch.tensor([5, 1, 4, 2, 3, 6])
    assert str(OF_SCORES[name](whole, asked)) == str(OF_SCORES[name](whole.double(), asked))


@PLACED
@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 2)], r"holds \(0, 2\), .*range\(start, stop\) for the span"),
        ([1.0], "holds 1.0"),
        ([True], "holds True"),
        ("12", "must be a list of positions"),
        (1, "must be a list of positions"),
        ([N], rf"positions \[{N}\] are not among the {N} scores"),
        ([-1], rf"positions \[-1\] are not among the {N} scores"),
    ],
    ids=str,
)
def test_what_is_no_position_is_refused(name: str, places: Any, message: str, asked: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        OF_POSITIONS[name](places, asked)


@PLACED
@pytest.mark.parametrize(
    "kind", [torch.tensor, tuple, set, lambda places: iter(places)], ids=["tensor", "tuple", "set", "iterator"]
)
def test_positions_may_come_in_any_collection(name: str, kind: Any, asked: Any) -> None:
    expected, found = OF_POSITIONS[name]([1, 3], asked), OF_POSITIONS[name](kind([1, 3]), asked)
    assert found == expected


@pytest.mark.parametrize("name", [name for name in OF_POSITIONS if "candidates" in name] + ["hard", "released", "soft"])
def test_no_candidates_are_refused(name: str, asked: Any) -> None:
    with pytest.raises(ValueError, match="candidates is empty"):
        OF_POSITIONS[name]([], asked)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda _: Curve((0.0, 0.5), (1.0, float("nan"))), r"values\[1\] of the curve is nan"),
        (lambda _: Curve((0.0, float("inf")), (1.0, 1.0)), r"shares\[1\] of the curve is inf"),
        (lambda _: Curve((0.0, 0.5), (1.0,)), "a value for each share, not 1 for 2"),
        (lambda asked: metrics.curve(asked, EFFECTS, steps=[0.0, float("nan"), 1.0]), "nan"),
        (lambda _: metrics.misattribution(EFFECTS, EFFECTS, least=float("nan")), "least=nan"),
        (lambda _: metrics.dsa(EFFECTS, [1], [2], [1], threshold=float("nan")), "threshold=nan"),
        (lambda _: metrics.dsa(EFFECTS, [1], [2], reading="model_selected", k=-1), "k=-1 must be at least 0"),
        (lambda _: metrics.f1(EFFECTS, [1], threshold=float("inf")), "threshold=inf"),
        (lambda asked: metrics.hard(asked, EFFECTS, share=-0.2), "share=-0.2 must be at least 0"),
        (lambda asked: metrics.hard(asked, EFFECTS, share=1.5), "share=1.5 must be at most 1"),
        (lambda asked: metrics.released(asked, EFFECTS, shares=[0.1, -0.5]), "shares=-0.5 must be at least 0"),
        (lambda asked: metrics.released(asked, EFFECTS, shares=[]), "shares is empty"),
        (lambda asked: metrics.soft_area(asked, EFFECTS, [0.5]), "must be two shares at least"),
        (lambda asked: metrics.soft_area(asked, EFFECTS, [0.5, 0.1]), "from the smallest up"),
        (lambda asked: metrics.soft(asked, EFFECTS, seed=-1), "seed=-1"),
        (lambda asked: metrics.soft(asked, EFFECTS, draws=10**20), "draws=10+ is more than can be run"),
        (lambda asked: metrics.soft(asked, EFFECTS, draws=10**5, randoms=10**5), "more than can be run"),
        (lambda _: metrics.relative_change([1.0, 2.0], [0.1, float("nan")]), r"errors\[1\]=nan"),
        (lambda _: metrics.relative_change([1.0, float("inf")], [0.1, 0.1]), r"figures\[1\] is inf"),
        (lambda _: metrics.chance_of_passing(4, 1.5), "gold=1.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda _: Setting(temperature=float("nan")), "temperature=nan"),
        (lambda _: Setting(top_k=-1), "top_k=-1"),
    ],
)
def test_other_numbers_are_checked_too(ask: Callable[[Any], Any], message: str, asked: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ask(asked)


def test_a_refused_score_costs_no_run(asked: Any, forwards: Callable[[Any], list[Any]]) -> None:
    runs = forwards(asked.adapter.model)
    scores: Tensor = EFFECTS.double() * torch.nan
    for name in ("soft", "soft, keep", "soft_area", "curve", "hard", "released", "exact_match_change"):
        with pytest.raises(ValueError, match=r"scores\[\d\] is nan"):
            OF_SCORES[name](scores, asked)
    assert not runs
