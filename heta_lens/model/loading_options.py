"""How a model is to be loaded: precision, devices, quantisation; checked before anything is loaded."""

import inspect
import json
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_device

from heta_lens._util.caller_warnings import warn

BITS = {"8bit": "load_in_8bit", "4bit": "load_in_4bit"}  # of bitsandbytes
DTYPES = ("float64", "float32", "bfloat16", "float16")


def boot_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, checked; those of quantisation, which TransformerLens does not take, as they are."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    known = inspect.signature(TransformerBridge.boot_transformers).parameters.keys() - {"model_name", "model_class"}
    for name in given:
        if name not in {*known, "quantization_config"}:
            close = get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]}=?)" if close else ""
            raise TypeError(
                f"load_model takes no {name}={hint}: nor does TransformerBridge.boot_transformers of TransformerLens "
                f"{version('transformer-lens')}"
            )
    check_devices(given)
    if "dtype" in given:
        given["dtype"] = dtype_named(given["dtype"])
    if "quantization_config" in given:
        given["quantization_config"] = quantisation(given["quantization_config"])
    return given


def check_devices(given: Mapping[str, Any]) -> None:
    """Refuse devices that contradict each other or are not there."""
    both = [name for name in ("device", "device_map", "n_devices") if name in given]
    if len(both) > 1:
        raise ValueError(f"{both[0]}={given[both[0]]!r} and {both[1]}={given[both[1]]!r} both say where: give one")
    if "max_memory" in given and not {"device_map", "n_devices"} & given.keys():
        raise ValueError("max_memory= limits what each of several devices holds: give device_map='auto' with it")
    if "n_devices" in given and given["n_devices"] > (there := torch.cuda.device_count()):
        raise ValueError(f"n_devices={given['n_devices']}: this machine has {there} GPUs; device_map= also takes cpu")
    if "device" in given:
        check_device(given["device"])


def check_device(device: Any) -> None:
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is no device, such as cpu, cuda or cuda:1") from error
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (kind.index or 0) >= there.get(kind.type, 1):
        raise ValueError(f"device={str(device)!r}: this machine has {there[kind.type]} devices of that kind")


def dtype_named(dtype: Any) -> torch.dtype:
    """``"bfloat16"`` or ``torch.bfloat16``."""
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(named, torch.dtype) or str(named).removeprefix("torch.") not in DTYPES:
        raise ValueError(
            f"dtype={dtype!r} is not one of {', '.join(DTYPES)}: for fewer bits give quantization_config='8bit'"
        )
    return named


def quantisation(config: Any) -> Any:
    """A configuration of transformers; ``"8bit"`` and ``"4bit"`` are those of bitsandbytes."""
    if isinstance(config, str) and config in BITS:
        config = {"quant_method": "bitsandbytes", BITS[config]: True}
    if isinstance(config, str | Path):
        raise ValueError(
            f"quantization_config={str(config)!r} is not {' or '.join(BITS)}, nor a dict with quant_method"
        )
    if not isinstance(config, Mapping):
        return config
    from transformers.quantizers.auto import AutoQuantizationConfig  # imports what quantises

    try:
        return AutoQuantizationConfig.from_dict(dict(config))
    except (ValueError, TypeError, ImportError) as error:
        raise ValueError(f"quantization_config={dict(config)!r} is refused by transformers: {error}") from error


def default_dtype(name: str, given: Mapping[str, Any], saved: torch.dtype | None) -> torch.dtype:
    """That of the checkpoint on a GPU, and float32 on a CPU, where half precision is slow."""
    if saved is None or saved.itemsize >= 4:
        return saved or torch.float32
    half = str(saved).removeprefix("torch.")
    if not on_processor(given):
        return saved
    warn(f"the model {name!r} is saved in {half} and loaded in float32, as is best on a CPU: dtype={half!r} keeps it")
    return torch.float32


def on_processor(given: Mapping[str, Any]) -> bool:
    """Whether the model will run on the CPU alone."""
    places = given.get("device_map")
    if isinstance(places, Mapping):
        return {str(place) for place in places.values()} <= {"cpu", "disk"}
    if "n_devices" in given:
        return False
    place = given.get("device") or (places if places == "cpu" else get_device())
    return torch.device(place).type == "cpu"


def read_map(text: str) -> Any:
    """What is given as text: JSON, ``0=20GB,cpu=60GB``, or a name such as ``auto``."""
    if text.startswith("{"):
        try:
            return {_number(name): value for name, value in json.loads(text).items()}
        except ValueError as error:
            raise ValueError(f"{text!r} is not valid JSON: {error}") from error
    if "=" not in text:
        return text
    return {_number(name): _number(value) for name, _, value in (part.partition("=") for part in text.split(","))}


def _number(text: str) -> int | str:
    """Devices are numbered; sizes are bytes, or have a unit."""
    return int(text) if text.isdigit() else text
