"""Which methods explain, with which options."""

from typing import Any

import pytest

from heta_lens.cli.app import with_quiet
from heta_lens.cli.flags import methods_of


def test_without_a_choice_it_is_heta() -> None:
    (label,), (method,) = (methods := methods_of({})).keys(), methods.values()
    assert label == method.name == "heta" and method.progress is None


def test_several_each_with_its_options() -> None:
    methods: dict[str, Any] = methods_of({"method": ["loo,lime samples=90 penalty=2", "lime samples=91"]})
    assert [*methods] == ["loo", "lime samples=90 penalty=2", "lime samples=91"]
    first, second, third = methods.values()
    assert first.name == "leave_one_out" and (second.samples, second.penalty, third.samples) == (90, 2, 91)


def test_options_of_the_one_method_and_of_a_preset() -> None:
    (lime,) = methods_of({"method": ["lime samples=90"], "option": ["penalty=2"]}).values()
    assert vars(lime)["samples"] == 90 and vars(lime)["penalty"] == 2
    ((label, method),) = methods_of({"method": ["careful"], "option": ["mask=mean"]}).items()
    assert (label, method.name, vars(method)["mask"]) == ("careful", "heta", "mean")


def test_a_preset_may_be_among_several_methods() -> None:
    methods = methods_of({"method": ["careful,fast,heta"]})
    assert [method.name for method in methods.values()] == ["heta", "attn_lrp", "heta"]
    with pytest.raises(ValueError, match="fast and attn_lrp rule=cp_lrp are the same method"):
        methods_of({"method": ["fast,attn_lrp rule=cp_lrp"]})


@pytest.mark.parametrize(
    ("choosing", "message"),
    [
        ({"method": ["loo,lime"], "option": ["samples=3"]}, "--option samples=3 is of one method, and there are 2"),
        ({"method": ["loo", "loo"]}, "the method loo is given twice"),
        ({"method": ["ig,integrated_gradients"]}, "ig and integrated_gradients are the same method"),
        ({"method": ["heta", "heta probes=10"]}, "heta and heta probes=10 are the same method"),
        ({"method": ["lime samples=90"], "option": ["samples=91"]}, "option 'samples' is given twice"),
        ({"method": ["lime 'samples"]}, "is no method and its options"),
        ({"method": ["limes"]}, "did you mean 'lime'"),
        ({"option": ["tokens=3"]}, "--option tokens=… is not an option of a method"),
    ],
    ids=str,
)
def test_contradictions_are_refused(choosing: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        methods_of(choosing)


def test_quiet_methods_have_no_bar() -> None:
    chosen: list[Any] = []
    with_quiet(lambda: chosen.extend(methods_of({}).values()))(be_quiet=True)
    assert chosen[0].progress is False
