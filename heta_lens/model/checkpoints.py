"""Checkpoints: a folder of weights is checked before and after loading, so that no weight is silently random."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformer_lens.model_bridge.sources.transformers import (
    determine_architecture_from_hf_config,
    get_hf_model_class_for_architecture,
)

from heta_lens.model.weight_reading import is_readable, quantised_modules

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
BENIGN = re.compile(r"(\.|_)(inv_freq|masked_bias|position_ids|cos_cached|sin_cached)$")
"""Buffers that older versions of transformers saved with the weights, and that a model computes itself."""
FUSED = re.compile(r"(qkv|qkv_proj|query_key_value|c_attn|w_pack)$", re.IGNORECASE)
"""What architectures call queries, keys and values in one matrix."""
FOUR_BITS = 64  # weights that are scaled together
LONGEST = 300  # characters of another library's message that are shown


class CheckpointError(ValueError):
    """Weights that do not fit their model, or are not finite."""


@dataclass(frozen=True)
class Checked:
    """Stands in for the class with which TransformerLens loads weights, and refuses weights that do not fit."""

    quantise: Any = None  # a quantisation, which TransformerLens has no option for

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
        check_four_bits(name, model)
        return model


def check_in_memory(model: Any) -> None:
    """Refuse a model whose embeddings or unembedding are offloaded: they are read, and not only run."""
    for name in ("embed", "unembed"):
        if any(tensor.device.type == "meta" for tensor in model.get_submodule(name).parameters()):
            raise CheckpointError(
                f"the model's {name} is offloaded, and it must be in memory: put it on the CPU in device_map=, or "
                "allow more max_memory="
            )


def check_four_bits(name: str, model: Any) -> None:
    """Refuse widths for which the CPU kernel of bitsandbytes packs 4 bits otherwise than it reads them."""
    for place, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if type(module).__name__ == "Linear4bit" and weight.device.type == "cpu" and module.in_features % FOUR_BITS:
            raise CheckpointError(
                f"{name!r} cannot run in 4 bits on a CPU: bitsandbytes takes widths that are multiples of {FOUR_BITS}, "
                f"and {place} has {module.in_features}; load it in 8 bits"
            )


def check_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse weights that the model lacks, does not know, or has in another shape; tied ones are not listed."""
    shapes = [f"{key} ({tuple(there)}, not {tuple(here)})" for key, there, here in report["mismatched_keys"]]
    unexpected = [key for key in report["unexpected_keys"] if not BENIGN.search(key)]
    for keys, problem in (
        (report["missing_keys"], "lacks"),
        (unexpected, "has tensors that this architecture has no place for:"),
        (shapes, "has tensors of another shape than its config.json says:"),
        (report["error_msgs"], "could not be read:"),
    ):
        if keys:
            raise CheckpointError(
                f"the checkpoint {name!r} {problem} {listed(keys)}; save it again from a complete model, or load it "
                "yourself and pass the model to TransformerBridge.boot_transformers(hf_model=)"
            )


def load_weights(name: str, model: torch.nn.Module, kept: Mapping[str, torch.Tensor]) -> None:
    """Load every parameter by its name, and refuse what is missing or left over; tied ones are stored once."""
    own = dict(model.named_parameters(remove_duplicate=False))
    loaded = {own[key].data_ptr() for key in kept if key in own}
    report = {
        "missing_keys": [key for key, weight in own.items() if key not in kept and weight.data_ptr() not in loaded],
        "unexpected_keys": kept.keys() - model.state_dict().keys(),
        "mismatched_keys": [
            (key, there.shape, own[key].shape)
            for key, there in kept.items()
            if key in own and there.shape != own[key].shape
        ],
        "error_msgs": [],
    }
    check_complete(name, report)
    model.load_state_dict(dict(kept), strict=False)  # buffers are computed
    check_finite_weights(name, model)


def check_separable(name: str, model: torch.nn.Module) -> None:
    """Refuse queries, keys and values in one quantised matrix: TransformerLens fails on them in many ways."""
    for fused in filter(FUSED.search, quantised_modules(model)):
        raise CheckpointError(
            f"the model {name!r} cannot be loaded: its queries, keys and values are one quantised matrix ({fused}), "
            "which TransformerLens cannot split; load it without quantisation, and with dtype='bfloat16' in half the "
            "memory"
        )


def check_finite_weights(name: str, model: torch.nn.Module) -> None:
    bad = [key for key, weight in model.named_parameters() if is_readable(weight) and not finite(weight)]
    if bad:
        raise CheckpointError(f"the checkpoint {name!r} has weights that are not finite: {listed(bad)}; save it again")


def finite(weight: torch.Tensor) -> bool:
    """Whether all entries are, by the smallest and the largest, so that no copy of the weight is needed."""
    return not weight.numel() or bool(torch.stack(weight.detach().aminmax()).isfinite().all())


def check_folder(folder: Path) -> None:
    """Refuse a folder that does not hold a saved model, naming the file that is missing or damaged."""
    if not folder.is_dir():
        raise ValueError(f"the model {str(folder)!r} is a file: give the folder that contains it")
    for name, what in (("config.json", "model"), ("tokenizer_config.json", "tokenizer")):
        if not (folder / name).is_file():
            raise ValueError(
                f"the folder {str(folder)!r} has no {name}: save it there with {what}.save_pretrained(...)"
            )
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        if (folder / name).exists():
            read_object(folder / name)
    check_tokenizer(folder / "tokenizer.json")
    for file in weight_files(folder):
        check_weight_file(file)


def check_tokenizer(file: Path) -> None:
    if not file.exists():  # a tokenizer may be kept in other files
        return
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception
        raise ValueError(
            f"{str(file)!r} is not a tokenizer: {first_sentence(error)}; save the tokenizer again"
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights, by the index where there is one."""
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if (folder / INDEX).is_file():
        shards = read_object(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"{str(folder / INDEX)!r} has no weight_map: save the model again")
        return [folder / str(name) for name in sorted({*shards.values()})]
    if any(folder.glob("*.safetensors")):
        raise ValueError(f"the folder {str(folder)!r} has weights but no {WHOLE} or {INDEX}: save the model again")
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"the folder {str(folder)!r} has its weights as a pickle ({pickles[0]}), which can run code: convert it to "
            "safetensors with transformers' model.save_pretrained(folder)"
        )
    raise ValueError(f"the folder {str(folder)!r} has no weights ({WHOLE}): save the model there again")


def check_weight_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{str(file.parent / INDEX)!r} names {file.name}, which is missing: copy or download it again")
    try:
        with safe_open(file, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{str(file)!r} is damaged ({first_sentence(error)}): copy or download it again") from error


def read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{str(file)!r} is not valid JSON: {first_sentence(error)}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{str(file)!r} must be a JSON object, got {type(value).__name__}")
    return value


def listed(names: Iterable[str], shown: int = 3) -> str:
    """The first few of these names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - shown} more" if len(ordered) > shown else ""
    return ", ".join(ordered[:shown]) + more


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's message; with its type where the message alone says little."""
    message = re.split(r"(?<=[a-z)`'\"][.!?]) (?=[A-Z])", " ".join(str(error).split()))[0].rstrip(".")
    if isinstance(error, LookupError | AttributeError) or not message:
        message = f"{type(error).__name__}: {message}"
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
