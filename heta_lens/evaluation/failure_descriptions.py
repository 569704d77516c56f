"""How an error of a method or a metric is recorded: in one sentence, with the place where it was raised."""

import sys
import traceback
from pathlib import Path
from types import FrameType

import torch

LIBRARIES = {
    *("beartype", "captum", "einops", "huggingface_hub", "jaxtyping", "matplotlib", "numpy", "ot", "pandas"),
    *("safetensors", "scipy", "sklearn", "tokenizers", "torch", "transformer_lens", "transformers"),
    *sys.stdlib_module_names,
}
SELF_EXPLANATORY = (ValueError, OSError, MemoryError, torch.OutOfMemoryError)
ROOT = Path(__file__).parents[2]


def description(error: BaseException) -> str:
    """Its kind and first line; where it was raised too, unless its message is written for the user."""
    kind = type(error).__name__
    try:
        message = next(iter(str(error).splitlines()), "")
    except Exception:
        message = "(an error without a readable message)"
    where = "" if isinstance(error, SELF_EXPLANATORY) else f" ({raised_at(error)})"
    return f"{kind}: {message}{where}" if message else f"{kind}{where}"


def raised_at(error: BaseException) -> str:
    """The innermost file and line outside of libraries, which is a method's or a metric's."""
    places = [
        f"{_short(Path(frame.f_code.co_filename))}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _of_library(frame)
    ]
    return places[-1] if places else ""


def _of_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in LIBRARIES or frame.f_code.co_filename.startswith("<")  # the latter by a type checker, say


def _short(path: Path) -> str:
    """The path within the repository, or else the file and its folder."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT / "heta_lens") else "/".join(path.parts[-2:])
