"""The ids of a cached prompt: given and checked, or recovered from the embeddings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, explain, relative
from helpers.predicting import gpt2, same
from helpers.refusing import missing, refusal
from heta_lens import Prediction, attribute

N, PROBES, TARGET = 6, 3, 7

pytestmark = [
    pytest.mark.usefixtures("unchecked"),
]


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [
        (lambda ids: "The cat", TypeError, ["tokens=", "ids", "text"]),  # noqa: ARG005
        (lambda ids: ["The", " cat"] * 3, (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: [None] * N, (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: [[5, 6], [7]], (TypeError, ValueError), ["tokens="]),  # noqa: ARG005
        (lambda ids: ids[:, :-1], ValueError, ["tokens=", f"{N} of them", f"(1, {N - 1})"]),
        (lambda ids: torch.cat([ids, ids], dim=1), ValueError, [f"{N} of them", f"(1, {2 * N})", "only a part cached"]),
        (lambda ids: ids.double(), ValueError, ["tokens=", "float64"]),
        (lambda ids: ids.bool(), ValueError, ["tokens=", "bool"]),
        (lambda ids: ids.repeat(2, 1), ValueError, [f"{N} of them", f"(2, {N})"]),
        (lambda ids: torch.full_like(ids, 121), ValueError, ["tokens=", "121", "0 to 120"]),
        (lambda ids: torch.full_like(ids, -1), ValueError, ["tokens=", "-1", "0 to 120"]),
        (lambda ids: [], ValueError, ["tokens=", f"{N} of them"]),  # noqa: ARG005
    ],
    ids=[
        "text",
        "texts",
        "nothing",
        "ragged",
        "short",
        "long",
        "floats",
        "bools",
        "two prompts",
        "too high",
        "negative",
        "none",
    ],
)
def test_tokens_that_cannot_be_those_of_the_cache_are_refused(
    cache: Any, ids: Tensor, tokens: Any, error: Any, words: list[str]
) -> None:
    sentence = refusal(cache, tokens=tokens(ids))
    assert missing(words, sentence) == ""
    with pytest.raises(error):
        attribute(cache, TARGET, tokens=tokens(ids))


def test_tokens_of_another_prompt_are_suspected(cache: Any, ids: Tensor) -> None:
    assert missing(["tokens=", "another prompt"], refusal(cache, tokens=ids.roll(1) + 1)) == ""


CHEAP = {"variant": "kl_only"}


@pytest.mark.parametrize(
    "form",
    [lambda ids: ids, lambda ids: ids[0], lambda ids: ids[0].tolist(), lambda ids: tuple(ids[0].tolist()), Tensor.int],
    ids=["batch", "flat", "list", "tuple", "int32"],
)
def test_tokens_may_have_any_of_the_shapes_ids_come_in(form: Callable[[Tensor], Any]) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    given = attribute(cache_of(model, ids), TARGET, tokens=form(ids), **CHEAP)
    assert given.ids.tolist() == ids[0].tolist()
    assert same(given, attribute(cache_of(model, ids), TARGET, **CHEAP))


@pytest.mark.parametrize("build", zoo.models())
def test_tokens_are_recovered_from_the_cache_of_every_kind_of_model(build: Any) -> None:
    ids = zoo.prompt(build(), N)
    assert Prediction.from_cache(cache_of(build(), ids)).ids.tolist() == ids[0].tolist()


def duplicate(model: Any, token: int, into: int) -> None:
    """Give the token ``into`` the embedding of another."""
    tables = {id(weight): weight for name, weight in model.named_parameters() if is_embedding(model, name, weight)}
    for weight in tables.values():
        weight.data[into] = weight.data[token]


def is_embedding(model: Any, name: str, weight: Tensor) -> bool:
    return weight.shape == (model.cfg.d_vocab, model.cfg.d_model) and "unembed" not in name


def unused(ids: Tensor) -> list[int]:
    return [token for token in range(20, 40) if token not in ids[0].tolist()]


OWN_KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2,
    "gemma2": lambda: zoo.bridge.__wrapped__("gemma2"),
    "native": lambda: zoo.native_bridge.__wrapped__(),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_tokens_with_one_embedding_are_told_apart_only_by_the_caller(kind: str) -> None:
    model = OWN_KINDS[kind]()
    ids = zoo.prompt(model, N)
    double = unused(ids)[0]
    duplicate(model, int(ids[0, 3]), into=double)
    cache = cache_of(model, ids)
    with pytest.raises(ValueError, match=f"{double}.* share the cached embedding at position 3: pass tokens="):
        attribute(cache)
    assert attribute(cache, TARGET, tokens=ids, **CHEAP).ids.tolist() == ids[0].tolist()


@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.slow
def test_tokens_with_one_embedding_do_no_harm_outside_the_prompt(kind: str) -> None:
    model = OWN_KINDS[kind]()
    ids = zoo.prompt(model, N)
    one, other = unused(ids)[:2]
    duplicate(model, one, into=other)
    assert attribute(cache_of(model, ids), **CHEAP).ids.tolist() == ids[0].tolist()


def test_tokens_with_one_embedding_do_no_harm_after_the_position_that_is_explained() -> None:
    model = gpt2()
    ids = zoo.prompt(model, N)
    duplicate(model, int(ids[0, 3]), into=unused(ids)[0])
    cache = cache_of(model, ids)
    found = attribute(cache, position=2, **CHEAP)
    assert found.target == int(ids[0, 2])
    assert relative(found.scores, explain(model, ids[:, :2], found.target, **CHEAP).scores) < 1e-9
    assert attribute(cache, TARGET, position=3, **CHEAP).ids.tolist() == ids[0, :3].tolist()


@pytest.mark.parametrize(("position", "double"), [(None, N - 1), (4, 3), (3, 3)], ids=["last", "context", "target"])
def test_tokens_with_one_embedding_matter_in_the_context_and_as_the_target(position: int | None, double: int) -> None:
    model = gpt2()
    ids = zoo.prompt(model, N)
    duplicate(model, int(ids[0, double]), into=unused(ids)[0])
    with pytest.raises(ValueError, match=f"share the cached embedding at position {double}: pass tokens="):
        attribute(cache_of(model, ids), position=position)


@pytest.mark.parametrize("wrong", range(N))
def test_tokens_that_were_not_cached_are_refused_by_their_position(wrong: int) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    given = ids.clone()
    given[0, wrong] = unused(ids)[0]
    with pytest.raises(ValueError, match=f"tokens= do not match the cache.*{given[0, wrong]} at position {wrong} "):
        attribute(cache_of(model, ids), TARGET, tokens=given)


@pytest.mark.parametrize("wrong", [3, 5])
def test_tokens_that_were_not_cached_are_refused_also_after_the_context(wrong: int) -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    given = ids.clone()
    given[0, wrong] = unused(ids)[0]
    with pytest.raises(ValueError, match=f"tokens= do not match the cache.*position {wrong} "):
        attribute(cache_of(model, ids), position=3, tokens=given, **CHEAP)


def test_the_result_does_not_change_with_the_callers_tokens() -> None:
    model, ids = zoo.bridge("gpt2"), zoo.prompt(zoo.bridge("gpt2"), N)
    buffer = ids.clone()
    attribution = attribute(cache_of(model, ids), TARGET, tokens=buffer, **CHEAP)
    buffer.zero_()
    assert attribution.ids.tolist() == ids[0].tolist()
