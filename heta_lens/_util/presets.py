"""Settings of methods by name."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CAREFUL: Mapping[str, Any] = {"variant": "gs", "combine": "geometric", "information": "target", "gate": "none"}


class Preset(NamedTuple):
    """A method with options, and its use."""

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
        "where the evidence is, for one backward pass; not for signs (lxt's README says that LRP is patented and free "
        "for personal and scientific use)",
    ),
    "careful": Preset(
        "heta",
        CAREFUL,
        "where the evidence is and which way it works, for a forward per token and one backward pass",
    ),
}

NO_SIGNS = ("fast",)  # presets whose signs are no evidence

RECOMMENDED = {
    "careful": PRESETS["careful"].when,
    "peering": "facts, and facts in a chat, for one forward pass: likeness to the answer, and no effect",
    "attn_lrp": "why one form of a word rather than another (a pair of targets), for one backward pass",
    "fast": PRESETS["fast"].when,
    "leave_one_out": "questions about a paragraph, and effects in nats, for a forward per token",
    "heta": "to study the paper",
}
"""Methods with their options, and what each is recommended for."""


def method_and_options(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method and the options that a name stands for: a preset with changes, or a method."""
    preset = PRESETS.get(name)
    return (name, {**options}) if preset is None else (preset.method, {**preset.options, **options})


def as_preset(method: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the preset with these options and the remaining options, or the method unchanged."""
    for name, preset in PRESETS.items():
        if preset.method == method and preset.options.items() <= options.items():
            return name, {option: value for option, value in options.items() if option not in preset.options}
    return method, {**options}
