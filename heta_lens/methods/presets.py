"""Presets: a method with its options for each of four situations, as docs/choosing.md argues for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from heta_lens._util.options import check_choice, check_names
from heta_lens.methods.base import Method
from heta_lens.methods.heta.variants import PRESETS as HETA
from heta_lens.methods.method_registry import METHODS


class Preset(NamedTuple):
    method: str
    options: Mapping[str, Any]
    when: str


PRESETS: Mapping[str, Preset] = {
    "fast": Preset("attn_lrp", {}, "an answer at once, for about three forwards"),
    "careful": Preset("heta", HETA["recommended"], "HETA as recommended, for a forward per token"),
    "long": Preset("attn_lrp", {}, "thousands of tokens, where a run for each is too much"),
    "no_gradients": Preset("leave_one_out", {"effect": "log_prob"}, "for or against the target, without gradients"),
}


def method_and_options(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method that a name stands for, with its options: a preset with these changes, or the method of this name."""
    chosen = PRESETS.get(name)
    return (name, {**options}) if chosen is None else (chosen.method, {**chosen.options, **options})


def preset(name: str, **changes: Any) -> Method:
    """The method for a situation, ``attribute(cache, method=preset("fast"))``; ``changes`` are other options of it.

    - ``fast``: an answer at once, for about three forwards
    - ``careful``: HETA as recommended, for a forward per token
    - ``long``: thousands of tokens, where a run for each is too much
    - ``no_gradients``: for or against the target, without gradients
    """
    check_choice("preset", name, PRESETS)
    method, options = method_and_options(name, changes)
    kind: Any = METHODS[method]
    check_names(kind, changes)
    return kind(**options)
