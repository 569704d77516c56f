"""Flags that say how a model is loaded, the same for every command that loads one."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from heta_lens.cli.flag_groups import with_flags

FLAGS: dict[str, Any] = {
    "dtype": Annotated[str | None, typer.Option(help="float32 (default on a CPU), bfloat16, float16 or float64.")],
    "device": Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; by default a GPU if there is one.")],
    "device_map": Annotated[str | None, typer.Option(metavar="MAP", help="Split the model: auto, balanced, or JSON.")],
    "n_devices": Annotated[int | None, typer.Option(min=1, help="Split it evenly over so many GPUs.")],
    "max_memory": Annotated[
        str | None, typer.Option(metavar="LIMITS", help="What each device may hold, as in 0=20GB,cpu=60GB.")
    ],
    "quantization_config": Annotated[
        str | None, typer.Option(metavar="CONFIG", help="8bit or 4bit (bitsandbytes), or JSON as transformers has it.")
    ],
    "gguf_file": Annotated[str | None, typer.Option(metavar="NAME", help="The GGUF file in the folder --model.")],
    "revision": Annotated[str | None, typer.Option(help="A branch, tag or commit of the hub.")],
    "trust_remote_code": Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with it.")],
}
"""The options of `load_model`."""


with_loading_flags = with_flags(FLAGS, "loading")
"""Gives a command these flags; it gets those that were used as ``loading``."""

with_hub_flags = with_flags({name: FLAGS[name] for name in ("revision", "trust_remote_code")}, "hub")
"""The same, of what is read from the hub only."""


def loading_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as options of `load_model`, checked before anything is loaded."""
    if not given:
        return {}
    from heta_lens.model.loading_options import boot_options, read_map

    options = {**given, **{name: read_map(given[name]) for name in given.keys() & MAPS}}
    boot_options(options)
    return options


def facts_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a run notes of how its model is loaded: not where, which makes no other evaluation of it."""
    kept = {name: value for name, value in options.items() if name not in PLACES}
    return {"loading": kept} if kept else {}


PLACES = {"device", "device_map", "n_devices", "max_memory"}
MAPS = {"device_map", "max_memory", "quantization_config"}
