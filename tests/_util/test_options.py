"""Wrong options are refused before any work, in words that help."""

import re
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of
from heta_lens import METHODS, Heta
from heta_lens._util.options import (
    MOST,
    AtLeast,
    check_at_least,
    check_batch,
    check_choice,
    check_names,
    check_options,
    chosen,
    hint,
    settings,
)
from heta_lens._util.work import MOST_WORK, working
from heta_lens.data.suites import suite


@dataclass(frozen=True)
class Options:
    flow: Literal["suffix", "rollout"] = "suffix"
    power: Literal[1, 2] = 1
    probes: int = 10


@dataclass(frozen=True)
class Annotations:
    rule: Literal["left", "right"] = "left"
    exact: bool = False
    steps: Annotated[int, AtLeast(1, whole=True)] = 50
    keep: Annotated[float | int, AtLeast(0, below=1)] = 0.5
    layer: Annotated[int | None, AtLeast(0, whole=True)] = None
    progress: bool | None = None


# ------------------------------------------------------------------------------------------------------- annotations
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"rule": "lift"}, ValueError, "rule='lift' is not one of 'left', 'right' .did you mean 'left'"),
        ({"exact": 1}, TypeError, "exact=1 must be True or False"),
        ({"steps": 0}, ValueError, "steps=0 must be at least 1"),
        ({"steps": 2.5}, TypeError, "steps=2.5 must be a whole number"),
        ({"steps": True}, TypeError, "steps=True must be a whole number"),
        ({"keep": 1}, ValueError, "keep=1 must be below 1"),
        ({"keep": float("nan")}, ValueError, "keep=nan"),
        ({"progress": "no"}, TypeError, "progress='no' must be True or False"),
        ({"layer": -1}, ValueError, "layer=-1 must be at least 0"),
    ],
)
def test_a_field_is_checked_by_its_annotation(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_options(Annotations(**given))


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_other_libraries_become_plain_ones() -> None:
    options = Annotations(steps=np.int64(3), keep=np.float32(0.25), layer=torch.tensor(2))  # type: ignore[arg-type]
    check_options(options)
    assert [type(value) for value in (options.steps, options.keep, options.layer)] == [int, float, int]


def test_a_whole_number_may_stand_for_the_default() -> None:
    assert chosen(Heta(variant="gs", prune=0)) == {"variant": "gs"}


def test_what_is_not_the_default_was_chosen_and_all_but_the_bar_is_kept() -> None:
    options = Annotations(steps=3, progress=False)
    assert chosen(options) == {"steps": 3, "progress": False}
    assert settings(options) == {"rule": "left", "exact": False, "steps": 3, "keep": 0.5, "layer": None}


# ----------------------------------------------------------------------------------------------------------- choices
@pytest.mark.parametrize(
    "choices", [["zero", "mean"], ("zero", "mean"), {"zero": 0, "mean": 1}, iter(["zero", "mean"])]
)
def test_a_choice_may_come_from_any_collection(choices: object):
    check_choice("mask", "mean", choices)


@pytest.mark.parametrize("collection", [list, dict.fromkeys, iter])
def test_a_wrong_choice_is_refused_by_listing_the_right_ones(collection: Callable[[list[str]], Iterable[str]]):
    with pytest.raises(ValueError, match=r"mask='none' is not one of 'zero', 'mean'$"):
        check_choice("mask", "none", collection(["zero", "mean"]))


def test_a_near_miss_is_told_what_was_meant():
    with pytest.raises(ValueError, match=r"did you mean 'rollout'\?"):
        check_choice("flow", "rolout", ["suffix", "rollout"])


def test_what_was_meant_is_one_of_the_choices():
    with pytest.raises(ValueError, match="not one of 1, 2") as refusal:
        check_choice("power", "1", [1, 2])
    assert "did you mean '1'" not in str(refusal.value)


@pytest.mark.parametrize("value", [None, 0.5, ["zero"], torch.ones(2), {}])
def test_a_value_of_any_type_can_be_refused(value: object):
    with pytest.raises(ValueError, match="mask="):
        check_choice("mask", value, ["zero", "mean"])


# ----------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("value", [1, 1.0, 2, 1e300])
def test_a_number_may_be_its_minimum_or_more(value: float):
    check_at_least("probes", value, 1)


@pytest.mark.parametrize("value", [0, 0.999, -1, float("nan"), float("-inf")])
def test_a_number_below_its_minimum_is_refused_by_name(value: float):
    with pytest.raises(ValueError, match=r"probes=.* must be at least 1$"):
        check_at_least("probes", value, 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", ["auot", None, [3]])
def test_what_is_no_number_is_refused_by_name(value: object):
    with pytest.raises((TypeError, ValueError), match="batch"):
        check_at_least("batch", value, 1)


# -------------------------------------------------------------------------------------------------------- dataclasses
def test_options_with_known_choices_pass():
    check_options(Options("rollout", 2))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name"), [({"flow": "both"}, "flow"), ({"power": 3}, "power"), ({"power": "1"}, "power")]
)
def test_every_literal_field_is_checked(options: dict, name: str):
    with pytest.raises(ValueError, match=f"^{name}="):
        check_options(Options(**options))


def test_known_option_names_pass():
    check_names(Options, ["probes", "flow"])
    check_names(Options, [])


def test_an_unknown_option_is_refused_by_listing_the_known_ones():
    with pytest.raises(TypeError, match=r"^Options has no option 'steps'; it has flow, power, probes$"):
        check_names(Options, ["flow", "steps"])


def test_a_misspelt_option_is_told_what_was_meant():
    with pytest.raises(TypeError, match=r"'probe' \(did you mean 'probes'\?\)"):
        check_names(Options, ["probe"])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("variant", "ful"),
        ("value_norm", 3),
        ("probes", 0),
        ("probes", 2.5),
        ("probes", "10"),
        ("seed", -1),
        ("seed", 0.5),
        ("beta", float("nan")),
        ("batch", 0),
        ("batch", 2.5),
        ("batch", "atuo"),
        ("mask", "none"),
        ("mask", None),
    ],
)
def test_heta_refuses_a_wrong_option_by_name_when_it_is_made(name: str, value: object):
    with pytest.raises((TypeError, ValueError), match=name):
        Heta(**{name: value})


# ------------------------------------------------------------------------------------------------------------- counts
def whole_options() -> Iterable[tuple[str, str]]:
    """Every option of every method that is a whole number."""
    for name, method in METHODS.items():
        kinds = get_type_hints(method, include_extras=True)
        for field in fields(method):
            checks = getattr(kinds[field.name], "__metadata__", ())
            if any(isinstance(check, AtLeast) and check.whole for check in checks):
                yield name, field.name


WORK = {  # what is run or made one by one
    *(("heta", name) for name in ("probes", "rank")),
    *((name, "samples") for name in ("lime", "kernel_shap", "context_cite", "progressive_inference", "causal_tracing")),
    *((name, "steps") for name in ("integrated_gradients", "sequential_integrated_gradients", "faml")),
    *(("reagent", name) for name in ("probes", "max_steps")),
    *(("sea_cot", name) for name in ("explanations", "length")),
    *(("context_cite", "held_out"), ("discretized_integrated_gradients", "steps")),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("method", "name"), [*whole_options()])
def test_a_count_that_cannot_be_run_is_refused_when_the_method_is_made(method: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=10+ (is more than can be run: give at most|must be below)"):
        METHODS[method](**{name: 10**20})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("method", "name"), sorted(WORK))
def test_the_most_that_is_run_one_by_one_is_the_same_everywhere(method: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={MOST + 1} is more than can be run: give at most {MOST}"):
        METHODS[method](**{name: MOST + 1})


@pytest.mark.usefixtures("unchecked")
def test_counts_outside_methods_are_limited_too() -> None:
    with pytest.raises(ValueError, match=r"batch=10+ is more than can be run"):
        check_batch(10**20)
    with pytest.raises(ValueError, match=r"limit=10+ is more than can be run"):
        suite("recall", limit=10**12)
    with pytest.raises(ValueError, match="factor=21 is more than can be run: give at most 20"):
        METHODS["discretized_integrated_gradients"](factor=21)


def test_work_without_end_is_refused_before_it_is_begun() -> None:
    """Each count is small enough, and their product is not."""
    refused = pytest.raises(ValueError, match=f"{2 * MOST_WORK} forwards, and at most {MOST_WORK} can be run")
    with refused, working({"forwards": 2 * MOST_WORK}, None):
        pytest.fail("begun")


# ---------------------------------------------------------------------------------------- options that have no effect
def halves(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) // 2), (len(text) // 2, len(text))]


BRIEF = {"think": ".", "conclude": " is", "entail": "{explanation}{claim}"}
WITHOUT_EFFECT = [
    ("heta", {"variant": "gs", "probes": 8}, "probes=8 has no effect with variant='gs' (which uses one gradient)"),
    ("heta", {"variant": "gs", "probes": 10}, "probes=10 has no effect with variant='gs' (which uses one gradient)"),
    ("heta", {"variant": "gs", "seed": 1}, "seed=1 has no effect with variant='gs' (which uses one gradient)"),
    ("heta", {"variant": "gs", "tolerance": 0.1}, "tolerance=0.1 has no effect with variant='gs' (which uses one grad"),
    ("heta", {"variant": "gs", "prune": 0.1}, "prune=0.1 has no effect with variant='gs'"),
    ("heta", {"variant": "gs", "layers": 9}, "layers=9 has no effect with variant='gs'"),
    ("heta", {"variant": "gs", "norm": "exact"}, "norm='exact' has no effect with variant='gs'"),
    ("heta", {"variant": "lr", "rank": 2, "tolerance": 0.1}, "tolerance=0.1 has no effect with variant='lr'"),
    ("heta", {"variant": "transition_only", "balance": "sum"}, "balance='sum' has no effect with variant='transition"),
    ("heta", {"beta": 0, "support": "row"}, "support='row' has no effect with variant='full' and beta=0"),
    ("heta", {"variant": "kl_only", "window": 9}, "window=9 has no effect with variant='kl_only'"),
    ("heta", {"variant": "transition_only", "kl": "js"}, "kl='js' has no effect with variant='transition_only'"),
    ("heta", {"gamma": 0, "kl": "js"}, "kl='js' has no effect with variant='full' and gamma=0"),
    ("heta", {"norm": "entrywise", "probes": 3}, "probes=3 has no effect with norm='entrywise' (which is exact)"),
    ("heta", {"norm": "entrywise", "seed": 3}, "seed=3 has no effect with norm='entrywise' (which is exact)"),
    ("heta", {"norm": "entrywise", "tolerance": 0.1}, "tolerance=0.1 has no effect with norm='entrywise'"),
    ("attention_norm", {"reduce": "mean", "layer": 1}, "layer=1 has no effect with reduce='mean' (which takes every"),
    ("causal_tracing", {"mode": "noise_one", "layers": 5}, "layers=5 has no effect with mode='noise_one'"),
    ("context_cite", {"mask": "mean"}, "mask='mean' has no effect with ablate='remove' (which masks nothing)"),
    ("context_cite", {"source": "token", "splitter": halves}, "has no effect with source='token' (which splits no"),
    ("progressive_inference", {"samples": 32}, "samples=32 has no effect with passes='single' (it is for passes='mu"),
    ("progressive_inference", {"passes": "multi", "before": "bos"}, "before='bos' has no effect with passes='multi'"),
    ("gilot", {"beams": 4}, "beams=4 has no effect with length=1 (before which no token is written)"),
    ("gilot", {"distance": "kl", "support": 5}, "support=5 has no effect with distance='kl' (which compares all tok"),
    ("tdd", {"direction": "forward", "add_bos": True}, "add_bos=True has no effect with direction='forward'"),
    ("sea_cot", {"temperature": 0, "seed": 4, "length": 3, **BRIEF}, "seed=4 has no effect with temperature=0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "said"), WITHOUT_EFFECT, ids=[said for *_, said in WITHOUT_EFFECT])
def test_an_option_without_effect_is_accepted_warned_of_once_and_named(
    method: str, options: dict[str, Any], said: str
) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    cache = cache_of(model, ids)
    with pytest.warns(UserWarning, match=re.escape(said)) as told:
        found = heta_lens.attribute(cache, 7, tokens=ids, method=METHODS[method](**options))
    assert sum("has no effect" in str(one.message) for one in told) == 1
    (name,) = found.diagnostics["unused_options"]
    without = {key: value for key, value in options.items() if key != name}
    again = heta_lens.attribute(cache, 7, tokens=ids, method=METHODS[method](**without))
    assert torch.allclose(again.scores, found.scores) and again.diagnostics["unused_options"] == ()
    assert again.title == found.title or method != "heta"


def test_settings_that_are_repeated_are_not_warned_of_again() -> None:
    with pytest.warns(UserWarning, match="probes=8 has no effect"):
        method = Heta(variant="gs", probes=8)
    assert replace(method, seed=0).unused_options == ("probes",)
    assert replace(Heta(variant="hessian_only"), probes=3).weights == (1, 0)  # its beta and gamma are nobody's choice
    assert Heta(**settings(Heta(variant="kl_only"))).unused_options == ()
    assert replace(method, variant="full").unused_options == () and copy(method).unused_options == ("probes",)
    assert Heta(variant="kl_only", tolerance=None, interactions=False, layers=None).unused_options == ()


def test_a_name_that_others_begin_with_is_taken_for_the_shortest_of_them() -> None:
    assert hint("aopc", ["abpc", "aopc_insertion", "aopc_del"]) == " (did you mean 'aopc_del'?)"
    assert hint("abcp", ["abpc", "aopc_del"]) == " (did you mean 'abpc'?)" and hint("zzz", ["abpc"]) == ""
