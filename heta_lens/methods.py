"""The one verb: `attribute`."""

from typing import Any, SupportsIndex

from heta_lens.attribution import Attribution
from heta_lens.cached import Tokens
from heta_lens.heta import Heta
from heta_lens.options import check_choice, check_names
from heta_lens.prediction import Asked, Prediction

METHODS = {"heta": Heta}


def attribute(
    cache: Any,
    target: Asked = None,
    *,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
    method: str = "heta",
    **options: Any,
) -> Attribution:
    """Which context tokens made the model predict this token?

    ``cache`` is what ``model.run_with_cache(tokens)`` returned for one prompt. ``target`` is the token to explain: its
    id; its text, leading space included (where no token is written just so, the space is toggled); None for the
    model's most likely next token; or a pair ``(a, b)``, to explain why a rather than b.
    ``position=p`` explains the token at p of the cached prompt from the tokens before it. ``tokens`` are the ids that
    were run; without them they are read off the cached embeddings. ``options`` are those of the method's class.

        logits, cache = model.run_with_cache(tokens)
        attribution = heta_lens.attribute(cache, target=" Paris", tokens=tokens)
        attribution.plot()
    """
    check_choice("method", method, METHODS)
    check_names(METHODS[method], options)
    explain = METHODS[method](**options)
    return explain(Prediction.from_cache(cache, target, position=position, tokens=tokens))
