"""The same target after two prompts; refused where these cannot be compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import torch

from heta_lens._util.target_kinds import described
from heta_lens.attribution import Attribution
from heta_lens.model.adapter import ModelAdapter
from heta_lens.prediction.cached_tokens import Tokens
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import TargetLike


def shared_adapter(cache: Any, other_cache: Any) -> ModelAdapter:
    adapter, other = ModelAdapter.of(cache), ModelAdapter.of(other_cache)
    if other.model is not adapter.model:
        raise ValueError("the two caches are of two models: take both from the same one")
    return adapter


@contextmanager
def named_as(name: str) -> Iterator[None]:
    """Errors about ``tokens=`` name it as the caller does."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("tokens=", f"{name}=")) from None


def check_attribution(attribution: Any) -> None:
    if not isinstance(attribution, Attribution):
        raise TypeError(
            f"expected an Attribution of one token, got {type(attribution).__name__}: "
            "pass what attribute returns, one at a time"
        )


def check_explains(attribution: Attribution, prediction: Prediction, other: Prediction | None = None) -> None:
    """Refuse an attribution that explains neither of these contexts."""
    if not any(_explains(attribution, context) for context in (prediction, other) if context is not None):
        where = "neither prompt" if other else "another prompt than the cache, or of another position="
        of, cached = (shorten(text, 60, placeholder=" …") for text in (attribution.text, prediction.located[0]))
        target = described(attribution.target, attribution.target_text)
        raise ValueError(
            f"this attribution is of {where}: it explains {target} by {of!r}, and the cache is of "
            f"{cached!r}: give the cache that it was made from"
        )


def _explains(attribution: Attribution, prediction: Prediction) -> bool:
    text, _ = prediction.located
    return attribution.text == text and torch.equal(prediction.ids.cpu()[attribution.positions], attribution.ids)


def predictions_of_both(
    clean_cache: Any, corrupted_cache: Any, target: TargetLike, tokens: Tokens, corrupted_tokens: Tokens
) -> tuple[Prediction, Prediction]:
    """The same target after the clean and the corrupted prompt."""
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    with named_as("corrupted_tokens"):
        corrupted = Prediction.from_cache(corrupted_cache, clean.target, tokens=corrupted_tokens)
    if len(clean) != len(corrupted):
        counts = f"the corrupted prompt has {len(corrupted)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of the same length")
    return clean, corrupted
