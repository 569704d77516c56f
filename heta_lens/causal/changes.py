"""Changes of tokens: what is put in their place, and what the model would say then."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import check_count, check_token, chosen_positions, is_whole
from heta_lens._util.target_kinds import members, sides
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.cache import Tokens
from heta_lens.prediction.masking import Mask, check_mask, mask_vector
from heta_lens.prediction.patching import redrawn
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import TargetLike, log_softmax

Change: TypeAlias = Mask | Literal["resample"] | Sequence[int] | Int[Tensor, "..."]
NAMED = 4  # ids that a change names in words


@one_at_a_time("cache")
def what_if(
    cache: Any,
    positions: Iterable[int] | None = None,
    target: TargetLike = None,
    *,
    change: Change = "zero",
    k: int = 5,
    seed: int = 0,
    position: SupportsIndex | None = None,
    tokens: Tokens = None,
) -> pd.DataFrame:
    """Return the probabilities of next tokens ``before`` and ``after`` a change of the tokens at these positions.

    A row is the target or one of the k likeliest tokens of either run, the likeliest first. ``positions``, ``change``
    and ``seed`` are those of `components`; ``target``, ``position`` and ``tokens`` are those of `attribute`.

    Example:
        >>> heta_lens.causal.what_if(cache, [7], tokens=tokens, k=1).round(3)  # without ' box'
        token  before  after  target
        box       1.0  0.000    True
        wagon     0.0  0.215   False
    """
    check_count("k", k)
    prediction = Prediction.from_cache(cache, target, position=position, tokens=tokens)
    with prediction.running(), torch.no_grad():
        _, changed, _ = changed_embeddings(prediction, positions, change, seed)
        logits = prediction.rerun().logits(changed[None])[0]
    return likeliest(prediction, log_softmax(logits), k)


def likeliest(prediction: Prediction, after: Float[Tensor, "vocab"], k: int) -> pd.DataFrame:
    """Return the targets and the k likeliest next tokens of the prediction, and after a change."""
    targets = [] if callable(prediction.target) else [id for side in sides(prediction.target) for id in members(side)]
    before, context = prediction.log_probs, prediction.ids.tolist()
    likely = [id for each in (before, after) for id in each.topk(min(k, len(each))).indices.tolist()]
    chosen = [*dict.fromkeys([*targets, *likely])]
    written = [prediction.tokenizer.write(id, context) for id in chosen]
    columns = {"before": before[chosen].exp().tolist(), "after": after[chosen].exp().tolist()}
    frame = pd.DataFrame({**columns, "target": [id in targets for id in chosen]}, pd.Index(written))
    return frame.rename_axis(columns="token").iloc[(-frame[["before", "after"]].max(axis=1)).argsort(kind="stable")]


def changed_embeddings(
    prediction: Prediction, positions: Iterable[int] | None, change: Change, seed: int
) -> tuple[list[int], Float[Tensor, "pos d"], str]:
    """Return the changed positions, the embeddings with the change, and the change in words."""
    n, embeddings = len(prediction), prediction.embeddings
    vector = isinstance(change, Tensor) and change.is_floating_point()
    listed = not (vector or isinstance(change, str) or is_whole(change))
    if seed and not (isinstance(change, str) and change == "resample"):
        raise ValueError(f"seed={seed!r} is for change='resample', not for change={brief(change)}")
    try:
        ids = torch.as_tensor(change).flatten().tolist() if listed else []
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"change={brief(change)} is neither a mask nor a list of token ids") from None
    if positions is None:
        if len(ids) != n:
            raise ValueError(f"positions=None needs the ids of a counterfactual prompt of {n} tokens as change=")
        positions = (prediction.ids.cpu() != torch.tensor(ids)).nonzero().flatten().tolist()
        if not positions:
            raise ValueError("the counterfactual prompt is the prompt itself: change a word in it")
    places = chosen_positions("positions", positions, n, "of the context")
    if listed:
        if len(ids) not in (len(places), n):
            raise ValueError(f"change has {len(ids)} ids: give one for each of the {len(places)} positions, or {n}")
        wanted = [ids[place] for place in places] if len(ids) == n else ids
        for token in wanted:
            check_token("change", token, prediction.adapter.vocabulary)
        rows = prediction.adapter.embedding_table(wanted)
        texts = [repr(prediction.tokenizer.write(token)) for token in wanted]
        described = ", ".join(texts[:NAMED] + [f"{len(texts) - NAMED} more"] * (len(texts) > NAMED))
    elif isinstance(change, str) and change == "resample":
        rows, described = next(redrawn(prediction, 1, seed))[places], "resampled tokens"
    else:
        mask: Any = change
        check_mask("change", mask)
        rows = mask_vector(prediction, mask)
        described = "a vector" if vector else f"token {change}" if is_whole(change) else f"the {change} mask"
    changed = embeddings.clone()
    changed[places] = rows.to(changed)
    return places, changed, described
