"""LIME, KernelSHAP and ContextCite against plain fits, captum and the official masks."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from math import exp, factorial, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.ablations import TARGET, TEXT, N, close, found, ids_of, read, worth
from helpers.asking import plain_embeddings, predict, relative
from helpers.evaluating import demo
from heta_lens.methods.surrogates import ContextCite, KernelShap, Lime

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
BUILD = dict(zoo.KINDS)


def drawn(seed: int, ids: Tensor, samples: int, players: int, keep: float) -> list[list[bool]]:
    uniform = np.random.default_rng([seed, *ids[0].tolist()]).random((samples, players))
    return [[True] * players, *[[bool(u < keep) for u in row] for row in uniform]]


def near(z: list[bool], width: float) -> float:
    ones = sum(z)
    cosine = ones / (sqrt(ones) * sqrt(len(z))) if ones else 0.0
    return exp(-((1 - cosine) ** 2) / width**2)


LIME_OPTIONS: list[dict[str, Any]] = [
    {"samples": 20},
    {"samples": 30, "keep": 0.4, "width": 0.6, "penalty": 3, "seed": 4, "keep_bos": False, "scale": "log_odds"},
    {"samples": 25, "penalty": 0.1, "mask": "mean"},
]


def least(z: Tensor, y: Tensor, pi: Tensor, penalty: float) -> Tensor:
    """Of ``Σ π (y - b - a·z)² + λ‖a‖²``, with b as one more column that costs nothing."""
    z = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
    free = torch.eye(z.shape[1], dtype=z.dtype) * penalty
    free[-1, -1] = 0
    return torch.linalg.solve(z.T @ torch.diag(pi) @ z + free, z.T @ (pi * y))


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in NAMES for options in LIME_OPTIONS[: None if "gpt2" in name else 1]],
)
def test_lime_is_the_linear_model_that_fits_near_the_context(name: str, options: dict[str, Any]) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    first = int(options.get("keep_bos", True))
    z = drawn(options.get("seed", 0), ids, options["samples"], N - first, options.get("keep", 0.7))
    mask = plain_embeddings(model, ids).mean(0) if "mask" in options else 0.0
    of = worth(model, ids, mask, options.get("scale", "log_prob"))
    kept = [[*range(first), *[first + k for k, there in enumerate(row) if there]] for row in z]
    y = torch.tensor([of(some) for some in kept], dtype=torch.float64)
    pi = torch.tensor([near(row, options.get("width", 0.25)) for row in z], dtype=torch.float64)
    z = torch.tensor(z, dtype=torch.float64)
    *weights, intercept = least(z, y, pi, options.get("penalty", 1.0)).tolist()
    expected = torch.tensor(weights, dtype=torch.float64)
    some = found(model, Lime(**options))
    close(name, some.scores, [0.0] * first + expected.tolist(), 20)
    assert some.diagnostics["intercept"] == pytest.approx(intercept, abs=1e-4)
    residual, spread = y - intercept - z @ expected, y - (pi @ y) / pi.sum()
    assert some.diagnostics["fit"] == pytest.approx(float(1 - pi @ residual**2 / (pi @ spread**2)), abs=1e-4)


MODEL = pytest.mark.parametrize("name", NAMES)
KINDS = pytest.mark.parametrize("name", [param.id for param in zoo.models("-gpt2$")])


def shapley(of: Callable[[list[int]], float], players: Sequence[int], always: Sequence[int]) -> list[float]:
    """What each adds to every set of the others, weighed by how many orders have just these before it."""
    scores, many = [0.0] * (len(players) + len(always)), len(players)
    for player in players:
        others = [other for other in players if other != player]
        for size in range(many):
            share = factorial(size) * factorial(many - size - 1) / factorial(many)
            for some in combinations(others, size):
                scores[player] += share * (of([*always, *some, player]) - of([*always, *some]))
    return scores


@MODEL
@pytest.mark.parametrize("keep_bos", [True, False])
def test_kernel_shap_finds_shapley_values(name: str, keep_bos: bool) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, 5)
    mask = plain_embeddings(model, ids).mean(0)
    of = worth(model, ids, mask, "prob")
    expected = shapley(of, range(int(keep_bos), 5), [0] * keep_bos)
    some = found(model, KernelShap(keep_bos=keep_bos, mask="mean", scale="prob"), ids)
    close(name, some.scores, expected)
    assert some.diagnostics["exact"] and some.diagnostics["forwards"] == 2 ** (5 - keep_bos)
    assert (some.scores[0] == 0) == keep_bos


@KINDS
@pytest.mark.parametrize("samples", [16, 24])
def test_kernel_shap_shares_out_all_there_is(name: str, samples: int) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, 9)
    some = found(model, KernelShap(samples=samples, scale="log_odds"), ids)
    of = worth(model, ids, scale="log_odds")
    assert not some.diagnostics["exact"] and some.diagnostics["completeness_gap"] < 1e-12
    close(name, some.scores.sum(), of(range(9)) - of([0]))


def test_as_many_samples_as_there_are_coalitions_are_all_of_them() -> None:
    model = zoo.bridge("gpt2")
    exact, given, fewer = (found(model, KernelShap(samples=samples)) for samples in (None, 30, 29))
    assert torch.equal(given.scores, exact.scores) and given.diagnostics["exact"]
    assert 1e-6 < relative(fewer.scores, exact.scores) < 1 and not fewer.diagnostics["exact"]


@pytest.mark.parametrize(("samples", "least"), [(15, 16), (1, 16)])
def test_too_few_coalitions_are_refused(samples: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"samples={samples} are too few for 8 tokens: give at least {least}, or None"):
        found(zoo.bridge("gpt2"), KernelShap(samples=samples), zoo.prompt(zoo.bridge("gpt2"), 9))


def official_masks(
    samples: int, sources: int, keep: float = 0.5, *, ids: Tensor, seed: int = 0, after: int = 0
) -> list[list[bool]]:
    """The official code's, given the prompt's own seed of the first ablation."""
    first, found = int(np.random.default_rng([seed, *ids[0].tolist()]).integers(2**31)), []
    for sample in range(after, after + samples):
        random = np.random.RandomState(first + sample)
        found.append(random.choice([False, True], size=sources, p=[1 - keep, keep]).tolist())
    return found


def official_fit(masks: list[list[bool]], y: list[float], alpha: float = 0.01) -> tuple[np.ndarray, float]:
    scaler, model = StandardScaler(), Lasso(alpha=alpha, random_state=0, fit_intercept=True, tol=1e-12, max_iter=10**6)
    make_pipeline(scaler, model).fit(np.array(masks, dtype=float), np.array(y))
    return model.coef_ / scaler.scale_, float(model.intercept_ - (scaler.mean_ / scaler.scale_) @ model.coef_.T)


@lru_cache
@torch.no_grad()
def after(model: Any, ids: tuple[int, ...]) -> float:
    """The target's log-odds after a prompt of its own."""
    return read(model(torch.tensor([ids]))[0, -1].log_softmax(-1), "log_odds")


def pieces(ids: Tensor) -> list[list[int]]:
    """Positions of the sentences of `TEXT`, by where its tokens are written."""
    starts, text = [], ""
    for token in ids[0].tolist():
        starts.append(len(text))
        text += zoo.tokenizer().decode([token])
    ends = [text.index(end) + len(end) for end in ("mat.", "Rome?", "Rome!")] + [len(text)]
    return [
        [k for k in range(1, len(starts)) if low <= starts[k] < high]
        for low, high in zip([0, *ends], ends, strict=False)
    ]


@MODEL
def test_context_cite_is_the_official_one_on_ids(name: str) -> None:
    model, ids = BUILD[name](), ids_of()
    first, second, third, query = pieces(ids)
    masks = official_masks(64, 3, ids=ids, seed=7)

    def left(row: list[bool]) -> tuple[int, ...]:
        kept = [place for source, there in zip([first, second, third], row, strict=True) if there for place in source]
        return tuple(ids[0, [0, *kept, *query]].tolist())

    weights, intercept = official_fit(masks, [after(model, left(row)) for row in masks])
    place = (query[0], query[-1] + 1)
    some = found(model, ContextCite(query=(place,), seed=7), ids)
    close(name, some.diagnostics["source_scores"], weights, 20)
    assert some.diagnostics["intercept"] == pytest.approx(intercept, abs=1e-4)
    assert some.diagnostics["source_positions"] == [tuple(first), tuple(second), tuple(third)]
    assert some.diagnostics["sources"] == [
        "The cat sat on the mat.",
        "Is the dog in Rome?",
        "No, the tower is in Rome!",
    ]
    for weight, source in zip(weights, (first, second, third), strict=True):
        close(name, some.scores[source], [weight / len(source)] * len(source), 20)
    assert (some.scores[[0, *query]] == 0).all()
    more = official_masks(16, 3, ids=ids, seed=7, after=64)
    y = np.array([after(model, left(row)) for row in more])
    fit = 1 - ((y - intercept - np.array(more) @ weights) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert some.diagnostics["held_out_fit"] == pytest.approx(fit, abs=1e-4)
    assert some.diagnostics["fit"] <= 1 and some.diagnostics["forwards"] == 8


def test_what_is_never_removed(forwards: Callable[[Any], list[Any]]) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    ids[0, 3] = zoo.tokenizer().eos_token_id
    prediction = predict(model, ids, TARGET)
    runs = forwards(model)
    some = ContextCite(query=((5, 7), (1, 2)), source="token", samples=30)(prediction)
    kept = ids[0, [0, 1, 3, 5, 6]].tolist()
    seen = [row.tolist() for run in runs for row in run[0]]
    assert len(seen) == some.diagnostics["forwards"] == 46
    assert all(row[0] == kept[0] and not set(kept) - set(row) for row in seen)
    assert (some.scores[[0, 1, 3, 5, 6]] == 0).all() and (some.scores[4] != 0 or some.scores[2] != 0)


def halves(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) // 2), (len(text) // 2, len(text))]


def test_what_a_splitter_leaves_out_is_in_no_source() -> None:
    model = demo()
    ids = model.to_tokens("Leo put the key in the box. Mia put the cup in the bag. Question: Where is the cup? In the")
    wanted = "Mia put the cup in the bag."
    method = ContextCite(splitter=lambda text: [(text.index(wanted), text.index(wanted) + len(wanted))], samples=8)
    assert found(model, method, ids).diagnostics["sources"] == [wanted]


def test_sentences_are_what_a_splitter_finds(tmp_path: Any) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    some = found(model, ContextCite(splitter=halves, seed=1), ids)
    text = "<bos>" + TEXT
    assert len(some.diagnostics["sources"]) == 2
    assert "<bos>" + " ".join(some.diagnostics["sources"]) == text
    assert some.scores[1:].unique().numel() == 2
    some.save(tmp_path / "found")
    again = heta_lens.Attribution.load(tmp_path / "found")
    assert again.options["splitter"] == f"{__name__}.halves"
    assert again.diagnostics["chosen"] == {"splitter": f"{__name__}.halves"}
    assert "halves" in again.title


@pytest.mark.parametrize("spans", [[(0, 5), (3, 9)], [(0, 5), (5, 500)], [(4, 9), (0, 4)], ["The cat"], [(0, 1, 2)]])
@pytest.mark.usefixtures("unchecked")
def test_spans_of_a_splitter_are_in_order_and_in_the_text(spans: Any) -> None:
    with pytest.raises(ValueError, match=r"splitter returned .*: return \(start, stop\) in order, of \d+ characters"):
        found(zoo.bridge("gpt2"), ContextCite(splitter=lambda _: spans), ids_of())


@pytest.mark.usefixtures("unchecked")
def test_a_query_is_ranges() -> None:
    for wrong in ((0, 5), 5, ((5, 3),)):
        with pytest.raises(ValueError, match=r"query=.* must be pairs .*, such as \(\(0, 5\),\)"):
            ContextCite(query=wrong)


def test_what_leaves_no_source_is_refused() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=rf"query=\(\(0, {N}\),\) leaves no source: none of the {N} tokens"):
        found(model, ContextCite(query=((0, N),)))
    with pytest.raises(ValueError, match="samples=1 must be at least 2"):
        ContextCite(samples=1)
