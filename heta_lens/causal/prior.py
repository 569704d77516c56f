"""Attribution as a prior: positions are patched in the order of their scores, until the prediction is back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, get_args

import torch

from heta_lens.asked import Asked
from heta_lens.attribution import Attribution
from heta_lens.cached import Tokens
from heta_lens.causal.pair import asked_of_both, check_attribution, check_explains, shared_lens
from heta_lens.causal.patching import ByPosition, Runs, site_name
from heta_lens.interventions import check_reading
from heta_lens.metrics.ranking import ranked
from heta_lens.options import Batch, check_at_least, check_choice
from heta_lens.prediction import Prediction
from heta_lens.scales import Scale
from heta_lens.turns import one_at_a_time


@dataclass(frozen=True)
class Search:
    """``positions`` in the order in which they were patched, and the share that was ``restored`` after each.

    ``forwards`` is how many patched runs it took, ``exhaustive`` how many it takes to patch every position by itself.
    A few runs may have been made beyond the last that was needed: they are counted, but not listed.
    """

    positions: tuple[int, ...]
    restored: tuple[float, ...]
    wanted: float
    forwards: int
    exhaustive: int

    @property
    def found(self) -> tuple[int, ...] | None:
        """The positions that restored enough together; None, if not even all of them did."""
        return self.positions if self.restored[-1] >= self.wanted else None

    @property
    def saved(self) -> int:
        """Runs that were not needed."""
        return self.exhaustive - self.forwards


@one_at_a_time("clean_cache")
def patch_in_order(
    clean_cache: Any,
    spoilt_cache: Any,
    attribution: Attribution,
    target: Asked = None,
    *,
    restore: float | int = 0.9,
    what: ByPosition = "resid_pre",
    layer: SupportsIndex = 0,
    tokens: Tokens = None,
    spoilt_tokens: Tokens = None,
    scale: Scale = "log_prob",
    batch: Batch = "auto",
) -> Search:
    """Patch positions together, one more at a time, highest scores first, until enough of what was lost is back.

    Args:
        clean_cache, spoilt_cache, tokens, spoilt_tokens, scale: as `patch` has them.
        attribution: of either prompt. Tokens that were left out of it are not patched.
        target: as `attribute` is given it; left out, it is the attribution's.
        restore: how much has to come back, as a share of what the spoilt run has lost: 1 is all. More than ever comes
            back has all positions patched.
        what, layer: the activation that is patched.
        batch: at most how many runs are made at once: first one, then twice as many each time, so that few are wasted.
    """
    check_choice("what", what, get_args(ByPosition))
    check_at_least("restore", restore, 0)
    check_attribution(attribution)
    check_reading(scale, batch)
    lens = shared_lens(clean_cache, spoilt_cache)
    row = lens.check_layer("layer", layer)
    lens.check_points([site_name(lens, what, row)])
    asked = attribution.target if target is None else target
    clean, spoilt = asked_of_both(clean_cache, spoilt_cache, asked, tokens, spoilt_tokens)
    order = _order(attribution, clean, spoilt)
    with clean.running(), spoilt.running(), torch.no_grad():
        runs = Runs.of(clean, spoilt, what, [row], scale)
        restored = _restored(runs, row, order, float(restore), batch)
    needed = next((count for count, share in enumerate(restored, 1) if share >= restore), len(restored))
    return Search(tuple(order[:needed]), tuple(restored[:needed]), float(restore), len(restored), len(spoilt))


def _restored(runs: Runs, layer: int, order: Sequence[int], restore: float, batch: Batch) -> list[float]:
    """The share restored by the first position, the first two and so on, for as many as were run."""
    lost = runs.clean_likelihood - runs.spoilt_likelihood
    if not lost:
        raise ValueError("nothing was lost: the target is as likely in the clean run as in the spoilt one")
    members = torch.zeros(len(order), len(runs.spoilt), dtype=torch.bool)
    members[:, order] = torch.ones(len(order), len(order)).tril().bool()
    most, step, restored = runs.spoilt.prompt.batches(batch, len(runs.spoilt)).size, 1, []
    while len(restored) < len(order) and not any(share >= restore for share in restored):
        found = runs.patched(layer, members[len(restored) :][:step], batch)
        restored += ((found - runs.spoilt_likelihood) / lost).tolist()
        step = min(2 * step, most)
    return restored


def _order(attribution: Attribution, clean: Prediction, spoilt: Prediction) -> list[int]:
    """Positions by their scores, highest first, of equal ones the first in the text."""
    check_explains(attribution, clean, spoilt)
    return attribution.positions[ranked(attribution.scores)].tolist()
