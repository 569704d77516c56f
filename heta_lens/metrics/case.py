"""What a metric may ask about: a prompt with what is known of it, a prediction, and how a method explained it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.metrics.candidates import ordinary
from heta_lens.metrics.robustness import Explain
from heta_lens.prediction import Prediction
from heta_lens.text import Span, brief, tokens_in


@dataclass(frozen=True)
class Case:
    """``ready`` gives the method as it is for a prompt, ``ask`` what the same model is asked by another instance."""

    def __repr__(self) -> str:
        return brief(self)

    instance: Instance
    prediction: Prediction
    attribution: Attribution
    ready: Callable[[Instance, Prediction], Explain]
    ask: Callable[[Instance], Prediction]

    @cached_property
    def scores(self) -> Float[Tensor, "pos"]:
        return self.attribution.scores.detach().cpu().double()

    @cached_property
    def explain(self) -> Explain:
        """The method for this prompt."""
        return self.ready(self.instance, self.prediction)

    @cached_property
    def candidates(self) -> list[int]:
        """The tokens that are judged: all but special ones, whatever the method."""
        return ordinary(self.prediction)

    @property
    def flat(self) -> bool:
        """Whether the scores tell no tokens apart, so that every order is as good as another."""
        return self.scores[self.candidates].unique().numel() < 2

    @property
    def speechless(self) -> bool:
        """Whether no score speaks for the target."""
        return not bool((self.scores[self.candidates] > 0).any())

    def positions(self, name: str) -> list[int]:
        return positions(self.instance, self.prediction, name)


def positions(instance: Instance, prediction: Prediction, name: str) -> list[int]:
    """The tokens of an instance's spans of this name: ``gold``, ``support``, ``distractor`` or ``question``."""
    text, spans = prediction.located
    start = text.find(instance.text)
    if start < 0:
        raise ValueError(
            f"instance {instance.id!r}: the tokenizer does not give its text back, so nothing can be found in it by "
            "its characters"
        )
    wanted = [Span(start + one.start, start + one.stop) for one in getattr(instance, name)]
    found = {at for span in wanted for at in tokens_in(text, spans, span)}
    return sorted(found & {*ordinary(prediction)})
