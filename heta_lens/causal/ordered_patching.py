"""Attribution as a prior: positions are patched in the order of their scores, until the prediction is back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, get_args

import torch

from heta_lens._util.options import Batch, check_at_least, check_choice
from heta_lens.attribution import Attribution
from heta_lens.causal.activation_patching import ByPosition, Runs, site_name
from heta_lens.causal.prompt_pair import check_attribution, check_explains, predictions_of_both, shared_adapter
from heta_lens.metrics.score_ranking import ranked
from heta_lens.model.locking import one_at_a_time
from heta_lens.prediction.cached_tokens import Tokens
from heta_lens.prediction.patching_checks import check_reading
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale
from heta_lens.prediction.target import TargetLike
from heta_lens.prediction.target_function import check_scale


@dataclass(frozen=True)
class Search:
    """``positions`` in the order in which they were patched, and the share that was ``restored`` after each.

    The search ends when the share reaches ``restore``. ``forwards`` is how many patched runs it took, ``exhaustive``
    how many it takes to patch every position by itself. A few runs may have been made beyond the last that was needed:
    they are counted, but not listed.
    """

    positions: tuple[int, ...]
    restored: tuple[float, ...]
    restore: float
    forwards: int
    exhaustive: int

    @property
    def sufficient(self) -> tuple[int, ...] | None:
        """The positions that restored enough together; None, if not even all of them did."""
        return self.positions if self.restored[-1] >= self.restore else None

    @property
    def saved(self) -> int:
        """Runs that were not needed."""
        return self.exhaustive - self.forwards


@one_at_a_time("clean_cache")
def patch_in_order(
    clean_cache: Any,
    corrupted_cache: Any,
    attribution: Attribution,
    target: TargetLike = None,
    *,
    restore: float | int = 0.9,
    what: ByPosition = "resid_pre",
    layer: SupportsIndex = 0,
    tokens: Tokens = None,
    corrupted_tokens: Tokens = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
) -> Search:
    """Patch positions together, one more at a time, highest scores first, until enough of what was lost is back.

    Args:
        clean_cache: as `patch` has it.
        corrupted_cache: as `patch` has it.
        tokens: as `patch` has them.
        corrupted_tokens: as `patch` has them.
        scale: as `patch` has it.
        attribution: of either prompt. Tokens that were left out of it are not patched.
        target: as `attribute` is given it; left out, it is the attribution's.
        restore: how much has to come back, as a share of what the corrupted run has lost: 1 is all. A share that is
            never reached has all positions patched.
        what: the kind of activation that is patched.
        layer: where it is patched.
        batch: at most how many runs are made at once: first one, then twice as many each time, so that few are wasted.
    """
    check_choice("what", what, get_args(ByPosition))
    check_at_least("restore", restore, 0)
    check_attribution(attribution)
    check_reading(scale, batch)
    adapter = shared_adapter(clean_cache, corrupted_cache)
    row = adapter.check_layer("layer", layer)
    adapter.check_points([site_name(adapter, what, row)])
    explained = attribution.target if target is None else target
    clean, corrupted = predictions_of_both(clean_cache, corrupted_cache, explained, tokens, corrupted_tokens)
    check_scale(clean.target, scale, "log_prob")
    order = _order(attribution, clean, corrupted)
    with clean.running(), corrupted.running(), torch.no_grad():
        runs = Runs.of(clean, corrupted, what, [row], scale)
        restored = _restored(runs, row, order, float(restore), batch)
    needed = next((count for count, share in enumerate(restored, 1) if share >= restore), len(restored))
    return Search(tuple(order[:needed]), tuple(restored[:needed]), float(restore), len(restored), len(corrupted))


def _restored(runs: Runs, layer: int, order: Sequence[int], restore: float, batch: Batch) -> list[float]:
    """The share restored by the first position, the first two and so on, for as many as were run."""
    lost = runs.clean_likelihood - runs.corrupted_likelihood
    if not lost:
        raise ValueError("nothing was lost: the target is as likely in the clean run as in the corrupted one")
    members = torch.zeros(len(order), len(runs.corrupted), dtype=torch.bool)
    members[:, order] = torch.ones(len(order), len(order)).tril().bool()
    most, step, restored = runs.corrupted.prompt.batches(batch, len(runs.corrupted)).size, 1, []
    while len(restored) < len(order) and not any(share >= restore for share in restored):
        values = runs.patched(layer, members[len(restored) :][:step], batch)
        restored += ((values - runs.corrupted_likelihood) / lost).tolist()
        step = min(2 * step, most)
    return restored


def _order(attribution: Attribution, clean: Prediction, corrupted: Prediction) -> list[int]:
    """Positions by their scores, highest first, of equal ones the first in the text."""
    check_explains(attribution, clean, corrupted)
    return attribution.positions[ranked(attribution.scores)].tolist()
