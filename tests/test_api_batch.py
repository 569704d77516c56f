"""Batches: prompts of any length, padded or not, get the answers that each of them alone would get."""

from typing import Any

import numpy as np
import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, relative
from helpers.batches import CHEAP, LENGTHS, Batch, padded, run
from helpers.comparing import alike
from heta_lens import Heta, attribute, attribute_batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]
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


# --------------------------------------------------------------------------------------------- as each of them alone
@pytest.mark.parametrize("build", zoo.models())
def test_every_prompt_is_answered_as_if_it_were_alone(build: Any) -> None:
    check_each(build(torch.float32), "left")


@pytest.mark.parametrize("build", zoo.models(TWO_KINDS))
def test_so_it_is_when_padding_comes_last(build: Any) -> None:
    check_each(build(torch.float32), "right")


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
def test_a_cache_may_be_full_and_tokens_may_be_given(build: Any, side: str) -> None:
    model = build(torch.float32)
    batch, expected = Batch(model, side, full=True), Batch(model, side).explain()
    for tokens in (batch.rows, batch.rows.tolist(), batch.rows.masked_fill(batch.mask == 0, -100)):
        for one, other in zip(batch.explain(tokens=tokens), expected, strict=True):
            assert torch.equal(one.scores, other.scores)


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("build", zoo.models(TWO_KINDS))
def test_every_prompt_has_a_target_of_its_own(build: Any, side: str) -> None:
    batch = Batch(build(torch.float32), side)
    text = batch.model.tokenizer.decode([40])
    for targets in ([7, text, PAIR], [None, 9, text]):
        for number, (one, target) in enumerate(zip(batch.explain(targets, variant="gs"), targets, strict=True)):
            alike(one, batch.single(number, target, variant="gs"))


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("target", [7, PAIR, " cat"], ids=str)
def test_one_target_is_meant_for_all(model: Any, target: Any) -> None:
    batch = Batch(model)
    for number, one in enumerate(batch.explain(target, variant="gs")):
        alike(one, batch.single(number, target, variant="gs"))


def test_targets_and_positions_may_be_tensors(model: Any) -> None:
    found = Batch(model).explain(torch.tensor([7, 8, 9]), positions=torch.tensor([4, -1, 2]))
    assert [(one.target, len(one)) for one in found] == [(7, 4), (8, 7), (9, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("build", zoo.models(TWO_KINDS))
def test_positions_count_without_padding(build: Any, side: str) -> None:
    batch = Batch(build(torch.float32), side)
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


def test_the_order_is_that_of_the_batch(model: Any) -> None:
    batch = Batch(model)
    order = [2, 0, 1]
    rows, mask = batch.rows[order], batch.mask[order]
    found = attribute_batch(run(model, rows, mask), [9, 7, 8], attention_mask=mask, **CHEAP)
    assert [one.target for one in found] == [9, 7, 8]
    for number, one in zip(order, found, strict=True):
        alike(one, batch.single(number, 7 + number))


@pytest.mark.parametrize("ndim", [3, 2])
def test_a_batch_may_be_of_one(model: Any, ndim: int) -> None:
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter, remove_batch_dim=ndim == 2)
    assert cache["hook_embed"].ndim == ndim
    (found,) = attribute_batch(cache, tokens=ids, **CHEAP)
    alike(found, attribute(cache_of(model, ids), tokens=ids, **CHEAP))
    rows, mask = padded([ids, zoo.prompt(model, 9)], "left")
    (found,) = attribute_batch(run(model, rows[:1], mask[:1]), attention_mask=mask[:1], **CHEAP)
    alike(found, attribute(cache_of(model, ids), tokens=ids, **CHEAP))


def test_prompts_of_one_length_need_no_mask(plain: Batch) -> None:
    cache = run(plain.model, plain.rows)
    for number, one in enumerate(attribute_batch(cache, **CHEAP)):
        alike(one, plain.single(number))


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
@pytest.mark.parametrize("side", SIDES)
def test_a_hooked_transformer_masks_padding_by_itself(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.hooked("llama", torch.float32)
    monkeypatch.setattr(model.tokenizer, "padding_side", side)
    batch = Batch(model, side)
    found = attribute_batch(run(model, batch.rows), attention_mask=batch.mask, **CHEAP)
    for number, one in enumerate(found):
        alike(one, batch.single(number))


def test_right_padding_needs_no_mask_in_the_run(model: Any) -> None:
    batch = Batch(model)
    for number, one in enumerate(attribute_batch(run(model, batch.rows), attention_mask=batch.mask, **CHEAP)):
        alike(one, batch.single(number))


@pytest.mark.slow
def test_a_model_without_a_tokenizer_can_be_asked() -> None:
    for build in (zoo.bridge, *([zoo.hooked] if zoo.HAS_HOOKED else [])):
        model = build.__wrapped__("gpt2", torch.float32)
        batch = Batch(model, "left")
        expected = [batch.single(number, 7) for number in range(3)]
        model.tokenizer = None
        for one, other in zip(batch.explain(7), expected, strict=True):
            assert relative(one.scores, other.scores) < 1e-5
            assert one.tokens == tuple(f"<{token}>" for token in one.ids)
        equal = torch.cat([batch.rows[1:2], batch.rows[1:2]])
        assert [len(one) for one in attribute_batch(run(model, equal), **CHEAP)] == [8, 8]


# ------------------------------------------------------------------------------------------------------ what it costs
def test_a_long_prompt_in_the_batch_does_not_make_the_others_dear(model: Any) -> None:
    lengths = (3, 30)
    found = Batch(model, "left", lengths).explain()
    own = [one.diagnostics for one in found]
    assert [facts["forwards"] - facts["backwards"] for facts in own] == [n + 1 for n in lengths]


def test_random_state_has_no_influence(plain: Batch) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one = plain.explain()
        torch.manual_seed(2)
        other = plain.explain()
    assert all(torch.equal(a.scores, b.scores) for a, b in zip(one, other, strict=True))


def test_numbers_may_be_numpys(plain: Batch) -> None:
    found = plain.explain([np.int64(7), 8], positions=[np.int32(3), 4])
    assert [(one.target, len(one)) for one in found] == [(7, 3), (8, 4)]
