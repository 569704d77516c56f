"""LIME, KernelSHAP, ContextCite and progressive inference, against what their formulas say of plain runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import exp, factorial, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from asking import plain_embeddings, plain_log_probs, predict, relative
from sklearn.linear_model import Lasso
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_families import tolerance
from torch import Tensor

import heta_lens
import zoo
from heta_lens.baselines import progressive_inference
from heta_lens.baselines.baseline import Baseline
from heta_lens.baselines.context_cite import ContextCite
from heta_lens.baselines.kernel_shap import KernelShap
from heta_lens.baselines.lime import Lime
from heta_lens.baselines.progressive_inference import ProgressiveInference

N, TARGET, FOIL = 6, 7, 12
TEXT = "The cat sat on the mat. Is the dog in Rome? No, the tower is in Rome! The"

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
MODEL = pytest.mark.parametrize("name", NAMES)
KINDS = pytest.mark.parametrize("name", [param.id for param in zoo.models("-gpt2$")])
BUILD = dict(zoo.KINDS)

QUICK: dict[str, Baseline] = {
    "lime": Lime(samples=20),
    "lime, lasso": Lime(samples=30, surrogate="lasso"),
    "kernel_shap": KernelShap(samples=18),
    "kernel_shap, every coalition": KernelShap(),
    "context_cite": ContextCite(samples=12, held_out=4),
    "context_cite, tokens": ContextCite(source="token", ablate="mask", samples=20, held_out=4),
    "progressive_inference": ProgressiveInference(),
    "progressive_inference, multi": ProgressiveInference(passes="multi", samples=5),
}
METHOD = pytest.mark.parametrize("method", QUICK.values(), ids=QUICK.keys())


# ----------------------------------------------------------------------------------------------- asking, by hand too
def ids_of(text: str = TEXT, *, bos: bool = True) -> Tensor:
    tokenizer = zoo.tokenizer()
    return torch.tensor([[tokenizer.bos_token_id] * bos + tokenizer.encode(text, add_special_tokens=False)])


def found(model: Any, method: Baseline, ids: Tensor | None = None, target: Any = TARGET) -> heta_lens.Attribution:
    return method(predict(model, zoo.prompt(model, N) if ids is None else ids, target))


def read(log_probs: Tensor, scale: str, target: Any = TARGET) -> float:
    """The target's likelihood, its odds by those of all the other tokens together."""
    if isinstance(target, tuple):
        return read(log_probs, scale, target[0]) - read(log_probs, scale, target[1])
    own = log_probs[target]
    others = torch.cat([log_probs[:target], log_probs[target + 1 :]])
    return float({"log_prob": own, "prob": own.exp(), "log_odds": own - others.logsumexp(0)}[scale])


def worth(model: Any, ids: Tensor, mask: Tensor | float = 0.0, scale: str = "log_prob", target: Any = TARGET) -> Any:
    """The target's likelihood where only some tokens are themselves."""
    clean, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)

    @lru_cache
    @torch.no_grad()
    def of(present: frozenset[int]) -> float:
        states = torch.zeros_like(clean) + mask
        for position in present:
            states[position] = clean[position]
        return read(log_probs(states), scale, target)

    return lambda present: of(frozenset(present))


def close(name: str, scores: Any, expected: Any, loosened: float = 1) -> None:
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    assert relative(torch.as_tensor(scores), expected) < loosened * tolerance(name)


# --------------------------------------------------------------------------------------------------------- KernelSHAP
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
@pytest.mark.parametrize("paired", [True, False])
def test_kernel_shap_shares_out_all_there_is(name: str, samples: int, paired: bool) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, 9)
    some = found(model, KernelShap(samples=samples, paired=paired, scale="log_odds"), ids)
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


def test_many_tokens_take_random_coalitions() -> None:
    prediction = predict(zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), 12), TARGET)
    assert KernelShap().work(prediction) == {"forwards": 514}
    assert KernelShap(samples=2046).work(prediction) == {"forwards": 2048}
    assert KernelShap(samples=2045).work(prediction) == {"forwards": 2047}


# --------------------------------------------------------------------------------------------------------------- LIME
def drawn(seed: int, samples: int, players: int, keep: float) -> list[list[bool]]:
    uniform = np.random.default_rng([seed, players]).random((samples, players))
    return [[True] * players, *[[bool(u < keep) for u in row] for row in uniform]]


def near(z: list[bool], width: float) -> float:
    ones = sum(z)
    cosine = ones / (sqrt(ones) * sqrt(len(z))) if ones else 0.0
    return exp(-((1 - cosine) ** 2) / width**2)


LIME_OPTIONS: list[dict[str, Any]] = [
    {"samples": 20},
    {"samples": 30, "keep": 0.4, "width": 0.6, "penalty": 3, "seed": 4, "keep_bos": False, "scale": "log_odds"},
    {"samples": 25, "surrogate": "lasso"},
    {"samples": 25, "surrogate": "lasso", "penalty": 0.002, "mask": "mean"},
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
    z = drawn(options.get("seed", 0), options["samples"], N - first, options.get("keep", 0.7))
    mask = plain_embeddings(model, ids).mean(0) if "mask" in options else 0.0
    of = worth(model, ids, mask, options.get("scale", "log_prob"))
    kept = [[*range(first), *[first + k for k, there in enumerate(row) if there]] for row in z]
    y = torch.tensor([of(some) for some in kept], dtype=torch.float64)
    pi = torch.tensor([near(row, options.get("width", 0.25)) for row in z], dtype=torch.float64)
    z = torch.tensor(z, dtype=torch.float64)
    if options.get("surrogate") == "lasso":
        plain = Lasso(alpha=options.get("penalty", 0.01), tol=1e-12, max_iter=10**6).fit(z, y, sample_weight=pi)
        expected, intercept = torch.from_numpy(plain.coef_), float(plain.intercept_)
    else:
        *weights, intercept = least(z, y, pi, options.get("penalty", 1.0)).tolist()
        expected = torch.tensor(weights, dtype=torch.float64)
    some = found(model, Lime(**options))
    close(name, some.scores, [0.0] * first + expected.tolist(), 20)
    assert some.diagnostics["intercept"] == pytest.approx(intercept, abs=1e-4)
    residual, spread = y - intercept - z @ expected, y - (pi @ y) / pi.sum()
    assert some.diagnostics["fit"] == pytest.approx(float(1 - pi @ residual**2 / (pi @ spread**2)), abs=1e-4)


def test_captums_lime_makes_the_same_of_the_same_samples() -> None:
    attr = pytest.importorskip("captum.attr")
    linear = pytest.importorskip("captum._utils.models.linear_model")
    model = zoo.bridge("gpt2")
    of = worth(model, zoo.prompt(model, N))
    z = iter(drawn(0, 30, N - 1, 0.7))

    theirs = attr.LimeBase(
        lambda inputs: torch.tensor([of([0, *[1 + k for k in range(N - 1) if inputs[0, k]]])]),
        linear.SkLearnLasso(alpha=0.01),
        similarity_func=lambda _, __, row, **___: near(row[0].bool().tolist(), 0.25),
        perturb_func=lambda _, **__: torch.tensor([next(z)]).double(),
        perturb_interpretable_space=True,
        from_interp_rep_transform=lambda row, _, **__: row,
        to_interp_rep_transform=None,
    ).attribute(torch.ones(1, N - 1).double(), n_samples=31)
    ours = found(model, Lime(samples=30, surrogate="lasso")).scores[1:]
    assert relative(ours, theirs[0]) < 1e-3


def test_lime_warns_of_more_tokens_than_samples() -> None:
    model = zoo.bridge("gpt2")
    with pytest.warns(UserWarning, match="samples=4 are fewer than the 5 tokens"):
        assert found(model, Lime(samples=4)).scores.isfinite().all()


def test_how_many_samples_lime_takes() -> None:
    model = zoo.bridge("gpt2")
    assert Lime().work(predict(model, zoo.prompt(model, N), TARGET)) == {"forwards": 201}
    assert Lime(samples=9).work(predict(model, zoo.prompt(model, N), TARGET)) == {"forwards": 10}
    assert Lime()._count(300) == 600


# -------------------------------------------------------------------------------------------------------- ContextCite
def official_masks(samples: int, sources: int, keep: float = 0.5, seed: int = 0) -> list[list[bool]]:
    found = []
    for sample in range(samples):
        random = np.random.RandomState(seed + sample)
        found.append(random.choice([False, True], size=sources, p=[1 - keep, keep]).tolist())
    return found


def official_fit(masks: list[list[bool]], y: list[float], alpha: float = 0.01) -> tuple[np.ndarray, float]:
    scaler, model = StandardScaler(), Lasso(alpha=alpha, random_state=0, fit_intercept=True, tol=1e-12, max_iter=10**6)
    make_pipeline(scaler, model).fit(np.array(masks, dtype=float), np.array(y))
    return model.coef_ / scaler.scale_, float(model.intercept_ - (scaler.mean_ / scaler.scale_) @ model.coef_.T)


def after(model: Any, ids: Sequence[int]) -> float:
    """The target's log-odds after a prompt of its own."""
    return after_once(model, tuple(ids))


@lru_cache
@torch.no_grad()
def after_once(model: Any, ids: tuple[int, ...]) -> float:
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
    masks = official_masks(64, 3, seed=5)

    def left(row: list[bool]) -> list[int]:
        kept = [place for source, there in zip([first, second, third], row, strict=True) if there for place in source]
        return ids[0, [0, *kept, *query]].tolist()

    weights, intercept = official_fit(masks, [after(model, left(row)) for row in masks])
    place = (query[0], query[-1] + 1)
    some = found(model, ContextCite(query=(place,), seed=5), ids)
    close(name, some.diagnostics["source_weights"], weights, 20)
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
    copied = found(model, ContextCite(query=(place,), seed=5, spread="copy"), ids).scores
    assert torch.allclose(copied[first], some.scores[first] * len(first))
    more = official_masks(16, 3, seed=5 + 64)
    y = np.array([after(model, left(row)) for row in more])
    fit = 1 - ((y - intercept - np.array(more) @ weights) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert some.diagnostics["held_out_fit"] == pytest.approx(fit, abs=1e-4)
    assert some.diagnostics["fit"] <= 1 and some.diagnostics["forwards"] == 8


@MODEL
@pytest.mark.parametrize("ablate", ["remove", "mask"])
def test_every_token_can_be_a_source(name: str, ablate: str) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    masks, of = official_masks(40, N - 1, keep=0.6), worth(model, ids, scale="log_odds")
    kept = [[0, *[1 + k for k, there in enumerate(row) if there]] for row in masks]
    y = [of(some) if ablate == "mask" else after(model, ids[0, some].tolist()) for some in kept]
    some = found(model, ContextCite(source="token", ablate=ablate, samples=40, keep=0.6, penalty=0.05))
    weights, _ = official_fit(masks, y, 0.05)
    close(name, some.scores, [0.0, *weights], 20)


def test_sentences_can_be_masked_by_what_one_likes() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    masks, sources = official_masks(64, 4), pieces(ids)
    of = worth(model, ids, plain_embeddings(model, ids).mean(0), "log_prob")
    y = [of([0, *[place for k in range(4) if row[k] for place in sources[k]]]) for row in masks]
    some = found(model, ContextCite(ablate="mask", mask="mean", scale="log_prob"), ids)
    assert relative(torch.tensor(some.diagnostics["source_weights"]), torch.tensor(official_fit(masks, y)[0])) < 1e-6


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


def test_where_nothing_is_left_a_text_begins(forwards: Callable[[Any], list[Any]]) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of("The cat", bos=False)
    prediction = predict(model, ids, TARGET)
    runs = forwards(model)
    some = ContextCite()(prediction)
    seen = {tuple(row.tolist()) for run in runs for row in run[0]}
    begun = (zoo.tokenizer().bos_token_id, int(ids[0, 0]))  # run beside the whole, and read after the first
    assert seen == {begun, tuple(ids[0].tolist())}
    gain = after(model, ids[0].tolist()) - after(model, [zoo.tokenizer().bos_token_id])
    share = np.mean(official_masks(64, 1))
    assert some.diagnostics["source_weights"] == pytest.approx(
        [gain - np.sign(gain) * 0.01 / sqrt(share * (1 - share))]
    )


@pytest.mark.usefixtures("unchecked")
def test_without_a_token_to_begin_with_nothing_can_be_removed_altogether() -> None:
    model = zoo.native_bridge.__wrapped__()
    model.tokenizer = None
    ids = torch.tensor([[5, 6, 7, 8]])
    with pytest.raises(ValueError, match="may leave no token to read: keep a part with query=, or ablate='mask'"):
        found(model, ContextCite(source="token"), ids)
    assert found(model, ContextCite(source="token", query=((3, 4),)), ids).scores[:3].any()
    assert found(model, ContextCite(source="token", ablate="mask"), ids).scores.any()


def halves(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) // 2), (len(text) // 2, len(text))]


def test_sentences_are_what_a_splitter_finds(tmp_path: Any) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    some = found(model, ContextCite(splitter=halves), ids)
    text = "<bos>" + TEXT
    assert len(some.diagnostics["sources"]) == 2
    assert "<bos>" + " ".join(some.diagnostics["sources"]) == text
    assert some.scores[1:].unique().numel() == 2
    some.save(tmp_path / "found")
    again = heta_lens.Attribution.load(tmp_path / "found")
    assert again.options["splitter"] == f"{__name__}.halves"
    assert again.diagnostics["chosen"] == {"splitter": f"{__name__}.halves"}
    assert "halves" in again.title


def test_a_function_that_has_no_name_is_kept_by_its_kind(tmp_path: Any) -> None:
    class Halves:
        def __call__(self, text: str) -> list[tuple[int, int]]:
            return halves(text)

    some = found(zoo.bridge("gpt2"), ContextCite(splitter=Halves(), samples=4))
    some.save(tmp_path / "found")
    assert some.options["splitter"].endswith("Halves")


def test_what_splitter_and_query_may_be() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=r"splitter gave .* must follow one another"):
        found(model, ContextCite(splitter=lambda text: [(0, len(text) + 1)]))
    with pytest.raises(TypeError, match=r"splitter gave \[3\], which are no pairs \(start, stop\)"):
        found(model, ContextCite(splitter=lambda _: [3]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"query has the range \(4, 9\), but the context ends at 6"):
        found(model, ContextCite(query=((4, 9),)))
    with pytest.raises(ValueError, match=r"has the pair \(3, 3\), which must have 0 <= start < stop"):
        ContextCite(query=((3, 3),))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("query", [5, (1, 2), (("a", 2),), ((1, 2, 3),)])
def test_a_query_is_made_of_pairs(query: Any) -> None:
    with pytest.raises(TypeError, match=r"must be pairs \(start, stop\) of positions"):
        ContextCite(query=query)


def test_what_leaves_no_source_is_refused() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=rf"query=\(\(0, {N}\),\) leaves no source: none of the {N} tokens"):
        found(model, ContextCite(query=((0, N),)))
    with pytest.raises(ValueError, match="the splitter leaves no source"):
        found(model, ContextCite(splitter=lambda _: []))
    with pytest.raises(ValueError, match="samples=1 must be at least 2"):
        ContextCite(samples=1)


def test_where_every_token_is_special_there_is_nothing_to_explain() -> None:
    some = found(zoo.bridge("gpt2"), ContextCite(splitter=lambda _: []), ids_of()[:, :1])
    assert some.scores.tolist() == [0] and some.diagnostics["sources"] == [] and some.diagnostics["forwards"] == 0


def test_hooks_do_not_go_with_tokens_that_move() -> None:
    model = hooked()
    with pytest.raises(ValueError, match="unless ablate='mask'"):
        found(model, ContextCite())
    assert found(model, ContextCite(ablate="mask"), ids_of()).scores.any()


@lru_cache
def hooked() -> Any:
    model = zoo.bridge.__wrapped__("gpt2")
    model.add_hook("blocks.0.hook_resid_post", doubled_at_the_end)
    return model


def doubled_at_the_end(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
    assert activation.shape[0] == 1
    return torch.cat([activation[:, :-1], 2 * activation[:, -1:]], 1)


def test_how_many_ablations_there_are() -> None:
    model = zoo.bridge("gpt2")
    short, long = (predict(model, zoo.prompt(model, n), TARGET) for n in (N, 30))
    assert [ContextCite().work(some)["forwards"] for some in (short, long)] == [80, 80]
    assert [ContextCite(source="token", held_out=0).work(some)["forwards"] for some in (short, long)] == [64, 4 * 29]
    assert ContextCite(samples=7).work(short)["forwards"] == 23


# ---------------------------------------------------------------------------------------------- progressive inference
@MODEL
@pytest.mark.parametrize("scale", ["prob", "log_prob"])
def test_a_single_pass_tells_what_each_token_changed(name: str, scale: Any) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    with torch.no_grad():
        p = [read(model(ids[:, :stop])[0, -1].log_softmax(-1), scale) for stop in range(1, N + 1)]
    some = found(model, ProgressiveInference(scale=scale))
    close(name, some.scores, np.diff([0.0, *p]))
    assert some.scores.sum() == pytest.approx(p[-1], abs=1e-6) and some.diagnostics["forwards"] == 1
    begun = found(model, ProgressiveInference(scale=scale, before="bos"))
    assert torch.equal(begun.scores[1:], some.scores[1:]) and begun.scores[0] == 0


def test_a_context_without_a_beginning_gets_one_to_start_from() -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)[:, 1:]
    some = found(model, ProgressiveInference(before="bos"), ids)
    with torch.no_grad():
        bos = model(torch.tensor([[zoo.tokenizer().bos_token_id]]))[0, -1].softmax(-1)[TARGET]
        end = model(ids)[0, -1].softmax(-1)[TARGET]
    assert float(some.scores.sum()) == pytest.approx(float(end - bos)) and some.diagnostics["forwards"] == 2


def test_the_worked_example_of_a_single_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    p = torch.tensor([[0.05, 0.05, 0.3, 0.9]], dtype=torch.float64)
    monkeypatch.setattr(progressive_inference, "read_everywhere", lambda *_: p)
    scores = found(zoo.bridge("gpt2"), ProgressiveInference(), zoo.prompt(zoo.bridge("gpt2"), 4)).scores
    assert scores.tolist() == pytest.approx([0.05, 0, 0.25, 0.6])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        ("bridge-gpt2", {"keep_bos": False, "penalty": 0.5, "scale": "log_prob", "mask": "mean"}),
    ],
)
def test_many_passes_are_pooled_into_shapley_values(name: str, options: dict[str, Any]) -> None:
    """Every prefix a run of its own, and the sum a constraint with a multiplier."""
    model, samples, first = BUILD[name](), 6, int(options.get("keep_bos", True))
    ids, players, scale = zoo.prompt(model, N), N - int(options.get("keep_bos", True)), options.get("scale", "prob")
    mask = plain_embeddings(model, ids).mean(0) if "mask" in options else 0.0
    size = [1 / (k * (players - k)) for k in range(1, players)]
    until = [worth(model, ids[:, :stop], mask, scale) for stop in range(1, N + 1)]
    generator = np.random.default_rng([3, players])
    sizes = generator.choice(np.arange(1, players), samples, p=np.array(size) / sum(size))
    order = generator.random((samples, players)).argsort(1).argsort(1)
    rows, values = [], []
    for chosen, rank in zip(sizes, order, strict=True):
        there = [bool(place < chosen) for place in rank]
        present = [*range(first), *[first + k for k in range(players) if there[k]]]
        for stop in range(first + 1, N + 1):
            rows.append([there[k] and first + k < stop for k in range(players)])
            values.append(until[stop - 1](k for k in present if k < stop))
    empty, full = until[-1](range(first)), until[-1](range(N))
    pooled = [(row, value) for row, value in zip(rows, values, strict=True) if 0 < sum(row) < players]
    count = {k: sum(sum(row) == k for row, _ in pooled) for k in range(1, players)}
    z = torch.tensor([row for row, _ in pooled], dtype=torch.float64)
    y = torch.tensor([value - empty for _, value in pooled], dtype=torch.float64)
    w = torch.tensor([size[sum(row) - 1] / sum(size) * len(pooled) / count[sum(row)] for row, _ in pooled]).double()
    saddle = torch.ones(players + 1, players + 1, dtype=torch.float64)
    saddle[-1, -1] = 0
    saddle[:-1, :-1] = z.T @ torch.diag(w) @ z + options.get("penalty", 1e-3) * torch.eye(players, dtype=torch.float64)
    right = torch.cat([z.T @ (w * y), torch.tensor([full - empty], dtype=torch.float64)])
    some = found(model, ProgressiveInference(passes="multi", samples=samples, seed=3, **options))
    close(name, some.scores, [0.0] * first + torch.linalg.solve(saddle, right)[:-1].tolist(), 100)
    assert some.diagnostics["forwards"] == samples + 2 and some.diagnostics["coalitions"] == len(pooled)
    assert some.diagnostics["completeness_gap"] < 1e-9


@pytest.mark.usefixtures("unchecked")
def test_a_beginning_needs_a_token_and_no_hooks() -> None:
    model = hooked()
    with pytest.raises(ValueError, match="runs a prompt of one token"):
        found(model, ProgressiveInference(before="bos"), torch.tensor([[5, 6, 7]]))
    bare = zoo.native_bridge.__wrapped__()
    bare.tokenizer = None
    with pytest.raises(ValueError, match="before='bos' needs a tokenizer with such a token"):
        found(bare, ProgressiveInference(before="bos"), torch.tensor([[5, 6, 7]]))


# ------------------------------------------------------------------------------------------------------- all of them
@METHOD
def test_how_many_run_at_once_does_not_matter(method: Baseline) -> None:
    model = zoo.bridge("gpt2")
    ids = ids_of()[:, :12] if "cite" in method.name else zoo.prompt(model, N)
    one, some = (found(model, replace(method, batch=batch), ids) for batch in (1, 5))
    assert relative(one.scores, some.scores) < 1e-9 and one.scores.any()
    assert one.diagnostics["forwards"] == some.diagnostics["forwards"] <= method.work(predict(model, ids))["forwards"]


@METHOD
def test_a_contrast_is_explained_on_any_scale(method: Baseline) -> None:
    """What is linear in the runs (all but LASSO) is the difference of both tokens' scores."""
    model = zoo.bridge("gpt2")
    both, one, other = (found(model, method, target=target).scores for target in ((TARGET, FOIL), TARGET, FOIL))
    assert both.isfinite().all() and not torch.equal(both, one)
    if "lasso" not in str(method) and method.name != "context_cite":
        assert relative(both, one - other) < 1e-9


@METHOD
def test_nothing_after_the_context_is_read_and_a_cache_of_embeddings_is_enough(method: Baseline) -> None:
    model, ids = zoo.bridge("llama"), zoo.prompt(zoo.bridge("llama"), N + 2)
    _, cache = model.run_with_cache(ids, names_filter=["hook_embed"])
    part = method(heta_lens.Prediction.from_cache(cache, TARGET, position=N, tokens=ids))
    assert relative(part.scores, found(model, method, ids[:, :N]).scores) < 1e-6


@METHOD
def test_hooks_that_know_positions_find_them(method: Baseline) -> None:
    if method.name == "context_cite" and method.ablate == "remove":
        pytest.skip("refused")
    assert not torch.allclose(found(hooked(), method).scores, found(zoo.bridge("gpt2"), method).scores)


@METHOD
@pytest.mark.parametrize("bos", [True, False])
def test_a_single_token_can_be_explained(method: Baseline, bos: bool) -> None:
    model = zoo.bridge("gpt2")
    scores = found(model, method, zoo.prompt(model, 2)[:, :1] if bos else zoo.prompt(model, 2)[:, 1:]).scores
    assert scores.shape == (1,) and scores.isfinite().all()
    if bos:
        assert bool(scores[0] == 0) == (getattr(method, "passes", "multi") == "multi")


def test_what_never_reaches_the_prediction_gets_nothing() -> None:
    """Two layers that see three tokens back: what lies more than six before the prediction cannot matter to it."""
    model, n = zoo.bridge("mistral"), 10
    deaf = n - 1 - 2 * (zoo.SLIDING_WINDOW - 1)
    ids = zoo.prompt(model, n)
    scores = found(model, KernelShap(), ids).scores.abs()
    assert scores[:deaf].max() < 1e-9 * scores.max() and (scores[deaf:] > 0).all()
    near_nothing = found(model, Lime(samples=2000, surrogate="lasso"), ids).scores.abs()
    assert near_nothing[:deaf].max() < 0.05 * near_nothing.max()


@pytest.mark.parametrize(
    "other",
    [
        Lime(samples=20, keep=0.5),
        Lime(samples=20, width=0.5),
        Lime(samples=20, penalty=2),
        Lime(samples=20, mask="mean"),
        Lime(samples=20, keep_bos=False),
        Lime(samples=20, scale="prob"),
        Lime(samples=20, seed=1),
        Lime(samples=20, surrogate="lasso"),
        KernelShap(samples=18, paired=False),
        KernelShap(samples=18, seed=1),
        KernelShap(samples=18, mask="mean"),
        KernelShap(samples=18, keep_bos=False),
        KernelShap(samples=18, scale="logit"),
        ProgressiveInference(scale="log_odds"),
        ProgressiveInference(passes="multi", samples=5, seed=1),
        ProgressiveInference(passes="multi", samples=5, penalty=1),
        ProgressiveInference(passes="multi", samples=5, mask="mean"),
        ProgressiveInference(passes="multi", samples=5, keep_bos=False),
        ContextCite(samples=12, held_out=4, seed=1),
        ContextCite(samples=12, held_out=4, penalty=0.1),
        ContextCite(samples=12, held_out=4, keep=0.8),
        ContextCite(samples=12, held_out=4, ablate="mask"),
        ContextCite(samples=12, held_out=4, scale="prob"),
        ContextCite(samples=12, held_out=4, spread="copy"),
    ],
)
def test_every_option_changes_something(other: Baseline) -> None:
    model = zoo.bridge("gpt2")
    usual = {**QUICK, "progressive_inference": QUICK["progressive_inference, multi"]}[other.name]
    if other.name == "progressive_inference" and other.passes == "single":
        usual = QUICK["progressive_inference"]
    ids = ids_of() if other.name == "context_cite" else zoo.prompt(model, 9)
    assert relative(found(model, other, ids).scores, found(model, usual, ids).scores) > 1e-6
