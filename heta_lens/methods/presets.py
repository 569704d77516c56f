"""The presets: methods with their options, by name. docs/choosing.md says when to use which."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from heta_lens._util.options import check_choice, check_names
from heta_lens.methods.base import Method
from heta_lens.methods.heta.variants import CAREFUL
from heta_lens.methods.method_registry import METHODS


class Preset(NamedTuple):
    method: str
    options: Mapping[str, Any]
    when: str

    @property
    def written(self) -> str:
        """The method and its options, as on the command line."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.options.items())])


PRESETS: Mapping[str, Preset] = {
    "fast": Preset(
        "attn_lrp",
        {"rule": "cp_lrp"},
        "which tokens speak for a target and which against it, for one backward pass (lxt's README says that LRP is "
        "patented and free for personal and scientific use)",
    ),
    "careful": Preset(
        "heta",
        CAREFUL,
        "which tokens the prediction depends on, for a forward per token and one backward pass",
    ),
}


def method_and_options(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method that a name stands for, with its options: a preset with these changes, or the method of this name."""
    preset = PRESETS.get(name)
    return (name, {**options}) if preset is None else (preset.method, {**preset.options, **options})


def named(method: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a setting, and its other options: a preset's name, where its options are among these."""
    for name, preset in PRESETS.items():
        if preset.method == method and all(options.get(own) == value for own, value in preset.options.items()):
            return name, {own: value for own, value in options.items() if own not in preset.options}
    return method, {**options}


def preset(name: str, **changes: Any) -> Method:
    """A recommended setting as a ready method; ``changes`` are other options of it.

    ``attribute(cache, method=preset("careful", mask="mean"))`` is ``attribute(cache, method="careful", mask="mean")``.

    - ``fast``: which tokens speak for a target and which against it, for one backward pass (lxt's README says that LRP
      is patented and free for personal and scientific use)
    - ``careful``: which tokens the prediction depends on, for a forward per token and one backward pass

    Both are provisional: a study on real models is still to decide.
    """
    check_choice("preset", name, PRESETS)
    method, options = method_and_options(name, changes)
    kind: Any = METHODS[method]
    check_names(kind, changes)
    return kind(**options)
