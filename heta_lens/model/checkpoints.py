"""Checkpoints in folders, GGUF files and on the hub, checked before and after loading: no weight is silently random."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformer_lens.model_bridge.sources.transformers import (
    determine_architecture_from_hf_config,
    get_hf_model_class_for_architecture,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from heta_lens._util.python import check_extra
from heta_lens.model.weights import is_readable, quantised_modules

WHOLE = "model.safetensors"
BENIGN = re.compile(r"(\.|_)(inv_freq|masked_bias|position_ids|cos_cached|sin_cached)$")
"""Buffers in files of older versions of transformers, which a model computes without the file."""
FUSED = re.compile(r"(qkv|qkv_proj|query_key_value|c_attn|w_pack)$", re.IGNORECASE)
"""Names of matrices that hold queries, keys and values together."""
LONGEST = 300  # characters shown of another library's message


class CheckpointError(ValueError):
    """Weights with values that are not finite, or with names or shapes foreign to the model."""


# --------------------------------------------------------------------------------------------------------- the weights
@dataclass(frozen=True)
class Checked:
    """A stand-in for the loading class of TransformerLens; refuses weights of a wrong name, shape or value."""

    quantise: Any = None  # a quantisation, for which TransformerLens has no option

    def from_pretrained(self, name: str, **options: Any) -> Any:
        kind: Any = get_hf_model_class_for_architecture(determine_architecture_from_hf_config(options["config"]))
        # Pickles can run code; tensors of another shape are listed in the report instead of raised without a name.
        safe: dict[str, Any] = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
        if self.quantise is not None:
            safe["quantization_config"] = self.quantise
        model, report = kind.from_pretrained(name, **options, **safe)
        check_complete(name, report)
        check_finite_weights(name, model)
        check_separable(name, model)
        return model


def check_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse weights that the model lacks, does not know, or has in another shape; the report lists no tied weights."""
    shapes = [f"{key} ({tuple(there)}, not {tuple(here)})" for key, there, here in report["mismatched_keys"]]
    unexpected = [key for key in report["unexpected_keys"] if not BENIGN.search(key)]
    for keys, problem in (
        (report["missing_keys"], "lacks"),
        (unexpected, "has tensors that this architecture has no place for:"),
        (shapes, "has tensors of another shape than its config.json says:"),
        (report["error_msgs"], "could not be read:"),
    ):
        if keys:
            listed = ", ".join(sorted(keys)[:3]) + f" and {len(keys) - 3} more" * (len(keys) > 3)
            raise CheckpointError(
                f"the checkpoint {name!r} {problem} {listed}; save it again from a complete model, or load it yourself "
                "and pass the model to TransformerBridge.boot_transformers(hf_model=)"
            )


def check_finite_weights(name: str, model: torch.nn.Module) -> None:
    for key, weight in model.named_parameters():
        # The smallest and the largest entry need no copy of the weight.
        if is_readable(weight) and weight.numel() and not torch.stack(weight.detach().aminmax()).isfinite().all():
            raise CheckpointError(f"the checkpoint {name!r} has weights that are not finite: {key}; save it again")


def check_separable(name: str, model: torch.nn.Module) -> None:
    """Refuse queries, keys and values in a single quantised matrix: TransformerLens cannot split the matrix."""
    for fused in filter(FUSED.search, quantised_modules(model)):
        raise CheckpointError(
            f"the model {name!r} cannot be loaded: its queries, keys and values are one quantised matrix ({fused}), "
            "which TransformerLens cannot split; load it without quantisation, and with dtype='bfloat16' in half the "
            "memory"
        )


def check_in_memory(model: Any) -> None:
    """Refuse offloaded embeddings and unembeddings, whose weights are read."""
    for name in ("embed", "unembed"):
        if any(tensor.device.type == "meta" for tensor in model.get_submodule(name).parameters()):
            raise CheckpointError(
                f"the model's {name} is offloaded, and it must be in memory: put it on the CPU in device_map=, or "
                "allow more max_memory="
            )


# ---------------------------------------------------------------------------------------------------------- the folder
def check_folder(folder: Path, *, tokenizer: bool) -> None:
    """Refuse a folder without a saved model, or if wanted, without a ``tokenizer``."""
    if not folder.is_dir():
        raise ValueError(f"the model {str(folder)!r} is a file: give the folder that contains it")
    for name, kind in (("config.json", "model"), ("tokenizer_config.json", "tokenizer"), ("*.safetensors", "model")):
        if (tokenizer or kind == "model") and not any(folder.glob(name)):
            raise ValueError(
                f"the folder {str(folder)!r} has no {name}: {kind}.save_pretrained({str(folder)!r}) writes it (weights "
                "are not read from pickles, which can run code)"
            )


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of another library's message, with the error's type if the message is unclear alone."""
    message = re.split(r"(?<=[a-z)`'\"][.!?]) (?=[A-Z])", " ".join(str(error).split()))[0].rstrip(".")
    if isinstance(error, LookupError | AttributeError) or not message:
        message = f"{type(error).__name__}: {message}"
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"


# ------------------------------------------------------------------------------------------------------------- the hub
Read = TypeVar("Read")


def folder_of(name: str, kind: str, revision: str | None = None) -> Path | None:
    """Return an existing folder or file, or None for a name on the hub; refuse paths that do not exist.

    A name whose first part is a folder here is a path.
    """
    path = Path(name).expanduser()
    if not name or (name.startswith(("/", ".", "~")) and not path.exists()):
        raise ValueError(f"no {kind} {name!r}: give demo, a name on the Hugging Face hub, or a folder that exists")
    if len(path.parts) > 1 and Path(path.parts[0]).is_dir() and not path.exists():
        raise ValueError(
            f"no {kind} {name!r}: there is a folder {path.parts[0]!r} here, without it; a hub name that begins with "
            "the name of a folder needs another working directory"
        )
    if revision is not None and path.exists():
        raise ValueError(f"revision={revision!r} is of a {kind} on the hub, and {name!r} is here: leave it out")
    return path if path.exists() else None


def read_from(name: str, kind: str, local: Path | None, read: Callable[[str], Read]) -> Read:
    """Apply ``read`` to a folder or a name; an error of any library becomes one sentence."""
    try:
        return read(str(local or name))
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # libraries raise anything for files that they cannot read
        place = "" if local else " (not a folder here; looked for on the Hugging Face hub)"
        reason = first_sentence(error)
        if "trust_remote_code" in str(error):
            reason = "it comes with code of its own, which runs only with trust_remote_code=True (--trust-remote-code)"
        raise ValueError(f"the {kind} {name!r}{place} cannot be loaded: {reason}") from error


# ---------------------------------------------------------------------------------------------------------- gguf files
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Tokenizers that split digits off before anything else, which transformers does not read from GGUF files."""
READING = Lock()  # while a file's reader stands in for gguf's


def gguf_path(name: str, gguf_file: str | None) -> Path | None:
    """Return the GGUF file at a path or in a folder; None for other models."""
    place = Path(name).expanduser()
    if gguf_file is not None:
        if not place.is_dir():
            raise ValueError(f"gguf_file={gguf_file!r} names a file of a folder, and {name!r} is no folder here")
        place = place / gguf_file
    elif place.is_dir() or place.suffix.lower() != ".gguf":
        return None
    if not place.is_file():
        there = ", ".join(sorted(each.name for each in place.parent.glob("*.gguf"))) or "none"
        raise ValueError(f"there is no file {str(place)!r}; GGUF files in its folder: {there}")
    return place


def read_gguf(file: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Read the model and the tokenizer in a GGUF file, ready for `save_pretrained`."""
    check_extra("gguf", "reading a GGUF file")
    import gguf

    # Transformers parses the vocabulary, in Python, for the configuration, the weights and the tokenizer.
    with READING, patch("gguf.GGUFReader", cache(gguf.GGUFReader)):
        return _read_gguf(Path(file), dtype)


def _read_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    # Imported here because transformers before 5.20 has neither.
    from transformers.integrations.gguf import read_gguf_metadata
    from transformers.utils.quantization_config import GgufConfig

    try:
        metadata, tensors = read_gguf_metadata(str(file))
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # the reader raises anything for missing parts
        if "not supported" in str(error):
            raise ValueError(f"{first_sentence(error)} (by transformers): load the model's safetensors") from error
        raise CheckpointError(f"{str(file)!r} is damaged ({first_sentence(error)}): download it again") from error
    if scaled := [name for name in tensors if name.startswith("rope_")]:
        raise CheckpointError(
            f"{str(file)!r} has rescaled rotary frequencies ({scaled[0]}), which transformers does not read from it: "
            "load the model's safetensors"
        )
    exact = type(config).from_dict(_undo_rounding(config.to_dict()))
    vars(exact).pop("_model_name_or_path", None)  # the file's title
    models: Any = AutoModelForCausalLM
    model, report = models.from_pretrained(
        file.parent,
        gguf_file=file.name,
        config=exact,
        dtype=dtype,
        attn_implementation="eager",
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    check_complete(str(file), report)
    check_finite_weights(str(file), model)
    model.config.architectures = [type(model).__name__]
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if metadata.get("tokenizer.ggml.pre") in DIGITS_APART:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return model, tokenizer


def _undo_rounding(value: Any) -> Any:
    """Restore floats that the file stored in 32 bits: 9.99999974e-06 becomes 1e-05."""
    if isinstance(value, dict):
        return {name: _undo_rounding(item) for name, item in value.items()}
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value
