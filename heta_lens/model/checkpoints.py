"""Checkpoints in folders, GGUF files and on the hub, checked before and after loading: no weight is silently random."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from huggingface_hub import constants, get_session
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
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
FOUR_BITS = 64  # weights that share a scale
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
        check_four_bits(name, model)
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
            raise CheckpointError(
                f"the checkpoint {name!r} {problem} {listed(keys)}; save it again from a complete model, or load it "
                "yourself and pass the model to TransformerBridge.boot_transformers(hf_model=)"
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


def check_four_bits(name: str, model: Any) -> None:
    """Refuse widths with different packing and reading layouts in the 4-bit CPU kernel of bitsandbytes."""
    for place, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if type(module).__name__ == "Linear4bit" and weight.device.type == "cpu" and module.in_features % FOUR_BITS:
            raise CheckpointError(
                f"{name!r} cannot run in 4 bits on a CPU: bitsandbytes takes widths that are multiples of {FOUR_BITS}, "
                f"and {place} has {module.in_features}; load it in 8 bits"
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
def check_folder(folder: Path) -> None:
    """Refuse a folder without a saved model, and name the missing or damaged file."""
    if not folder.is_dir():
        raise ValueError(f"the model {str(folder)!r} is a file: give the folder that contains it")
    for name, kind in (("config.json", "model"), ("tokenizer_config.json", "tokenizer")):
        if not (folder / name).is_file():
            raise ValueError(
                f"the folder {str(folder)!r} has no {name}: save it there with {kind}.save_pretrained(...)"
            )
    files = [*folder.glob("*.safetensors")]
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickles and not files:
        raise ValueError(
            f"the folder {str(folder)!r} has its weights as a pickle ({pickles[0]}), which can run code: convert it to "
            "safetensors with transformers' model.save_pretrained(folder)"
        )
    if not files:
        raise ValueError(f"the folder {str(folder)!r} has no weights ({WHOLE}): save the model there again")
    for file in files:
        try:
            safe_open(file, framework="pt")
        except SafetensorError as error:
            reason = f"is damaged ({first_sentence(error)}): copy or download it again"
            raise ValueError(f"{str(file)!r} {reason}") from error


def listed(names: Iterable[str], shown: int = 3) -> str:
    """List the first names, and the number of further names."""
    ordered = sorted(names)
    more = f" and {len(ordered) - shown} more" if len(ordered) > shown else ""
    return ", ".join(ordered[:shown]) + more


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of another library's message, with the error's type if the message is unclear alone."""
    message = re.split(r"(?<=[a-z)`'\"][.!?]) (?=[A-Z])", " ".join(str(error).split()))[0].rstrip(".")
    if isinstance(error, LookupError | AttributeError) or not message:
        message = f"{type(error).__name__}: {message}"
    return message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"


# ------------------------------------------------------------------------------------------------------------- the hub
ANSWER = 2.5  # seconds to wait for the hub's answer
SERVER_ERRORS = 500  # lowest status code of a server error

Read = TypeVar("Read")


def folder_of(name: str, kind: str, revision: str | None = None) -> Path | None:
    """Return an existing folder or file, or None for a name on the hub; refuse paths that do not exist."""
    missing = f"no {kind} {name!r}: give demo, a name on the Hugging Face hub, or a folder that exists"
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # the home of a user who does not exist
        raise ValueError(missing) from error
    if not name or (name.startswith(("/", ".", "~")) and not path.exists()):
        raise ValueError(missing)
    if path.exists() and revision is not None:
        raise ValueError(f"revision={revision!r} is of a {kind} on the hub, and {name!r} is a folder")
    return path if path.exists() else None


def read_from(name: str, kind: str, local: Path | None, read: Callable[[str], Read]) -> Read:
    """Apply ``read`` to a folder or a name, without waiting for a hub that does not answer."""
    silent = not (local or constants.HF_HUB_OFFLINE or hub_answers(name))
    try:
        with _offline() if silent else nullcontext():
            return read(str(local or name))
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # libraries raise anything for files that they cannot read
        tried = f"{constants.ENDPOINT} did not answer" if silent else "looked for on the Hugging Face hub"
        place = "" if local else f" (not a folder here; {tried})"
        raise ValueError(f"the {kind} {name!r}{place} cannot be loaded: {_reason(error, name)}") from error


def _reason(error: BaseException, name: str) -> str:
    """Return the way out of an error of the hub, or the library's message."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None and earlier not in chain:
        chain.append(earlier)
    if any(isinstance(link, GatedRepoError) for link in chain):
        return f"it is gated; accept its terms at {constants.ENDPOINT}/{name} and log in with `hf auth login`"
    if any(isinstance(link, RepositoryNotFoundError) for link in chain):
        return "the hub has no such model, or it is private and you are not logged in (`hf auth login`)"
    if any(isinstance(link, LocalEntryNotFoundError) for link in chain) or "in the cached files" in str(error):
        return "no copy of it is on this machine"
    if unknown := re.search(r"model type `([^`]*)` but Transformers does not recognize", str(error)):
        return f"transformers {transformers.__version__} does not know {unknown[1]!r} models; a newer version may"
    if "trust_remote_code" in str(error):
        return "it comes with code of its own, which runs only with trust_remote_code=True (--trust-remote-code)"
    return first_sentence(error)


def hub_answers(name: str, seconds: float = ANSWER) -> bool:
    """Return whether the hub answers a single request about a model; a download would retry for half a minute."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):  # the client raises anything without a network
            answers.append(get_session().head(f"{constants.ENDPOINT}/api/models/{name}", timeout=seconds))

    request = Thread(target=ask, daemon=True)  # the lookup of a host name has no time limit
    request.start()
    request.join(seconds)
    return any(answer.status_code < SERVER_ERRORS for answer in answers)


_going_offline = Lock()  # two threads would restore each other's setting


@contextmanager
def _offline() -> Iterator[None]:
    """Make the hub's client use local files only."""
    with _going_offline:
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


# ---------------------------------------------------------------------------------------------------------- gguf files
DIGITS_APART = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Tokenizers that split digits off before anything else, which transformers does not read from GGUF files."""


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
    # Imported here because transformers before 5.20 has neither.
    from transformers.integrations.gguf import read_gguf_metadata
    from transformers.utils.quantization_config import GgufConfig

    file = Path(file)
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
