"""Batches that are refused before long work, and what stays as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

import heta_lens
from helpers import zoo
from helpers.asking import busy
from helpers.batches import CHEAP, Batch
from helpers.faults import differences, fail_from, state
from heta_lens import Heta, attribute_batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]
SIDES = ("left", "right")
PAIR = (7, 9)


@pytest.fixture
def model() -> Any:
    return zoo.bridge("llama", torch.float32)


@pytest.fixture
def plain(model: Any) -> Batch:
    """Two prompts of one length."""
    return Batch(model, lengths=(6, 6))


# ------------------------------------------------------------------------------------------------------------ refusals
def ones(**changed: Any) -> Tensor:
    mask = torch.ones(2, 6)
    for place, value in changed.items():
        mask[tuple(map(int, place[1:].split("_")))] = value
    return mask


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"attention_mask": torch.ones(6)}, ValueError, ["attention_mask=", "(2, 6)", "(6,)"]),
        ({"attention_mask": torch.ones(2, 5)}, ValueError, ["attention_mask=", "(2, 6)", "(2, 5)"]),
        ({"attention_mask": torch.ones(1, 6)}, ValueError, ["attention_mask=", "(2, 6)", "(1, 6)"]),
        ({"attention_mask": torch.ones(2, 6, 1)}, ValueError, ["attention_mask=", "(2, 6)", "(2, 6, 1)"]),
        ({"attention_mask": ones(_1_3=2.0)}, ValueError, ["attention_mask=", "must be 1", "0"]),
        ({"attention_mask": ones(_1_5=-1.0)}, ValueError, ["attention_mask=", "must be 1", "0"]),
        ({"attention_mask": ones(_0_0=0.5)}, ValueError, ["attention_mask=", "must be 1", "0"]),
        ({"attention_mask": ones(_1_0=torch.nan)}, ValueError, ["attention_mask=", "must be 1", "0"]),
        ({"attention_mask": ones(_1_0=torch.inf)}, ValueError, ["attention_mask=", "must be 1", "0"]),
        ({"attention_mask": ones(_1=0)}, ValueError, ["attention_mask=", "nothing of prompt 1"]),
        ({"attention_mask": ones(_1_3=0)}, ValueError, ["attention_mask=", "position 3", "prompt 1"]),
        ({"attention_mask": ones(_1_4=0)}, ValueError, ["attention_mask=", "position 4", "prompt 1"]),
        ({"attention_mask": "ones"}, TypeError, ["attention_mask=", "0 and 1"]),
        ({"attention_mask": [[1] * 6, [1] * 5]}, TypeError, ["attention_mask=", "0 and 1"]),
        ({"targets": [7]}, ValueError, ["targets=", "1 entries", "2 prompts"]),
        ({"targets": []}, ValueError, ["targets=", "0 entries", "2 prompts"]),
        ({"targets": [7, 8, 9]}, ValueError, ["targets=", "3 entries", "2 prompts"]),
        ({"positions": [3]}, ValueError, ["positions=", "1 entries", "2 prompts"]),
        ({"positions": torch.tensor([3, 4, 5])}, ValueError, ["positions=", "3 entries", "2 prompts"]),
        ({"positions": [0, 3]}, ValueError, ["prompt 0 of the batch", "position=0", "first token"]),
        ({"positions": "3"}, TypeError, ["prompt 0 of the batch", "position='3'", "whole number"]),
        ({"positions": True}, TypeError, ["prompt 0 of the batch", "position=True", "whole number"]),
        ({"tokens": torch.zeros(1, 6)}, ValueError, ["tokens=", "(2, 6)", "(1, 6)"]),
        ({"tokens": torch.zeros(12)}, ValueError, ["tokens=", "(2, 6)", "(12,)"]),
        ({"tokens": "The cat"}, TypeError, ["tokens=", "2 rows of 6"]),
        ({"tokens": ["The cat", "sat"]}, TypeError, ["tokens=", "2 rows of 6"]),
        ({"method": "hetta"}, ValueError, ["method='hetta'", "did you mean 'heta'"]),
        ({"method": Heta(), "probes": 3}, TypeError, ["probes", "options go with a method's name"]),
        ({"prob": 3}, TypeError, ["no option 'prob'", "did you mean 'probes'"]),
        ({"beta": -1}, ValueError, ["beta=-1", "at least 0"]),
    ],
    ids=lambda given: (
        " ".join(f"{name}={value}" for name, value in given.items())[:40] if isinstance(given, dict) else ""
    ),
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said_before_the_model_is_run(
    plain: Batch, asked: dict[str, Any], error: Any, words: list[str], forwards: Any
) -> None:
    runs = forwards(plain.model)
    refused = refusal(error, plain.cache, **asked)
    assert [word for word in words if word not in refused] == []
    assert runs == []


def refusal(error: Any, cache: Any, *args: Any, **asked: Any) -> str:
    """The one sentence with which heta_lens, and nothing below it, refuses."""
    with pytest.raises(error) as refused:
        attribute_batch(cache, *args, **asked)
    assert Path(heta_lens.__file__).parent in Path(refused.traceback[-1].path).parents
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"targets": [None, 7, 121]}, ["target=121", "0 to 120"]),
        ({"targets": [None, 7, "Paris!"]}, ["'Paris!'", "not a single token"]),
        ({"targets": [None, 7, (5, 5)]}, ["itself"]),
        ({"targets": [7, 7, PAIR], "method": Heta(variant="gn")}, ["variant='gn'", "contrast"]),
        ({"positions": [1, 2, 3]}, ["position=3", "outside", "3 tokens"]),
        ({"positions": [1, 2, 0]}, ["position=0", "first token"]),
        ({"positions": [1, 2, 2.5]}, ["position=2.5", "whole number"]),
        ({"tokens": "other"}, ["tokens=", "token 5 at position 2"]),
        ({"tokens": "too high"}, ["tokens=121", "0 to 120"]),
        ({"tokens": "floats"}, ["tokens=", "float"]),
    ],
    ids=lambda given: str(given)[:40],
)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_with_the_last_prompt_is_said_before_any_is_explained(
    model: Any, side: str, asked: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, explained = Batch(model, side), []
    call = Heta.__call__
    monkeypatch.setattr(Heta, "__call__", lambda *given: explained.append(given) or call(*given))
    if "tokens" in asked:
        rows, last = batch.rows.clone(), batch.mask[2].nonzero().flatten()[-1]
        rows[2, last] = 121 if asked["tokens"] == "too high" else 5
        rows = rows.double() if asked["tokens"] == "floats" else rows
        asked, number = {"tokens": rows}, 0 if asked["tokens"] == "floats" else 2
    else:
        number = 2
    sentence = refusal((ValueError, TypeError), batch.cache, attention_mask=batch.mask, **asked)
    assert sentence.startswith(f"prompt {number} of the batch: ")
    assert [word for word in words if word not in sentence] == []
    assert explained == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variant": "ls", "layers": 3}, ["layers=3", "2 layers"]),
        ({"mask": torch.zeros(3)}, ["3 entries", "8"]),
        ({"mask": 121}, ["mask=121", "0 to 120"]),
        ({"norm": "exact", "support": "row"}, ["norm='exact'", "2^48"]),
    ],
    ids=lambda given: str(given)[:30],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_done_is_said_before_long_work(
    plain: Batch, options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(plain.model)
    sentence = refusal(ValueError, plain.cache, **options)
    assert [word for word in words if word not in sentence] == []
    assert len(runs) <= 4


def test_a_nan_in_one_prompt_is_found_by_its_number(plain: Batch) -> None:
    for name in ("hook_embed", "blocks.1.attn.hook_v", "blocks.0.attn.hook_pattern"):
        spoiled = {key: activation.clone() for key, activation in plain.cache.cache_dict.items()}
        spoiled[name][(1, 0, 3) if name.endswith("pattern") else (1, 3)] = torch.nan
        with pytest.raises(ValueError, match=rf"^prompt 1 of the batch: the cached {name} is not finite at position 3"):
            attribute_batch(ActivationCache(spoiled, plain.model), tokens=plain.rows, **CHEAP)


def test_a_run_that_ends_in_nothing_is_told_where(plain: Batch) -> None:
    with pytest.raises(ValueError, match=r"^prompt 0 of the batch: information is nan at position 0, token '<bos>'"):
        plain.explain(mask=torch.full((8,), torch.nan))


@pytest.mark.parametrize("name", ["hook_embed", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_v"])
@pytest.mark.usefixtures("unchecked")
def test_a_cache_that_lacks_an_activation_is_told_which(plain: Batch, name: str, forwards: Any) -> None:
    kept = {key: cached for key, cached in plain.cache.cache_dict.items() if key != name}
    runs = forwards(plain.model)
    assert repr(name) in refusal(ValueError, ActivationCache(kept, plain.model))
    assert len(runs) <= 4


@pytest.mark.parametrize("thing", [{}, None, (1, 2)], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_cache_is_refused(thing: Any) -> None:
    assert "run_with_cache" in refusal(TypeError, thing)


# ----------------------------------------------------------------------------------------------- everything as it was
OWN_KINDS: dict[str, Callable[[], Any]] = {
    "bridge": lambda: zoo.bridge.__wrapped__("gpt2", torch.float32),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama", torch.float32)} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.parametrize(
    "wrong", [{}, {"targets": [7, 7, 999]}, {"positions": 3}, {"mask": 10**6}, {"attention_mask": None}], ids=str
)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes(kind: str, wrong: dict[str, Any]) -> None:
    model = busy(OWN_KINDS[kind]())
    batch = Batch(model, "left")
    before, mask = state(model, batch.cache, batch.rows), batch.mask.clone()
    asked = {"tokens": batch.rows} | wrong
    if wrong:
        with pytest.raises(ValueError, match=r"\w"):
            batch.explain(**asked)
    else:
        assert not any(one.scores.requires_grad for one in batch.explain(**asked))
    assert differences(before, state(model, batch.cache, batch.rows)) == []
    assert torch.equal(batch.mask, mask)


@pytest.mark.parametrize("call", [1, 4, 20])
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes_when_it_is_broken_off(
    kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = busy(OWN_KINDS[kind]())
    batch = Batch(model, "left")
    fail_from(monkeypatch, model.blocks[1].ln1, call, KeyboardInterrupt())
    before = state(model, batch.cache, batch.rows)
    with pytest.raises(KeyboardInterrupt):
        batch.explain()
    assert differences(before, state(model, batch.cache, batch.rows)) == []
