"""What is asked of two prompts, and refused where these cannot be compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

import torch

from heta_lens.asked import Asked
from heta_lens.attribution import Attribution
from heta_lens.cached import Tokens
from heta_lens.lens import Lens
from heta_lens.prediction import Prediction


def shared_lens(cache: Any, other_cache: Any) -> Lens:
    lens, other = Lens.of(cache), Lens.of(other_cache)
    if other.model is not lens.model:
        raise ValueError("the two caches are of two models: take both from the same")
    return lens


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """Errors that speak of ``tokens=`` speak of what they are called here."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("tokens=", f"{name}=")) from None


def check_attribution(attribution: Any) -> None:
    if not isinstance(attribution, Attribution):
        raise TypeError(
            f"a {type(attribution).__name__} is no attribution of one token: pass what attribute returns, one at a time"
        )


def check_explains(attribution: Attribution, asked: Prediction, other: Prediction | None = None) -> None:
    """Refuse an attribution of none of these contexts."""
    if not any(_explains(attribution, one) for one in (asked, other) if one is not None):
        where = "neither prompt" if other else "another prompt than the cache, or of another position="
        of, cached = (shorten(text, 60, placeholder=" …") for text in (attribution.text, asked.located[0]))
        raise ValueError(
            f"this attribution is of {where}: it explains {attribution.target_text!r} by {of!r}, and the cache is of "
            f"{cached!r}: give the cache that it was made from"
        )


def _explains(attribution: Attribution, asked: Prediction) -> bool:
    text, _ = asked.located
    return attribution.text == text and torch.equal(asked.ids.cpu()[attribution.positions], attribution.ids)


def asked_of_both(
    clean_cache: Any, spoilt_cache: Any, target: Asked, tokens: Tokens, spoilt_tokens: Tokens
) -> tuple[Prediction, Prediction]:
    """The same target, asked of both prompts."""
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    with told_of("spoilt_tokens"):
        spoilt = Prediction.from_cache(spoilt_cache, clean.target, tokens=spoilt_tokens)
    if len(clean) != len(spoilt):
        counts = f"the spoilt prompt has {len(spoilt)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of as many")
    return clean, spoilt
