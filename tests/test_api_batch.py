"""Batches: every prompt is answered as if it were alone, without its padding; or is refused before long work."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import cache_of, missing, refusal, relative
from helpers.attributions import CHEAP, LENGTHS, PAD, Batch, alike, padded, prompts, run
from heta_lens import Heta, attribute, attribute_batch
from heta_lens.model.tokenizer import TokenizerWrapper

pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning")

SIDES = ("left", "right")
PAIR = (7, 9)
TWO_KINDS = "bridge-llama|hooked-gpt2"


@pytest.fixture
def model() -> Any:
    return zoo.bridge("llama", torch.float32)


@pytest.fixture
def plain(model: Any) -> Batch:
    """Two prompts of one length."""
    return Batch(model, lengths=(6, 6))


@pytest.mark.parametrize("build", zoo.models())
def test_every_prompt_is_answered_as_if_it_were_alone(build: Any) -> None:
    check_each(build(torch.float32), "left")


def check_each(model: Any, side: str) -> None:
    batch = Batch(model, side)
    found = batch.explain()
    assert [len(one) for one in found] == list(LENGTHS)
    for number, one in enumerate(found):
        alike(one, batch.single(number))


@pytest.mark.sample(quick=0, test=4)
@pytest.mark.parametrize(
    "options",
    [
        {"support": "row"},
        {"variant": "lr", "rank": 2},
        {"variant": "ls", "layers": 1},
        {"variant": "win", "window": 3, "window_mode": "chunk", "support": "row"},
        {"variant": "gn", "support": "row"},
        {"variant": "no_gate", "mask": "mean"},
        {"balance": "sum", "interactions": True, "probes": 3},
        {"method": Heta(variant="kl_only", kl="js", mask=5)},
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_so_it_is_with_every_option(model: Any, options: dict[str, Any]) -> None:
    batch = Batch(model, "left")
    options = options if "method" in options else {"probes": 1} | options
    for ids, one in zip(batch.alone, attribute_batch(batch.cache, attention_mask=batch.mask, **options), strict=True):
        alike(one, attribute(cache_of(model, ids), tokens=ids, **options))


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("build", zoo.models(TWO_KINDS))
def test_every_prompt_has_a_target_of_its_own_and_positions_count_without_padding(build: Any, side: str) -> None:
    batch = Batch(build(torch.float32), side)
    text = batch.model.tokenizer.decode([40])
    for targets in ([7, text, PAIR], [None, 9, text]):
        for number, (one, target) in enumerate(zip(batch.explain(targets, variant="gs"), targets, strict=True)):
            alike(one, batch.single(number, target, variant="gs"))
    positions = [-2, None, 1]
    found = batch.explain(positions=positions)
    assert [len(one) for one in found] == [3, 8, 1]
    assert [found[0].target, found[2].target] == [int(batch.alone[0][0, 3]), int(batch.alone[2][0, 1])]
    for number, (one, position) in enumerate(zip(found, positions, strict=True)):
        alike(one, batch.single(number, position=position))
    for number, one in enumerate(batch.explain(9, positions=2)):
        alike(one, batch.single(number, 9, position=2))


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("build", zoo.models(TWO_KINDS))
def test_hooks_on_the_model_stay_at_work(build: Any, side: str) -> None:
    model = build(torch.float32)
    bare = Batch(model, side).explain()
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", lambda live, hook: live.roll(1, -1))]):  # noqa: ARG005
        batch = Batch(model, side)
        found, singles = batch.explain(), [batch.single(number) for number in range(3)]
    for one, expected, other in zip(found, singles, bare, strict=True):
        alike(one, expected)
        assert one.diagnostics["user_hooks"] == 1
        assert relative(one.parts["information"], other.parts["information"]) > 1e-3


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("side", SIDES)
def test_a_hooked_transformer_masks_padding_by_itself(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.hooked("llama", torch.float32)
    monkeypatch.setattr(model.tokenizer, "padding_side", side)
    batch = Batch(model, side)
    found = attribute_batch(run(model, batch.rows), attention_mask=batch.mask, **CHEAP)
    for number, one in enumerate(found):
        alike(one, batch.single(number))


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("side", "edge"), [("left", "begins"), ("right", "ends")])
@pytest.mark.usefixtures("unchecked")
def test_padding_that_no_mask_tells_of_is_noticed(
    model: Any, side: str, edge: str, masked: bool, tokens: bool, forwards: Any
) -> None:
    rows, mask = padded(prompts(model, (8, 5)), side)
    cache = run(model, rows, mask if masked else None)
    runs = forwards(model)
    with pytest.raises(ValueError, match=rf"^prompt 1 .* {edge} with the padding token {PAD}: pass attention_mask="):
        attribute_batch(cache, tokens=rows if tokens else None)
    assert runs == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 5, 6, 7], [1, 8, 9, 5]], ""),  # a beginning of text
        ([[1, 5, 1, 1], [1, 8, 9, 1]], "prompt 0 of the batch: it ends"),
        ([[1, 5, 6, 7], [1, 1, 8, 9]], "prompt 1 of the batch: it begins"),
        ([[5, 6, 7, 8], [5, 1, 1, 8]], ""),  # neither end
    ],
)
@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-gpt2"))
def test_a_beginning_of_text_that_is_also_padding_is_taken_for_a_token(
    build: Any, rows: list[list[int]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(torch.float32)
    monkeypatch.setattr(TokenizerWrapper, "pad", 1)
    monkeypatch.setattr(TokenizerWrapper, "bos", 1)
    ids = torch.tensor(rows)
    cache = run(model, ids, torch.ones_like(ids))
    if words:
        with pytest.raises(ValueError, match=words):
            attribute_batch(cache, **CHEAP)
    for number, one in enumerate(attribute_batch(cache, attention_mask=torch.ones_like(ids), **CHEAP)):
        alike(one, attribute(cache_of(model, ids[number : number + 1]), tokens=ids[number], **CHEAP))
    if not words:
        assert [len(one) for one in attribute_batch(cache, **CHEAP)] == [4, 4]


@pytest.mark.parametrize("side", SIDES)
def test_a_mask_that_is_not_that_of_the_run_is_noticed(model: Any, side: str) -> None:
    rows, mask = padded(prompts(model, (8, 5)), side)
    with pytest.raises(ValueError, match=r"^prompt 1 .*not what the cache holds.*attention_mask"):
        attribute_batch(run(model, rows, mask), attention_mask=torch.ones_like(mask), tokens=rows, **CHEAP)


refused = partial(refusal, call=lambda cache, _, **asked: attribute_batch(cache, **asked))


def ones(**changed: Any) -> Tensor:
    mask = torch.ones(2, 6)
    for place, value in changed.items():
        mask[tuple(map(int, place[1:].split("_")))] = value
    return mask


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"attention_mask": torch.ones(2, 5)}, ["attention_mask=", "(2, 6)", "(2, 5)"]),
        ({"attention_mask": ones(_1=0)}, ["attention_mask=", "one stretch of prompt 1"]),
        ({"attention_mask": ones(_1_3=0)}, ["attention_mask=", "one stretch of prompt 1"]),
        ({"attention_mask": "ones"}, ["attention_mask=", "0 and 1"]),
        ({"targets": [7]}, ["targets=", "1 entries", "2 prompts"]),
        ({"positions": [3]}, ["positions=", "1 entries", "2 prompts"]),
        ({"positions": [0, 3]}, ["prompt 0 of the batch", "position=0", "first token"]),
        ({"tokens": torch.zeros(1, 6)}, ["tokens=", "(2, 6)", "(1, 6)"]),
        ({"method": Heta(), "probes": 3}, ["probes", "options go with a method's name"]),
    ],
    ids=lambda given: str(given)[:40],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_is_said_before_the_model_is_run(
    plain: Batch, asked: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(plain.model)
    assert missing(words, refused(plain.cache, **asked)) == ""
    assert runs == []


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"targets": [None, 7, 121]}, ["target=121", "0 to 120"]),
        ({"targets": [None, 7, (5, 5)]}, ["itself"]),
        ({"targets": [7, 7, PAIR], "method": Heta(variant="gn")}, ["variant='gn'", "contrast"]),
        ({"positions": [1, 2, 3]}, ["position=3", "outside", "3 tokens"]),
        ({"tokens": "other"}, ["tokens=", "token 5 at position 2"]),
        ({"tokens": "too high"}, ["tokens=121", "0 to 120"]),
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
        asked = {"tokens": rows}
    assert missing(["prompt 2 of the batch: ", *words], refused(batch.cache, attention_mask=batch.mask, **asked)) == ""
    assert explained == []
