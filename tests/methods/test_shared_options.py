"""Options that many methods take: declared once, and inherited by each method that has them."""

from typing import Any

import pytest
import torch

from helpers import zoo
from helpers.asking import QUICK, doubts_allowed, predict
from heta_lens import METHODS, activation, causal
from heta_lens.methods import base as options
from heta_lens.methods.base import WithBatch, WithBos, WithForwards, WithLayer, WithMask, WithScale, WithSeed
from heta_lens.metrics import Drops

SHARED = (WithBatch, WithBos, WithForwards, WithLayer, WithMask, WithScale, WithSeed)


def test_every_shared_option_is_tested_here() -> None:
    assert {vars(options)[name] for name in vars(options) if name.startswith("With")} == {*SHARED}


@pytest.mark.parametrize("kind", SHARED)
def test_an_option_is_documented_where_it_is_declared_and_in_each_method(kind: type) -> None:
    (option,) = vars(kind)["__annotations__"]
    assert (kind.__doc__ or "").strip().startswith(f"- ``{option}``: ")
    for method in METHODS.values():
        if issubclass(method, kind):
            assert f"``{option}``" in (method.__doc__ or ""), method.name


def test_a_layer_and_a_mask_are_refused_before_any_run(forwards: object) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4))
    runs = forwards(model)  # type: ignore[operator]
    with pytest.raises(ValueError, match="layer=2 is none of the layers 0 to 1 this model has"):
        METHODS["grad_cam"](layer=2)(prediction)
    with pytest.raises(ValueError, match="mask=1000 is not a token id of this model"):
        METHODS["leave_one_out"](mask=1000)(prediction)
    assert not runs and METHODS["leave_one_out"](mask=prediction.ids[1]).mask == int(prediction.ids[1])
    one = predict(model, zoo.prompt(model, 4), activation("blocks.1.hook_resid_post", index=0))
    with pytest.raises(ValueError, match="kl= compares predictions, and the target is an activation"):
        METHODS["heta"](kl="js")(one)


# ------------------------------------------------------------------------------------------------------------- seeds
# HETA's signs: heta/test_probes; sampling: prediction/test_generation.
RANDOM = [name for name, method in METHODS.items() if issubclass(method, WithSeed) and name not in ("heta", "sea_cot")]


@pytest.fixture(scope="module")
def alike() -> tuple[Any, Any]:
    """Predictions of two prompts that differ in one token, whose embeddings are the same: only draws can differ."""
    model = zoo.bridge.__wrapped__("gpt2")
    ids, other = zoo.prompt(model, 8), zoo.prompt(model, 8)
    first, second = zoo.tokenizer().encode(" cat dog")[:2]
    ids[0, 3], other[0, 3] = first, second
    with torch.no_grad():
        model.embed.W_E.data[second] = model.embed.W_E.data[first]
    return predict(model, ids, 7), predict(model, other, 7)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", RANDOM)
def test_prompts_of_one_length_have_draws_of_their_own(alike: tuple[Any, Any], name: str) -> None:
    method = METHODS[name](**QUICK.get(name, {}))
    with doubts_allowed():
        first, second, again = (method(prediction).scores for prediction in (*alike, alike[0]))
    assert torch.equal(first, again)
    assert not torch.allclose(first, second)


def test_sets_and_noise_are_drawn_for_each_prompt(alike: tuple[Any, Any]) -> None:
    first, second = (Drops.of(prediction) for prediction in alike)
    assert not torch.equal(first.sets, second.sets) and not torch.equal(first.order, second.order)
    model = alike[0].adapter.model
    grids = [
        causal.trace(model.run_with_cache(prediction.ids[None])[1], 7, tokens=prediction.ids[None], samples=1)
        for prediction in alike
    ]
    assert not torch.allclose(grids[0].values, grids[1].values)
