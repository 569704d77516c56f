"""ContextCite against the official code's masks and fit, on ids."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
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
from helpers.ablations import TARGET, TEXT, N, close, found, hooked, ids_of, read, worth
from helpers.asking import plain_embeddings, predict, relative
from heta_lens.methods.surrogates import ContextCite

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
MODEL = pytest.mark.parametrize("name", NAMES)
BUILD = dict(zoo.KINDS)


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
    masks = official_masks(64, 3, ids=ids, seed=7)

    def left(row: list[bool]) -> list[int]:
        kept = [place for source, there in zip([first, second, third], row, strict=True) if there for place in source]
        return ids[0, [0, *kept, *query]].tolist()

    weights, intercept = official_fit(masks, [after(model, left(row)) for row in masks])
    place = (query[0], query[-1] + 1)
    some = found(model, ContextCite(query=(place,), seed=7), ids)
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
    copied = found(model, ContextCite(query=(place,), seed=7, spread="copy"), ids).scores
    assert torch.allclose(copied[first], some.scores[first] * len(first))
    more = official_masks(16, 3, ids=ids, seed=7, after=64)
    y = np.array([after(model, left(row)) for row in more])
    fit = 1 - ((y - intercept - np.array(more) @ weights) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert some.diagnostics["held_out_fit"] == pytest.approx(fit, abs=1e-4)
    assert some.diagnostics["fit"] <= 1 and some.diagnostics["forwards"] == 8


@MODEL
@pytest.mark.parametrize("ablate", ["remove", "mask"])
def test_every_token_can_be_a_source(name: str, ablate: str) -> None:
    model = BUILD[name]()
    ids = zoo.prompt(model, N)
    masks, of = official_masks(40, N - 1, keep=0.6, ids=ids), worth(model, ids, scale="log_odds")
    kept = [[0, *[1 + k for k, there in enumerate(row) if there]] for row in masks]
    y = [of(some) if ablate == "mask" else after(model, ids[0, some].tolist()) for some in kept]
    some = found(model, ContextCite(source="token", ablate=ablate, samples=40, keep=0.6, penalty=0.05))
    weights, _ = official_fit(masks, y, 0.05)
    close(name, some.scores, [0.0, *weights], 20)


def test_sentences_can_be_masked_by_what_one_likes() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    masks, sources = official_masks(64, 4, ids=ids), pieces(ids)
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
    share = np.mean(official_masks(64, 1, ids=ids))
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


def test_a_function_that_has_no_name_is_kept_by_its_kind(tmp_path: Any) -> None:
    class Halves:
        def __call__(self, text: str) -> list[tuple[int, int]]:
            return halves(text)

    some = found(zoo.bridge("gpt2"), ContextCite(splitter=Halves(), samples=4))
    some.save(tmp_path / "found")
    assert some.options["splitter"].endswith("Halves")


def test_what_splitter_and_query_may_be() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=r"splitter returned .* must follow one another"):
        found(model, ContextCite(splitter=lambda text: [(0, len(text) + 1)]))
    with pytest.raises(TypeError, match=r"splitter returned \[3\], which are not pairs \(start, stop\)"):
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


def test_how_many_ablations_there_are() -> None:
    model = zoo.bridge("gpt2")
    short, long = (predict(model, zoo.prompt(model, n), TARGET) for n in (N, 30))
    assert [ContextCite().work(some)["forwards"] for some in (short, long)] == [80, 80]
    assert [ContextCite(source="token", held_out=0).work(some)["forwards"] for some in (short, long)] == [64, 4 * 29]
    assert ContextCite(samples=7).work(short)["forwards"] == 23
