"""What several metrics need to know of a prediction, measured once for all methods that explain it."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from heta_lens._util.short_repr import short_repr
from heta_lens.metrics.additivity_metrics import Drops
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.token_patching import effects


@dataclass(frozen=True, eq=False)
class SharedMeasurements:
    """Measurements that do not depend on the scores, each made when it is first needed."""

    prediction: Prediction

    def __repr__(self) -> str:
        return short_repr(self)

    @cached_property
    def edge_effects(self) -> Float[Tensor, "pos"]:
        """The effect that patching each token has on the target."""
        return effects(self.prediction).cpu().double()

    @cached_property
    def drops(self) -> Drops:
        """What the target loses when tokens are masked."""
        return Drops.of(self.prediction)
