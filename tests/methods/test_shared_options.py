"""Options that many methods take: declared once, and inherited by each method that has them."""

from dataclasses import fields

import pytest

from helpers import zoo
from helpers.asking import predict
from heta_lens import METHODS
from heta_lens.methods import shared_options
from heta_lens.methods.shared_options import WithBatch, WithBos, WithLayer, WithMask, WithScale, WithSeed

SHARED = (WithBatch, WithBos, WithLayer, WithMask, WithScale, WithSeed)
NAMED = {name: kind for kind in SHARED for name in vars(kind)["__annotations__"]}


def test_every_shared_option_is_tested_here() -> None:
    assert {vars(shared_options)[name] for name in vars(shared_options) if name.startswith("With")} == {*SHARED}


@pytest.mark.parametrize("kind", SHARED)
def test_an_option_is_documented_where_it_is_declared_and_in_each_method(kind: type) -> None:
    (option,) = vars(kind)["__annotations__"]
    assert (kind.__doc__ or "").strip().startswith(f"- ``{option}``: ")
    for method in METHODS.values():
        if issubclass(method, kind):
            assert f"``{option}``" in (method.__doc__ or ""), method.name


@pytest.mark.parametrize("name", [name for name in METHODS if name != "heta"])
def test_a_method_declares_a_shared_option_again_only_for_another_default(name: str) -> None:
    again = vars(METHODS[name])["__annotations__"].keys() & NAMED.keys()
    defaults = {field.name: field.default for field in fields(METHODS[name])}
    assert not {option for option in again if vars(NAMED[option])[option] == defaults[option]}


def test_a_layer_and_a_mask_are_refused_before_any_run(forwards: object) -> None:
    model = zoo.bridge("gpt2")
    prediction = predict(model, zoo.prompt(model, 4))
    runs = forwards(model)  # type: ignore[operator]
    with pytest.raises(ValueError, match="layer=2 is none of the layers 0 to 1 this model has"):
        METHODS["grad_cam"](layer=2)(prediction)
    with pytest.raises(ValueError, match="mask=1000 is not a token id of this model"):
        METHODS["leave_one_out"](mask=1000)(prediction)
    assert not runs
