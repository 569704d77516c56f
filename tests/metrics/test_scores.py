"""Checks of scores and positions at the edge of every public metric, and the normalisation of scores."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers import chats, zoo
from helpers.asking import predict
from helpers.evaluating import case_of, double
from heta_lens import metrics
from heta_lens._util.text import Span
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.metrics import Drops, normalised, with_mean
from heta_lens.metrics.scores import evidence_positions, ordinary

pytestmark = [pytest.mark.usefixtures("unchecked")]

N, TARGET = 6, 7
EFFECTS = torch.tensor([0.5, 0.1, 0.4, 0.2, 0.3, 0.6])


@pytest.fixture(scope="module")
def asked() -> Any:
    model = zoo.bridge("gpt2")
    return predict(model, zoo.prompt(model, N), TARGET)


def drops() -> Drops:
    generator = torch.Generator().manual_seed(0)
    sets = torch.rand(40, N, generator=generator) < 0.5
    return Drops(sets, torch.rand(40, generator=generator, dtype=torch.float64), 1.0, torch.arange(40))


# A call per public function of scores: (scores, prediction) -> result.
OF_SCORES: dict[str, Callable[[Any, Any], Any]] = {
    "additivity_gap": lambda scores, _: metrics.additivity_gap(drops(), scores),
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
    "misattribution": lambda scores, _: metrics.misattribution(scores, EFFECTS, signed=True),
    "normalised": lambda scores, _: metrics.normalised(scores),
    "passes": lambda scores, _: metrics.passes(scores, [1]),
    "patch_correlation": lambda scores, _: metrics.patch_correlation(scores, EFFECTS, signed=True),
    "released": lambda scores, asked: metrics.released(asked, scores),
    "soft": lambda scores, asked: metrics.soft(asked, scores),
    "soft, keep": lambda scores, asked: metrics.soft(asked, scores, keep=0.5),
    "with_mean": lambda scores, _: metrics.with_mean(scores, 0.5),
}
OF_A_CONTEXT = ["additivity_gap", "curve", "exact_match_change", "faithfulness_error", "hard", "mean_effect"]
OF_A_CONTEXT += ["misattribution", "patch_correlation", "released", "soft", "soft, keep"]
OF_NO_SCORES = {"abpc", "aopc", "area", "chance_of_passing", "look_up"}
OF_NO_SCORES |= {"paraphrase_consistency", "sensitivity", "under_noise"}
EVERY = pytest.mark.parametrize("name", OF_SCORES)
# A call per public function of positions: (positions, prediction) -> result.
OF_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "dsa, support": lambda places, _: metrics.dsa(EFFECTS, places, [5], reading="segments"),
    "evidence_mass": lambda places, _: metrics.evidence_mass(EFFECTS, places),
    "evidence_mass, candidates": lambda places, _: metrics.evidence_mass(EFFECTS, [0], candidates=places),
    "f1": lambda places, _: metrics.f1(EFFECTS, places),
    "kept_share": lambda places, _: metrics.kept_share(EFFECTS, places),
    "misattribution": lambda places, _: metrics.misattribution(EFFECTS, EFFECTS, signed=True, candidates=places),
    "passes": lambda places, _: metrics.passes(EFFECTS, places),
    "patch_correlation": lambda places, _: metrics.patch_correlation(EFFECTS, EFFECTS, signed=True, candidates=places),
    "hard": lambda places, asked: metrics.hard(asked, EFFECTS, candidates=places),
    "soft": lambda places, asked: metrics.soft(asked, EFFECTS, candidates=places),
    "curve": lambda places, asked: metrics.curve(asked, EFFECTS, candidates=places),
    "exact_match_change": lambda places, asked: metrics.exact_match_change(
        asked, EFFECTS, context=places, choices=[TARGET, 3]
    ),
}
PLACED = pytest.mark.parametrize("name", OF_POSITIONS)


def test_the_calls_cover_every_public_function() -> None:
    functions = {name for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    assert {name.split(",")[0] for name in OF_SCORES} | OF_NO_SCORES == functions


@EVERY
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_score_that_is_not_finite_is_refused_by_position(name: str, value: float, asked: Any) -> None:
    scores = EFFECTS.double()
    scores[2] = value
    with pytest.raises(ValueError, match=rf"\[2\] is {value}"):
        OF_SCORES[name](scores, asked)


@EVERY
@pytest.mark.parametrize(
    ("scores", "message"),
    [(EFFECTS.unflatten(0, (2, 3)), "shape"), (torch.empty(0), "shape"), (None, "a NoneType")],
    ids=["2-d", "empty", "None"],
)
def test_scores_of_a_wrong_shape_or_type_are_refused(name: str, scores: Any, message: str, asked: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        OF_SCORES[name](scores, asked)


@pytest.mark.parametrize("name", OF_A_CONTEXT)
@pytest.mark.parametrize("length", [N - 1, N + 1])
def test_scores_of_a_wrong_number_of_tokens_are_refused(name: str, length: int, asked: Any) -> None:
    with pytest.raises(ValueError, match=f"{length} .*{N}|{N} .*{length}"):
        OF_SCORES[name](torch.ones(length), asked)


@PLACED
@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, 2)], r"holds \(0, 2\), .*range\(start, stop\)"),
        ([True], "holds True"),
        ([N], f"holds {N}, and must hold whole numbers from 0 to {N - 1}"),
        ([-1], f"holds -1, and must hold whole numbers from 0 to {N - 1}"),
    ],
    ids=str,
)
def test_wrong_positions_are_refused(name: str, places: Any, message: str, asked: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        OF_POSITIONS[name](places, asked)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda asked: metrics.soft(asked, EFFECTS, keep=1.0), "mean=1.0 must be between 0 and 1"),
    ],
)
def test_wrong_numbers_are_refused(ask: Callable[[Any], Any], message: str, asked: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ask(asked)


def test_refused_scores_cost_no_run(asked: Any, forwards: Callable[[Any], list[Any]]) -> None:
    runs, scores = forwards(asked.adapter.model), EFFECTS.double() * torch.nan
    for name in ("soft", "soft, keep", "curve", "hard", "released", "exact_match_change"):
        with pytest.raises(ValueError, match=r"scores\[\d\] is nan"):
            OF_SCORES[name](scores, asked)
    assert not runs


@pytest.mark.parametrize("build", zoo.models("-gpt2$"))
def test_special_tokens_are_not_ordinary(build: Any) -> None:
    model = build()
    prediction = predict(model, zoo.prompt(model, 6), 3)
    assert ordinary(prediction) == [1, 2, 3, 4, 5]  # the zoo's prompts begin with <bos>


@pytest.mark.parametrize("name", ["gold", "support", "question"])
def test_evidence_positions_spell_the_spans(name: str) -> None:
    case = case_of(suite("recall", limit=1)[0])
    positions = evidence_positions(case.instance, case.prediction, name)
    assert positions == case.positions(name) == sorted({*positions})
    wanted = " ".join(case.instance.text[slice(*span)] for span in getattr(case.instance, name))
    assert "".join(case.prediction.written[position] for position in positions).split() == wanted.split()
    with pytest.raises(ValueError, match="'other': the tokenizer does not give its text back"):
        evidence_positions(Instance("other", "Something else.", None), case.prediction, name)


@pytest.mark.slow
def test_spans_of_a_chat_are_those_of_its_last_message() -> None:
    model = chats.with_template("{% for each in messages %}{{ each['content'] | trim }}<|im_end|>{% endfor %}")
    text, before = "a dog is here\n", [{"role": "user", "content": "so a dog is here"}]
    asked = Instance("x", text, None, messages=[*before, {"role": "user", "content": text}], gold=[Span(2, 5)])
    prediction = ask(model, asked)
    places = evidence_positions(asked, prediction, "gold")
    assert "".join(prediction.written[place] for place in places).strip() == "dog"
    assert min(places) > prediction.ids.tolist().index(model.tokenizer.convert_tokens_to_ids("<|im_end|>"))


# ------------------------------------------------------------------------------------------------------ normalisation
@pytest.mark.parametrize(
    ("norm", "expected", "level"),
    [("none", [0.0, 1.0, 3.0], 0.0), ("sum", [0.0, 0.25, 0.75], 0.25), ("max", [0.0, 1 / 3, 1.0], 1.0)],
)
def test_scores_are_brought_to_a_scale(norm: Any, expected: list[float], level: float) -> None:
    assert normalised(double(-2.0, 1.0, 3.0), norm).tolist() == pytest.approx(expected, abs=1e-4)
    assert normalised(torch.zeros(4), norm).tolist() == [level] * 4


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("values", [(4.0, 3.0, 2.0, 1.0), (1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.0,) * 4])
def test_retention_has_the_mean_that_was_asked_for(values: tuple[float, ...], mean: float) -> None:
    kept = with_mean(double(*values), mean)
    assert float(kept.mean()) == pytest.approx(mean) and (kept >= 0).all() and (kept <= 1).all()
    assert (kept.diff() <= 1e-12).all()  # what scored more keeps more
    free = (kept > 0) & (kept < 1) & (double(*values) > 0)
    ratios_of_free = (kept / double(*values))[free]
    assert ratios_of_free.numel() == 0 or float(ratios_of_free.max() - ratios_of_free.min()) < 1e-12


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="norm='l2' is not one of"):
        normalised(double(1), "l2")  # type: ignore[arg-type]
