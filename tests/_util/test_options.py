"""Options: checked by annotation, written as text, named where they have no effect; targets by their kind."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import zoo
from helpers.asking import cache_of
from heta_lens import METHODS
from heta_lens._util.options import (
    AtLeast,
    assignments,
    check_choice,
    check_names,
    check_options,
    keywords,
    named_object,
)
from heta_lens._util.storage import check_record
from heta_lens._util.target_kinds import SavedFunction, Target, kind_of, sides
from heta_lens.methods.registry import method_of


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


@pytest.mark.parametrize("collection", [list, dict.fromkeys, iter])
def test_a_wrong_choice_is_refused_by_listing_the_right_ones(collection: Callable[[list[str]], Iterable[str]]):
    with pytest.raises(ValueError, match=r"mask='none' is not one of 'zero', 'mean'$"):
        check_choice("mask", "none", collection(["zero", "mean"]))


def test_an_unknown_option_is_refused_by_listing_the_known_ones():
    with pytest.raises(TypeError, match=r"^Options has no option 'steps'; it has flow, power, probes$"):
        check_names(Options, ["flow", "steps"])


def halves(text: str) -> list[tuple[int, int]]:
    return [(0, len(text) // 2), (len(text) // 2, len(text))]


WITHOUT_EFFECT = [
    ("heta", {"variant": "gs", "probes": 8}, "probes=8 has no effect with variant='gs' (which uses one gradient)"),
    ("heta", {"variant": "transition_only", "balance": "sum"}, "balance='sum' has no effect with variant='transition"),
    ("heta", {"variant": "gs", "beta": 0}, "variant='gs' has no effect with beta=0 (which leaves no curvature to"),
    ("heta", {"beta": 0, "support": "row"}, "support='row' has no effect with variant='full' and beta=0"),
    ("heta", {"norm": "entrywise", "probes": 3}, "probes=3 has no effect with norm='entrywise' (which is exact)"),
    ("attention_norm", {"reduce": "rollout", "layer": 1}, "layer=1 has no effect with reduce='rollout' (which takes "),
    ("context_cite", {"mask": "mean"}, "mask='mean' has no effect with ablate='remove' (which masks nothing)"),
    ("context_cite", {"source": "token", "splitter": halves}, "has no effect with source='token' (which splits no"),
    ("progressive_inference", {"samples": 8}, "samples=8 has no effect with passes='single' (it is for passes='mu"),
    ("gilot", {"beams": 4}, "beams=4 has no effect with length=1 (before which no token is written)"),
    (
        "sea_cot",
        {"temperature": 0, "seed": 4, "length": 3, "entail": lambda *_: 0.5},
        "seed=4 has no effect with temperature=0",
    ),
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


@pytest.mark.parametrize("written", ["probes", "=20", "probes=", "two words=1"])
def test_what_names_no_option_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not of the form NAME=VALUE, like probes=20"):
        keywords([written])


def test_what_is_no_python_value_is_text() -> None:
    written = ["x=2", "y={{}}", "z=1_0"]
    assert keywords(written) == {"x": 2, "y": "{{}}", "z": 10}
    assert keywords(["x=false", "y=True", "z=none"]) == {"x": False, "y": True, "z": "none"}
    assert assignments(written) == {"x": "2", "y": "{{}}", "z": "1_0"}


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="option 'x' is given twice: give it once, as x=2"):
        keywords(["x=1", "y=1", "x=2"])


def test_an_object_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "just_here.py").write_text("class Kind:\n    @staticmethod\n    def made():\n        return 7\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert named_object("just_here:Kind.made")() == 7
    assert sys.path == before
    del sys.modules["just_here"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "no_such_module:x cannot be loaded: ModuleNotFoundError: No module named 'no"),
        ("json:nothing", "json:nothing cannot be loaded: AttributeError: module 'json' has no attribute 'nothing'"),
        ("broken_one:x", "broken_one:x cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_there_is_refused(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        named_object(name)


@dataclass
class Story:
    text: str
    spans: Sequence[tuple[int, int]]
    share: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


GOOD: dict[str, Any] = {"text": "a cat", "spans": [(0, 1)], "share": 1, "about": {"hops": 2}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "its text is None, and must be text"),
        ({"spans": [(0, 1.5)]}, r"its spans is \[\(0, 1.5\)\], and must be a list of a list of a whole number"),
        ({"spans": [(0, 1, 2)]}, "its spans is"),
        ({"share": True}, "its share is True, and must be a number or null"),
        ({"about": {1: 2}}, "its about is"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_record(Story, GOOD | changes)


def margin(logits: Tensor, *, first: int = 3) -> Tensor:
    return logits[first] - logits[4]


ANY = frozenset((7, 5))


@pytest.mark.parametrize(
    ("target", "kind", "two"),
    [
        (5, "token", (5,)),
        (ANY, "set", (ANY,)),
        ((5, 7), "contrast", (5, 7)),
        ((ANY, 3), "contrast", (ANY, 3)),
        (margin, "function", ()),
        (SavedFunction("margin"), "function", ()),
    ],
)
def test_every_target_has_one_kind(target: Target, kind: str, two: tuple[object, ...]) -> None:
    assert (kind_of(target), sides(target)) == (kind, two)


def test_a_function_from_a_file_is_not_called_and_says_how_to_go_on() -> None:
    with pytest.raises(ValueError, match=r"the function margin, of which a file holds only the name: .*replace\("):
        SavedFunction("margin")(torch.zeros(3))


def test_a_wrong_name_lists_the_options_alone() -> None:
    with pytest.raises(TypeError, match=r"it has progress, batch, seed, .*samples") as error:
        method_of("lime", {"sample": 3})
    assert not {"family", "cost", "takes"} & {*re.findall(r"\w+", str(error.value).partition("it has")[2])}
    with pytest.raises(TypeError, match="lime has no option 'family'"):
        method_of("lime", {"family": "gradient"})
