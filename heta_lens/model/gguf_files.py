"""GGUF files: their weights, whatever bits they are stored in, as a transformers model with plain weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from heta_lens._util.extras import check_extra
from heta_lens.model.checkpoints import CheckpointError, check_complete, check_finite_weights, first_sentence

MAGIC = b"GGUF"
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Tokenizers that split every digit off before anything else, which transformers does not read from these files."""
OPTIONS = ("dtype", "device", "tokenizer")
"""The options of `load_model` that have a meaning for a GGUF file."""


class GgufModel(NamedTuple):
    model: Any
    tokenizer: Any


def gguf_path(name: str, gguf_file: str | None) -> Path | None:
    """The GGUF file that a path, or a folder and the name of a file in it, stand for; None if they stand for none.

    A folder without config.json that contains one GGUF file stands for that file.
    """
    place = Path(name).expanduser()
    if place.suffix.lower() == ".gguf" and not place.is_dir():
        if gguf_file is not None:
            raise ValueError(f"gguf_file={gguf_file!r} names a file of a folder, and {name!r} is a file: give one")
        return _checked(place)
    if gguf_file is not None and not place.is_dir():
        raise ValueError(
            f"gguf_file={gguf_file!r} names a file of a folder, and {name!r} is no folder here: download the file and "
            "give its path"
        )
    if gguf_file is not None:
        return _checked(place / gguf_file)
    if not place.is_dir() or (place / "config.json").exists():
        return None
    files = sorted(place.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"the folder {name!r} has several GGUF files ({names}): say which with gguf_file=")
    return _checked(files[0]) if files else None


def _checked(file: Path) -> Path:
    if not file.is_file():
        there = ", ".join(sorted(each.name for each in file.parent.glob("*.gguf"))) or "none"
        raise ValueError(f"there is no file {str(file)!r}; GGUF files in its folder: {there}")
    with file.open("rb") as opened:
        if (start := opened.read(len(MAGIC))) != MAGIC:
            raise ValueError(f"{str(file)!r} is not a GGUF file: it begins with {start!r}, not {MAGIC!r}")
    return file


def check_gguf_options(given: Mapping[str, Any]) -> None:
    """Refuse options of `load_model` that a GGUF file cannot be loaded with."""
    for name in sorted(given.keys() - {*OPTIONS}):
        raise ValueError(
            f"{name}= cannot be used with a GGUF file, which takes dtype=, device= and tokenizer= only: save it as a "
            "folder first, with heta_lens.model.gguf_files.read_gguf(file)"
        )


def read_gguf(file: str | Path, dtype: torch.dtype = torch.float32) -> GgufModel:
    """The model in a GGUF file, and its tokenizer: both can be saved with `save_pretrained`."""
    check_extra("gguf", "reading a GGUF file")
    # Imported here because transformers before 5.20 has neither.
    from transformers.integrations.gguf import read_gguf_metadata
    from transformers.utils.quantization_config import GgufConfig

    file = Path(file)
    try:
        metadata, tensors = read_gguf_metadata(str(file))
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # whatever is raised for parts that are not there
        if "not supported" in str(error):
            raise ValueError(f"{first_sentence(error)} (by transformers): load the model's safetensors") from error
        raise CheckpointError(f"{str(file)!r} is damaged ({first_sentence(error)}): download it again") from error
    scaled = [name for name in tensors if name.startswith("rope_")]
    if scaled:
        raise CheckpointError(
            f"{str(file)!r} has rescaled rotary frequencies ({scaled[0]}), which transformers does not read from it: "
            "load the model's safetensors"
        )
    models: Any = AutoModelForCausalLM
    model, report = models.from_pretrained(
        file.parent,
        gguf_file=file.name,
        config=_exact(config),
        dtype=dtype,
        attn_implementation="eager",
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    check_complete(str(file), report)
    check_finite_weights(str(file), model)
    model.config.architectures = [type(model).__name__]
    return GgufModel(model, _tokenizer(file, metadata.get("tokenizer.ggml.pre")))


def _exact(config: Any) -> Any:
    exact = type(config).from_dict(_undo_rounding(config.to_dict()))
    vars(exact).pop("_model_name_or_path", None)  # the file's title
    return exact


def _undo_rounding(value: Any) -> Any:
    """Floats as they were before the file stored them in 32 bits: 9.99999974e-06 becomes 1e-05."""
    if isinstance(value, dict):
        return {name: _undo_rounding(each) for name, each in value.items()}
    if isinstance(value, float) and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value


def _tokenizer(file: Path, splits: str | None) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if splits in DIGITS_APART:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return tokenizer
