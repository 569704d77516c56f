"""How a model is to be loaded: precision, devices, quantisation; checked before anything is loaded."""

import inspect
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_device

from heta_lens._util.caller_warnings import warn
from heta_lens._util.file_reading import brief
from heta_lens._util.options import check_at_least

BITS = {"8bit": "load_in_8bit", "4bit": "load_in_4bit"}  # of bitsandbytes
DTYPES = ("float64", "float32", "bfloat16", "float16")
READ = re.compile(r"^(model|transformer|gpt_neox)?$|(^|[._])(embed\w*|wte|lm_head|embed_out)$")
"""What embeddings and unembeddings are called, and the whole model."""
SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "fp64": "float64"}


def boot_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, checked; those of quantisation, which TransformerLens does not take, as they are."""
    unused = {"trust_remote_code": False}
    given = {name: value for name, value in options.items() if value is not None and unused.get(name) is not value}
    known = inspect.signature(TransformerBridge.boot_transformers).parameters.keys() - {"model_name", "model_class"}
    for name in given:
        if name not in {*known, "quantization_config", "gguf_file"}:
            close = get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]}=?)" if close else ""
            raise TypeError(
                f"load_model takes no {name}={hint}: nor does TransformerBridge.boot_transformers of TransformerLens "
                f"{version('transformer-lens')}"
            )
    check_kinds(options)
    check_devices(given)
    if isinstance(given.get("device_map"), Mapping):
        given["device_map"] = {module: _place(place) for module, place in given["device_map"].items()}
    if "dtype" in given:
        given["dtype"] = dtype_named(given["dtype"])
    if "quantization_config" in given:
        given["quantization_config"] = quantisation(given["quantization_config"])
    return given


def check_kinds(options: Mapping[str, Any]) -> None:
    """Refuse options of another type than `load_model` takes."""
    trust, limits, places = (options.get(name) for name in ("trust_remote_code", "max_memory", "device_map"))
    if not isinstance(trust, bool | None):
        raise TypeError(f"trust_remote_code={trust!r} must be True or False")
    if not isinstance(limits, Mapping | None) or None in (limits or {}).values():
        sizes = "{0: '20GB', 'cpu': '60GB'}, or 0=20GB,cpu=60GB"
        raise TypeError(f"max_memory={limits!r} must say a size for each device: {sizes}")
    names = places if isinstance(places, Mapping) else ()
    if not isinstance(places, str | Mapping | None) or places == {} or not all(isinstance(name, str) for name in names):
        raise TypeError(f"device_map={places!r} must be 'auto', or a dict of modules and devices")
    if not isinstance(options.get("gguf_file"), str | None):
        raise TypeError(f"gguf_file={options['gguf_file']!r} must be the name of a file in the model's folder")
    tokenizer = options.get("tokenizer")
    if tokenizer is not None and not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise TypeError(f"tokenizer={brief(tokenizer)} must be a tokenizer of transformers")
    if options.get("n_devices") is not None:
        check_at_least("n_devices", options["n_devices"], 1, whole=True)


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
        check_device("device", given["device"])
    if isinstance(given.get("device_map"), Mapping):
        check_places(given["device_map"])


def check_places(places: Mapping[str, Any]) -> None:
    """Refuse what is no device, and embeddings or an unembedding on the disk: they are read, and not only run."""
    for module, place in places.items():
        if place != "disk":
            check_device(f"device_map={{{module!r}: …}}", place)
    away = [name for name, place in places.items() if place == "disk" and READ.search(name)]
    if away:
        what = repr(away[0]) if away[0] else "the whole model"
        raise ValueError(
            f"device_map= puts {what} on the disk, and embeddings and unembedding must be in memory: put these on the "
            "CPU, and blocks on the disk"
        )


def _place(place: Any) -> str | int:
    """A device as accelerate has it, which takes ``cpu`` and ``cpu:0`` for two."""
    if place == "disk" or isinstance(place, int):
        return place
    device = torch.device(place)
    return "cpu" if device.type == "cpu" else str(device)


def check_device(name: str, device: Any) -> None:
    if isinstance(device, int) and not isinstance(device, bool):
        device = f"cuda:{device}"
    try:
        kind = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}={device!r} is no device, such as cpu, cuda or cuda:1") from error
    if kind.type == "meta":
        raise ValueError(f"{name}={str(device)!r} holds no weights: heta_lens.estimate_memory needs none")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    count = there.get(kind.type, (kind.index or 0) + 1)  # of kinds that cannot be counted here, none is refused
    if (kind.index or 0) >= count:
        has = f"no device {kind.type}" if count == 0 else f"only {', '.join(f'{kind.type}:{n}' for n in range(count))}"
        raise ValueError(f"{name}={str(device)!r}: this machine has {has}")


def dtype_named(dtype: Any) -> torch.dtype:
    """``"bfloat16"`` or ``torch.bfloat16``."""
    named = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(named, torch.dtype) or str(named).removeprefix("torch.") not in DTYPES:
        lower = str(dtype).lower().removeprefix("torch.")
        short = lower if lower in DTYPES else SHORT.get(lower)
        way = f"did you mean {short!r}?" if short else "for fewer bits give quantization_config='8bit'"
        raise ValueError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}: {way}")
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
        if not hasattr(config, "quant_method"):
            raise TypeError(f"quantization_config={config!r} is not {' or '.join(BITS)}, nor one of transformers")
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
