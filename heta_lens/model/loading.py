"""Model loading: the demo model of the library, and other models by name or folder, or from a configuration."""

import importlib.util
import json
import logging
import os
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from safetensors.torch import load_file
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_device
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
)

from heta_lens._util.options import check_choice, hint
from heta_lens._util.python import warn
from heta_lens.model.checkpoints import (
    WHOLE,
    Checked,
    check_folder,
    check_in_memory,
    first_sentence,
    folder_of,
    gguf_path,
    read_from,
    read_gguf,
)

Kind: TypeAlias = Literal["hooked", "bridge"]

DEMO = Path(__file__).parents[1] / "demo_model"
DEMO_NAMES = ("heta_lens demo", str(DEMO))  # as a HookedTransformer, and as a bridge
DEMO_STORY = (
    "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
)
HAS_HOOKED = importlib.util.find_spec("transformer_lens.HookedTransformer") is not None
"""TransformerLens 4 has no `HookedTransformer`."""
DTYPES = ("float64", "float32", "bfloat16", "float16")


# --------------------------------------------------------------------------------------------------------- the options
def boot_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options of `load_model` in the form of the libraries, without one device, the default."""
    given = {name: value for name, value in options.items() if value is not None and (name, value) != ("n_devices", 1)}
    for name in ("device", "device_map") if "n_devices" in given else ():
        if name in given:
            raise ValueError(f"n_devices={given['n_devices']} and {name}={given[name]!r} both say where: give one")
    if "max_memory" in given and not (isinstance(given.get("device_map"), str) or "n_devices" in given):
        raise ValueError("max_memory= is for a split that is not written out: give device_map='auto' or n_devices= too")
    if "dtype" in given:
        given["dtype"] = _dtype(given["dtype"])
    if "quantization_config" in given:
        given["quantization_config"] = quantisation(given["quantization_config"])
    return given


def _dtype(dtype: Any) -> torch.dtype:
    """Return the dtype of ``"bfloat16"`` or ``torch.bfloat16``."""
    name = str(dtype).removeprefix("torch.").lower()
    if name not in DTYPES:
        way_out = hint(name, DTYPES) or ": for fewer bits give quantization_config='8bit'"
        raise ValueError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}{way_out}")
    return getattr(torch, name)


def quantisation(config: Any) -> Any:
    """Return a configuration of transformers; ``"8bit"`` and ``"4bit"`` stand for configurations of bitsandbytes."""
    if hasattr(config, "quant_method"):
        return config
    if config in ("8bit", "4bit"):
        config = {"quant_method": "bitsandbytes", f"load_in_{config}": True}
    if not isinstance(config, Mapping):
        raise ValueError(f"quantization_config={config!r} is not 8bit or 4bit, nor a configuration of transformers")
    from transformers.quantizers.auto import AutoQuantizationConfig  # imports quantisation libraries

    return AutoQuantizationConfig.from_dict(dict(config))


def default_dtype(name: str, given: Mapping[str, Any], saved: torch.dtype | None) -> torch.dtype:
    """Return the checkpoint's dtype on a GPU, and float32 on a CPU, where half precision is slow."""
    places = given.get("device_map")
    one = "cpu" if places == "cpu" else given.get("device") or get_device()
    devices = places.values() if isinstance(places, Mapping) else [one]
    on_cpu = "n_devices" not in given and {*map(str, devices)} <= {"cpu", "disk"}
    if saved is None or saved.itemsize >= 4 or not on_cpu:
        return saved or torch.float32
    half = str(saved).removeprefix("torch.")
    warn(f"the model {name!r} is saved in {half} and loaded in float32, as is best on a CPU: dtype={half!r} keeps it")
    return torch.float32


def read_map(text: str) -> Any:
    """Read an option from text: JSON, or a name such as ``auto``."""
    if not text.startswith("{"):
        return text
    try:
        return {int(name) if name.isdigit() else name: value for name, value in json.loads(text).items()}
    except ValueError as error:
        raise ValueError(f"{text!r} is not valid JSON: {error}") from error


# ------------------------------------------------------------------------------------------------------ the demo model
def load_demo_model(kind: Kind | None = None) -> Any:
    """Load the small trained model that ships with the library: offline, on the CPU, in float32.

    The demo model reads the stories of `heta_lens.data.recall` and answers questions about them. ``kind`` is
    ``"hooked"`` for a `HookedTransformer` (the default with TransformerLens 3) or ``"bridge"`` for a
    `TransformerBridge` (the default with TransformerLens 4).
    """
    if kind is not None:
        check_choice("kind", kind, get_args(Kind))
    if kind == "hooked" and not HAS_HOOKED:
        raise ValueError("kind='hooked' needs TransformerLens 3: HookedTransformer was removed in 4; use kind='bridge'")
    with torch.random.fork_rng(devices=[]):
        # Unlike `from_pretrained`, these lines are silent, need no network and take a tenth of a second.
        weights: Any = LlamaForCausalLM(LlamaConfig.from_pretrained(DEMO, attn_implementation="eager")).float()
        weights.tie_weights()
        weights.load_state_dict(load_file(DEMO / WHOLE), strict=False)  # tied weights are stored once
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        if kind == "hooked" or (kind is None and HAS_HOOKED):
            return _hooked(weights, tokenizer)
        options = {"hf_model": weights, "tokenizer": tokenizer, "device": "cpu"}
        return TransformerBridge.boot_transformers(str(DEMO), **options).eval().requires_grad_(False)


def load_model(
    model: Any,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    n_devices: int | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    quantization_config: Any = None,
    gguf_file: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **more: Any,
) -> Any:
    """Load a model ready to be explained: a `TransformerBridge`, or the model of `load_demo_model`.

    Weights are read from safetensors and GGUF files only. Missing weights, weights of a wrong shape, and weights that
    are not finite are refused by name. Parameters need no gradients, so that `run_with_cache` keeps no graph. A model
    that is already loaded keeps its precision, its devices, and the flags of its parameters.

    Args:
        model: ``"demo"``, a name on the Hugging Face hub, a folder, a GGUF file, or a transformers model that is
            already loaded.
        dtype: such as ``"bfloat16"``; by default the checkpoint's dtype on a GPU, and float32 on a CPU.
        device: the device of the model; by default a GPU if the machine has a GPU.
        device_map: a split over several devices, as in accelerate: ``"auto"``, or a dict.
        n_devices: the number of GPUs for an even split.
        max_memory: the limit of each device, ``{0: "20GB", "cpu": "60GB"}``.
        quantization_config: ``"8bit"`` or ``"4bit"`` (bitsandbytes), or a configuration of transformers; not needed for
            a checkpoint that was saved quantised.
        gguf_file: the GGUF file in the folder ``model``; its weights are written out in ``dtype``, by default float32.
        revision: a branch, tag or commit of the hub.
        trust_remote_code: run the code that comes with the model.
        more: further options of `TransformerBridge.boot_transformers`, such as ``tokenizer`` or ``n_ctx``.

    Example:
        >>> model = heta_lens.load_model("demo")  # or "gpt2", a folder, a GGUF file
        >>> tokens = model.to_tokens("Leo put the key in the")
        >>> logits, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
    """
    given = boot_options(
        {
            **{"dtype": dtype, "device": device, "device_map": device_map, "n_devices": n_devices},
            **{"max_memory": max_memory, "quantization_config": quantization_config, "gguf_file": gguf_file},
            **{"revision": revision, "trust_remote_code": trust_remote_code or None, **more},
        }
    )
    if hasattr(model, "hook_dict"):
        raise TypeError(f"this {type(model).__name__} is a TransformerLens model already: use it as it is")
    if isinstance(model, nn.Module):
        return _bridged(model, given)
    if not isinstance(model, str | PathLike):
        raise TypeError(f"model={model!r} must be demo, a name, a folder or a transformers model")
    name = os.fspath(model)
    if name == "demo" and not given:
        return load_demo_model()
    place = str(DEMO) if name == "demo" else name
    file = gguf_path(place, given.pop("gguf_file", None))
    if file is not None:
        return _from_gguf(file, given)
    local = folder_of(place, "model", revision)
    if local is not None:
        check_folder(local, tokenizer="tokenizer" not in given)
    return read_from(place, "model", local, lambda path: _booted(path, given))


def _from_gguf(file: Path, given: dict[str, Any]) -> Any:
    """Return a bridge of the model in a GGUF file, with plain weights."""
    for name in sorted(given.keys() - {"dtype", "device", "tokenizer"}):
        raise ValueError(
            f"{name}= cannot be used with a GGUF file, which takes dtype=, device= and tokenizer= only: save it as a "
            "folder first, with heta_lens.model.checkpoints.read_gguf(file)"
        )

    def read(_: str) -> Any:
        model, tokenizer = read_gguf(file, given.get("dtype", torch.float32))
        model.config.name_or_path = str(file)
        if tokenizer.bos_token is not None:  # otherwise TransformerLens reads the tokenizer again
            tokenizer.add_bos_token = tokenizer.init_kwargs["add_bos_token"] = True
        model.to(given.get("device") or get_device())
        return _bridged(model, {"tokenizer": given.get("tokenizer", tokenizer)}).requires_grad_(False)

    return read_from(str(file), "model", file, read)


def _booted(name: str, given: dict[str, Any]) -> Any:
    """Return a bridge of a checkpoint, which is checked during loading."""
    trust = given.get("trust_remote_code", False)  # without a value, transformers asks at the terminal
    config = AutoConfig.from_pretrained(name, revision=given.get("revision"), trust_remote_code=trust)
    quantise = given.pop("quantization_config", None)
    if "dtype" not in given:
        given["dtype"] = default_dtype(name, given, getattr(config, "dtype", None))
    quantised = quantise is not None or getattr(config, "quantization_config", None) is not None
    if quantised and not {"device_map", "n_devices"} & given.keys():  # quantised weights cannot be moved afterwards
        given["device_map"] = {"": str(given.pop("device", None) or get_device())}
    checked: Any = Checked(quantise)
    # Kernels of bitsandbytes repeat a message about dtypes in every layer of every run.
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
    booted = TransformerBridge.boot_transformers(name, model_class=checked, **given).eval()
    check_in_memory(booted)
    return booted.requires_grad_(False)  # else `run_with_cache` keeps the graph of its run


def _bridged(model: nn.Module, given: dict[str, Any]) -> Any:
    """Return a bridge around a loaded transformers model, in the model's precision and on its devices."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise TypeError(f"model is a {type(model).__name__}, not a transformers model: it has no config")
    for name in sorted(given.keys() - {"tokenizer", "trust_remote_code"}):
        movable = name in ("dtype", "device")
        way_out = f"call model.to({given[name]!r}) first" if movable else "give it to from_pretrained"
        raise ValueError(f"{name}= says how to load weights, which this model has: {way_out}")
    place = getattr(model, "hf_device_map", None) or next(model.parameters()).device
    options = {**given, "dtype": model.dtype}
    if not isinstance(place, dict):
        options["device"] = place
    source = config._name_or_path
    if not source and "tokenizer" not in given:
        raise ValueError("this model does not know where its tokenizer is: give tokenizer=")
    return TransformerBridge.boot_transformers(source or "model", hf_model=model, **options).eval()


def _hooked(weights: Any, tokenizer: Any) -> Any:
    from transformer_lens import HookedTransformer
    from transformer_lens.loading_from_pretrained import get_pretrained_model_config
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    config = get_pretrained_model_config(str(DEMO), device="cpu", dtype=torch.float32)
    config.model_name, config.tokenizer_name = DEMO_NAMES[0], None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(config, tokenizer=tokenizer)
    model.load_state_dict(convert_llama_weights(weights, config), strict=False)  # buffers are computed
    # The angles of transformers: a frequency that is off by one bit shows after a thousand positions.
    cosines, sines = weights.model.rotary_emb(torch.zeros(1), torch.arange(config.n_ctx)[None])
    for block in model.blocks:
        block.attn.rotary_cos.copy_(cosines[0])
        block.attn.rotary_sin.copy_(sines[0])
    return model.eval().requires_grad_(False)


# ------------------------------------------------------------------------------------------- models without weights
def absent_model(
    config: Any, dtype: torch.dtype | str | None = None, revision: str | None = None, *, trust_remote_code: bool = False
) -> Any:
    """Build a model of transformers on the meta device, where weights have no numbers.

    ``config`` is a configuration, its folder or its name on the hub; ``dtype`` is the configuration's by default.
    """
    if not isinstance(config, PretrainedConfig):
        name = str(DEMO) if os.fspath(config) == "demo" else os.fspath(config).removesuffix("config.json") or "."
        hub = {"revision": revision, "trust_remote_code": trust_remote_code}
        local = folder_of(name, "configuration", revision)
        config = read_from(name, "configuration", local, lambda place: AutoConfig.from_pretrained(place, **hub))
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(
            f"this {config.model_type} model is saved quantised, whose memory depends on its kernels: estimate it "
            "without quantization_config, and subtract what its weights save"
        )
    kind = _dtype(dtype or config.dtype or torch.float32)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=kind, trust_remote_code=trust_remote_code)
    except Exception as error:  # the libraries raise anything for unknown architectures
        reason = f"a {config.model_type} model cannot be built without its weights: {first_sentence(error)}"
        raise ValueError(reason) from error
