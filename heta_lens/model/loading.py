"""Loads models: the demo model that ships with the library, and any other by its name or folder."""

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from safetensors.torch import load_file
from torch import nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import get_device
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from heta_lens.model.checkpoints import WHOLE, Checked, check_folder, check_in_memory, check_weight_file, load_weights
from heta_lens.model.gguf_files import check_gguf_options, gguf_path, read_gguf
from heta_lens.model.hub import folder_of, read_from
from heta_lens.model.loading_options import boot_options, default_dtype

Kind: TypeAlias = Literal["hooked", "bridge"]

DEMO = Path(__file__).parents[1] / "demo_model"
HAS_HOOKED = importlib.util.find_spec("transformer_lens.HookedTransformer") is not None
"""`HookedTransformer` was removed in TransformerLens 4."""


def load_demo_model(kind: Kind | None = None) -> Any:
    """The small trained model that ships with the library: offline, on the CPU, in float32, ready to be explained.

    It reads the stories of `heta_lens.data.recall` and answers questions about them. ``kind`` is ``"hooked"`` for a
    `HookedTransformer` (TransformerLens 3 only) or ``"bridge"`` for a `TransformerBridge`; by default the first where
    it exists.
    """
    if kind not in (None, *get_args(Kind)):
        raise ValueError(f"kind={kind!r} is not one of {', '.join(get_args(Kind))}")
    if kind == "hooked" and not HAS_HOOKED:
        raise ValueError("kind='hooked' needs TransformerLens 3: HookedTransformer was removed in 4; use kind='bridge'")
    with _untouched():
        # Not by `from_pretrained`: this is silent, needs no network and takes a tenth of a second.
        weights: Any = LlamaForCausalLM(LlamaConfig.from_pretrained(DEMO, attn_implementation="eager"))
        weights.tie_weights()
        check_weight_file(DEMO / WHOLE)
        load_weights(str(DEMO), weights, load_file(DEMO / WHOLE))
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        if kind == "hooked" or (kind is None and HAS_HOOKED):
            return _hooked(weights, tokenizer)
        return TransformerBridge.boot_transformers(
            str(DEMO), hf_model=weights, tokenizer=tokenizer, device="cpu"
        ).eval()


@contextmanager
def _untouched() -> Iterator[None]:
    """Build a model in float32, and leave the caller's random state and default dtype as they were."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)


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
    """A model ready to be explained: a `TransformerBridge`, or what `load_demo_model` returns.

    Weights are read from safetensors and GGUF files only, and refused by name if missing, of another shape or not
    finite. A model that is already loaded keeps its precision and its devices.

    Args:
        model: ``"demo"``, a name on the Hugging Face hub, a folder, a GGUF file, or a transformers model that is
            already loaded.
        dtype: ``"bfloat16"``, say. By default the checkpoint's on a GPU, and float32 on a CPU.
        device: where to load it; by default a GPU if there is one.
        device_map: how to split it over several devices, as accelerate takes it: ``"auto"``, or a dict.
        n_devices: over how many GPUs to split it evenly.
        max_memory: what each device may hold, ``{0: "20GB", "cpu": "60GB"}``.
        quantization_config: ``"8bit"`` or ``"4bit"`` (bitsandbytes), or any configuration of transformers. A checkpoint
            that was saved quantised needs none.
        gguf_file: the GGUF file in the folder ``model``; its weights are written out in ``dtype``, by default float32.
        revision: a branch, tag or commit of the hub.
        trust_remote_code: run the code that comes with the model.
        more: whatever else `TransformerBridge.boot_transformers` takes, such as ``tokenizer`` or ``n_ctx``.
    """
    given = boot_options(
        {
            **{"dtype": dtype, "device": device, "device_map": device_map, "n_devices": n_devices},
            **{"max_memory": max_memory, "quantization_config": quantization_config, "gguf_file": gguf_file},
            **{"revision": revision, "trust_remote_code": trust_remote_code, **more},
        }
    )
    if isinstance(model, nn.Module):
        return _bridged(model, given)
    if not isinstance(model, str | PathLike):
        raise TypeError(f"model={model!r} must be demo, a name, a folder or a transformers model")
    name = os.fspath(model)
    if name == "demo" and not given:
        return load_demo_model()
    place = str(DEMO) if name == "demo" else name
    file = gguf_path(place, given.pop("gguf_file", None))
    return _from_gguf(file, given) if file is not None else _from_folder_or_hub(place, given)


class WithoutWeights(NamedTuple):
    """What there is of a model beside its weights."""

    config: Any
    tokenizer: Any


def load_without_weights(name: str, revision: str | None = None, *, trust_remote_code: bool = False) -> WithoutWeights:
    """The configuration and the tokenizer of a folder, or of a name on the hub."""
    hub: Any = {"revision": revision, "trust_remote_code": trust_remote_code}

    def read(place: str) -> WithoutWeights:
        return WithoutWeights(AutoConfig.from_pretrained(place, **hub), AutoTokenizer.from_pretrained(place, **hub))

    return read_from(name, "model", folder_of(name, "model", revision), read)


def _from_folder_or_hub(name: str, given: dict[str, Any]) -> Any:
    """A bridge of a checkpoint; whatever goes wrong is said in one sentence, and no hub is waited for."""
    local = folder_of(name, "model", given.get("revision"))
    if local is not None:
        check_folder(local)
    return read_from(name, "model", local, lambda place: _booted(place, given))


def _from_gguf(file: Path, given: dict[str, Any]) -> Any:
    """A bridge of the model in a GGUF file, with plain weights."""
    check_gguf_options(given)

    def read(_: str) -> Any:
        model, tokenizer = read_gguf(file, given.get("dtype", torch.float32))
        model.config.name_or_path = str(file)
        if tokenizer.bos_token is not None:  # TransformerLens would read the tokenizer again, to have it add this
            tokenizer.add_bos_token = tokenizer.init_kwargs["add_bos_token"] = True
        model.to(given.get("device") or get_device())
        return _bridged(model, {"tokenizer": given.get("tokenizer", tokenizer)})

    return read_from(str(file), "model", file, read)


def _booted(name: str, given: dict[str, Any]) -> Any:
    """A bridge of a checkpoint, which is checked while it is loaded."""
    trust = given.get("trust_remote_code", False)  # left out, transformers would ask whoever is at the terminal
    config = AutoConfig.from_pretrained(name, revision=given.get("revision"), trust_remote_code=trust)
    quantise = given.pop("quantization_config", None)
    if "dtype" not in given:
        given["dtype"] = default_dtype(name, given, getattr(config, "dtype", None))
    quantised = quantise is not None or getattr(config, "quantization_config", None) is not None
    if quantised and not {"device_map", "n_devices"} & given.keys():  # quantised weights cannot be moved afterwards
        given["device_map"] = {"": str(given.pop("device", None) or get_device())}
    checked: Any = Checked(quantise)
    logging.getLogger("bitsandbytes.autograd._functions").addFilter(_once)  # the same filter again changes nothing
    booted = TransformerBridge.boot_transformers(name, model_class=checked, **given).eval()
    check_in_memory(booted)
    return booted


_logged: set[str] = set()


def _once(record: logging.LogRecord) -> bool:
    """Let a message through once: some kernels repeat theirs in every layer of every run."""
    message = record.getMessage()
    new = message not in _logged
    _logged.add(message)
    return new


def _bridged(model: nn.Module, given: dict[str, Any]) -> Any:
    """A bridge around a transformers model that somebody loaded, in its precision and on its devices."""
    config: Any = getattr(model, "config", None)
    if config is None:
        raise TypeError(f"model is a {type(model).__name__}, not a transformers model: it has no config")
    for name in sorted(given.keys() - {"tokenizer", "trust_remote_code"}):
        movable = name in ("dtype", "device")
        way_out = f"call model.to({given[name]!r}) first" if movable else "give it to from_pretrained"
        raise ValueError(f"{name}= says how to load weights, which this model has: {way_out}")
    place = getattr(model, "hf_device_map", None) or next(model.parameters()).device
    own: dict[str, Any] = {"dtype": model.dtype} if isinstance(place, dict) else {"dtype": model.dtype, "device": place}
    source = config._name_or_path
    if not source and "tokenizer" not in given:
        raise ValueError("this model does not know where its tokenizer is: give tokenizer=")
    return TransformerBridge.boot_transformers(source or "model", hf_model=model, **given, **own).eval()


def _hooked(weights: Any, tokenizer: Any) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    config = weights.config
    size = config.hidden_size // config.num_attention_heads
    hooked = HookedTransformerConfig(
        model_name="heta_lens demo",
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_head=size,
        n_heads=config.num_attention_heads,
        d_mlp=config.intermediate_size,
        d_vocab=config.vocab_size,
        n_ctx=config.max_position_embeddings,
        act_fn="silu",
        gated_mlp=True,
        normalization_type="RMS",
        final_rms=True,
        eps=config.rms_norm_eps,
        positional_embedding_type="rotary",
        rotary_dim=size,
        rotary_base=int(config.rope_parameters["rope_theta"]),
        rotary_adjacent_pairs=False,
        original_architecture="LlamaForCausalLM",
        default_prepend_bos=True,
        init_weights=False,
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(hooked, tokenizer=tokenizer)
    load_weights(str(DEMO), model, convert_llama_weights(weights, hooked))
    # The same angles as in the weights' own model: a frequency off by one bit shows after a thousand positions.
    cosines, sines = weights.model.rotary_emb(torch.zeros(1), torch.arange(hooked.n_ctx)[None])
    for block in model.blocks:
        block.attn.rotary_cos.copy_(cosines[0])
        block.attn.rotary_sin.copy_(sines[0])
    return model.eval()
