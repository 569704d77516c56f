"""What is asked of two prompts, and refused where these cannot be compared."""

from typing import Any

from heta_lens.asked import Asked
from heta_lens.cached import Tokens
from heta_lens.lens import Lens
from heta_lens.prediction import Prediction


def same_model(cache: Any, other_cache: Any) -> Lens:
    lens, other = Lens.of(cache), Lens.of(other_cache)
    if other.model is not lens.model:
        raise ValueError("the two caches are of two models: take both from the same")
    return lens


def same_length(
    clean_cache: Any, spoilt_cache: Any, target: Asked, tokens: Tokens, spoilt_tokens: Tokens
) -> tuple[Prediction, Prediction]:
    """The same target, asked of both prompts."""
    clean = Prediction.from_cache(clean_cache, target, tokens=tokens)
    spoilt = Prediction.from_cache(spoilt_cache, clean.target, tokens=spoilt_tokens)
    if len(clean) != len(spoilt):
        counts = f"the spoilt prompt has {len(spoilt)} tokens, and the clean one {len(clean)}"
        raise ValueError(f"{counts}: patch between prompts of as many")
    return clean, spoilt
