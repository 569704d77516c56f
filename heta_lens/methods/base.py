"""The contract of a method, `Method`, and the options that many methods share."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import cleandoc
from typing import Annotated, Any, ClassVar

from heta_lens._util.numerics import Divergence
from heta_lens._util.options import AtLeast, Batch, Options, Seed, chosen, is_whole, settings
from heta_lens._util.python import quietly
from heta_lens._util.target_kinds import KINDS, Kind, kind_of
from heta_lens._util.work import Work, working
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Cost, Diagnostics, sink_mass
from heta_lens.methods.results import Scores, checked_scores, make_attribution
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.cache import Rules
from heta_lens.prediction.gradients import check_gradients
from heta_lens.prediction.masking import Masking, mask_vector
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.search import TokenEffects, check_forwards, effects_of_tokens
from heta_lens.prediction.target import Scale, check_scale

__all__ = ["AtLeast", "Method", "NotApplicable", "Scores", "Work", "refuse_hooks", "refuse_overlong"]

ONE_TOKEN: frozenset[Kind] = frozenset(("token",))
OF_LOGITS: frozenset[Kind] = frozenset(KINDS) - {"activation"}
UNTITLED = {"batch", "progress", "seed"}  # options that do not make another score
SAME_FOR_EVERY_TARGET = "these scores are the same for every target"
LOADED: dict[str, type["Method"]] = {}  # classes by name, which an attribution's contract is read from
LABELS = {"cost": "Cost", "paper": "Paper", "adapted": "Adapted"}  # class attributes that the docstring repeats
WAY_OUT = "name a single token, or choose a method that explains it, such as 'leave_one_out' (effect='log_prob')"


class NotApplicable(ValueError):
    """A method cannot explain this target or prompt; evaluations count the prompt as skipped, not as failed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Method(Options, ABC):
    """A way to explain a prediction: a frozen dataclass of options that is called with a `Prediction`.

    To write a method, subclass `Method` under ``@dataclass(frozen=True, eq=False, kw_only=True)``. Fields are options;
    annotations check them (``steps: Annotated[int, AtLeast(1, whole=True)] = 50``), and the docstring documents each in
    a line of a list, its name first. `heta_lens.methods.base` has options that many methods share. A method must have

    - ``name``: what users write, ``method="lime"``
    - ``family``: ``gradient``, ``attention``, ``hidden_states``, ``perturbation``, ``generation``, ``control``
    - ``cost``: in forwards F and backwards B, of N context tokens and L layers
    - ``work(prediction)``: the `Work` that lies ahead, at most, in ``forwards`` and ``backwards``
    - ``explain(prediction)``: the scores

    and may have

    - ``signed = False``: scores are ≥ 0 and have no direction; by default, above 0 speaks for the target
    - ``target_agnostic = True``: the scores do not depend on the target; sets, contrasts and functions are then
      refused, except for a ``control``
    - ``differentiates = True``: the target is differentiated, so that a function as the target must have a gradient
    - ``kinds``: the kinds of target that are explained; by default a ``token``, a ``set`` of tokens, a ``contrast`` of
      two tokens or sets, a ``function`` of the logits, and an ``activation``
    - ``scaled_by``: the options that the cost grows with, whose values a budget decides
    - ``paper``: authors, title and place of the publication
    - ``adapted``: differences from the publication
    - ``fixed``: what is held fixed, if not what methods of the family hold fixed
    - ``unit``: of scores, if neither ``scale`` nor ``effect`` says it: nats, logits
    - ``directed``, ``title``: properties, where the options decide
    - ``check(prediction)``: refuse a prediction, with a ``ValueError``, before any work; after ``super().check``, which
      refuses targets of other kinds
    - ``without_effect``: options that do nothing with the other options

    ``progress``: show a progress bar; None shows it on a terminal or in a notebook.
    """

    progress: bool | None = None

    name: ClassVar[str]
    family: ClassVar[str]
    cost: ClassVar[str]
    signed: ClassVar[bool] = True
    target_agnostic: ClassVar[bool] = False
    differentiates: ClassVar[bool] = False
    kinds: ClassVar[frozenset[Kind]] = frozenset(KINDS)
    scaled_by: ClassVar[tuple[str, ...]] = ()
    paper: ClassVar[str] = ""
    adapted: ClassVar[str] = ""
    fixed: ClassVar[str] = ""
    unit: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Complete the docstring by inherited options, cost, paper and adaptations."""
        if "name" in vars(cls):
            if (cls.explain, cls.explain_together) == (Method.explain, Method.explain_together):
                raise TypeError(f"{cls.__name__} defines neither explain nor explain_together")
            facts = [f"{label}: {vars(cls)[name]}." for name, label in LABELS.items() if name in vars(cls)]
            cls.__doc__ = "\n\n".join([with_inherited_options(cls), *facts])
            if "function" not in vars(cls):  # a function may have a method's name
                LOADED[cls.name] = cls

    def __call__(self, prediction: Prediction) -> Attribution:
        return self.each([prediction])[0]

    @one_at_a_time("predictions")
    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain several predictions of the same prompt, shorter contexts first, with shared runs if possible."""
        for prediction in predictions:
            self.check(prediction)
        attributions, groups = list[Attribution](), self.sharing_runs(predictions)
        for group in groups:
            attributions += self.explained(group, 0 if attributions else len(groups))
        return attributions

    def explained(self, predictions: Sequence[Prediction], groups: int = 1) -> list[Attribution]:
        """Explain predictions with shared runs; the wait for so many ``groups`` is announced."""
        longest, shared, work = predictions[-1], len(predictions), self.work_together(predictions)
        if work.backwards or work.hvps:
            check_gradients(longest)
        with longest.running(), working(vars(work), self.progress, self.shorter(predictions), groups) as progress:
            results = self.explain_together(predictions)
        cost = Cost(**progress.cost())
        if shared > 1:
            backwards = progress.ran["backwards"] // shared
            cost = replace(cost, backwards=backwards, forwards_shared=cost.forwards, forwards_shared_by=shared)
        attributions = []
        for prediction, result in zip(predictions, results, strict=True):
            scores = checked_scores(self.name, result.scores, prediction)
            facts = Diagnostics(
                cost=cost,
                sink_mass=sink_mass(scores),
                chosen=chosen(self, without=UNTITLED),
                unused_options=self.unused_options,
                note=SAME_FOR_EVERY_TARGET if self.ignores_target else None,
                adapted=self.adapted or None,
            )
            whole = replace(result, scores=scores, diagnostics=result.facts.completed(facts))
            attributions.append(make_attribution(prediction, self.title, whole, settings(self), signed=self.directed))
        return attributions

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """Group predictions of a prompt that share runs."""
        return [[prediction] for prediction in predictions]

    @property
    def rules(self) -> Rules | None:
        """The rules of the gradient at the clean embeddings that the scores come from, if they come from one."""
        return None

    def check(self, prediction: Prediction) -> None:
        """Refuse a prediction that cannot be explained, before the first run."""
        kind = kind_of(prediction.target)
        if kind not in self.takes:
            raise refusal(self, kind, prediction.target_text)
        if kind in ("function", "activation"):
            if scale := chosen(self).get("scale"):
                check_scale(prediction.target, scale, None)
            if self.differentiates:
                prediction.check_differentiable()

    @abstractmethod
    def work(self, prediction: Prediction) -> Work:
        """Return the work that lies ahead, at most."""

    def positions_read(self, tokens: int) -> int:  # noqa: ARG002
        """Return the number of predicted distributions that a run keeps in memory."""
        return 1

    def states_held(self, tokens: int) -> int:  # noqa: ARG002
        """Return the number of hidden states kept in memory, beside those of a run."""
        return 0

    def work_together(self, predictions: Sequence[Prediction]) -> Work:
        """Return the work of predictions that share their forwards."""
        work = self.work(predictions[-1])
        return replace(work, backwards=work.backwards * len(predictions))

    def explain(self, prediction: Prediction) -> Scores:
        """Compute the scores; every method defines `explain` or `explain_together`."""
        return self.explain_together([prediction])[0]

    def explain_together(self, predictions: Sequence[Prediction]) -> list[Scores]:
        """Compute the scores of predictions that share their runs."""
        return [self.explain(prediction) for prediction in predictions]

    @property
    def takes(self) -> frozenset[Kind]:
        """Kinds of target that the method can explain with these options."""
        return ONE_TOKEN if self.ignores_target and self.family != "control" else self.kinds

    @property
    def directed(self) -> bool:
        """True if scores above 0 speak for the target, with these options."""
        return self.signed

    @property
    def ignores_target(self) -> bool:
        """True if the scores are the same for every target, with these options."""
        return self.target_agnostic

    @property
    def title(self) -> str:
        """Name of the method in results."""
        return self.name

    def shorter(self, predictions: Sequence[Prediction]) -> str:
        """What shortens a long wait, in words: a quarter of the option that then leaves the least work."""
        worth, found = self.work_together(predictions).worth, list[tuple[float, str]]()
        for name in (name for name in self.scaled_by if name not in self.without_effect):
            now = getattr(self, name)
            fewer = max(1, (now or len(predictions[-1])) // 4)
            with suppress(ValueError):  # a value that the option does not take
                changed = self._changed(name, fewer)
                quietly(partial(changed.check, predictions[-1]))
                share = changed.work_together(predictions).worth / max(1, worth)
                how = f"{name}={fewer} (now {'the default' if now is None else now}) takes about"
                found.append((share, f"{how} {share:.0%} of the time; "))
        share, words = min(found, default=(1, ""))
        return (words if share < 1 else "") + "method='fast', whose signs mislead, takes one backward pass"

    def _changed(self, option: str, value: Any) -> "Method":
        return quietly(lambda: replace(self, **{option: value}))


def with_inherited_options(method: type[Method]) -> str:
    """Return a method's docstring, completed by the option lines of its base classes."""
    text = cleandoc(method.__doc__ or "")
    documented = "".join(line.split(": ")[0] for line in text.splitlines() if line.startswith("- "))
    bases = [cleandoc(base.__doc__ or "") for base in method.__mro__[1:] if "name" not in vars(base)]
    entries = [entry for base in bases if base.startswith("- ") for entry in re.split(r"\n(?=- )", base)]
    lines = [entry for entry in entries if entry[2:].split(": ")[0] not in documented]
    return ("\n" if documented else "\n\n").join([text, "\n".join(lines)]) if lines else text


# ------------------------------------------------------------------------------------------------------------- refusals
def refusal(method: Method, kind: Kind, target: Any) -> NotApplicable:
    """Return the error for a kind of target that the method does not explain; ``target`` is the target as written."""
    given = "".join(f", {name}={value!r}" for name, value in chosen(method, without=UNTITLED).items())
    takes = f" explains one {' or '.join(sorted(method.takes))}"
    does = f"{given} gives every target the same scores" if method.ignores_target else takes
    return NotApplicable(f"method={method.name!r}{does}, and cannot explain the {kind} {target}: {WAY_OUT}")


def refuse_overlong(method: Method, prediction: Prediction, positions: int, way_out: str) -> None:
    longest = getattr(prediction.model.cfg, "n_ctx", None)
    if longest is not None and positions > longest:
        raise ValueError(f"method={method.name!r} takes {positions} positions, and this model has {longest}: {way_out}")


def refuse_hooks(method: Method, prediction: Prediction, why: str) -> None:
    if prediction.user_hooks:
        raise ValueError(f"method={method.name!r} {why}, which hooks on the model were not made for: take them off")


def is_pair(span: Any) -> bool:
    return isinstance(span, list | tuple) and len(span) == 2 and all(map(is_whole, span))


def check_range(name: str, span: Any) -> None:
    """Refuse values other than a pair (start, stop) of positions."""
    if not (is_pair(span) and 0 <= span[0] < span[1]):
        raise ValueError(f"{name}={span!r} must be a pair (start, stop) of positions, such as (0, 5)")


# ------------------------------------------------------------------------------------------------------- shared options
@dataclass(frozen=True, eq=False, kw_only=True)
class WithMask(Method):
    """
    - ``mask``: the embedding that replaces a masked token's: ``zero``, ``mean`` (of the context), ``vocab_mean``,
      ``pad`` (without one, the tokenizer's end of text), ``space`` (the token of a blank; without one, as ``pad``), a
      token id or a vector
    """

    mask: Masking = "zero"

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if "mask" not in self.without_effect:
            mask_vector(prediction, self.mask)


@dataclass(frozen=True, eq=False, kw_only=True)
class WithBos(Method):
    """- ``keep_bos``: leave a beginning-of-text token as it is, with a score of 0"""

    keep_bos: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class WithLayer(Method):
    """- ``layer``: the layer to read, counted from 0; None is the last"""

    layer: Annotated[int | None, AtLeast(0, whole=True)] = None

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if self.layer is not None:
            prediction.adapter.check_layer("layer", self.layer)


@dataclass(frozen=True, eq=False, kw_only=True)
class WithScale(Method):
    """- ``scale``: the scale of g: the target's ``log_prob``, ``prob``, ``logit`` or ``log_odds``"""

    scale: Scale = "log_prob"


@dataclass(frozen=True, eq=False, kw_only=True)
class WithSeed(Method):
    """- ``seed``: the seed of the random numbers"""

    seed: Seed = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class WithBatch(Method):
    """- ``batch``: the number of copies of the context to run at once; affects memory and speed only"""

    batch: Batch = "auto"


@dataclass(frozen=True, eq=False, kw_only=True)
class WithForwards(WithMask, WithBatch):
    """
    - ``forwards``: the largest number of runs, for long contexts: spans of the text are masked as wholes, and the spans
      that move the prediction most are divided, down to single tokens; ``attribution.measured`` tells which tokens were
      masked alone, and the others share their span's effect. None masks every token alone
    """

    forwards: Annotated[int | None, AtLeast(2, whole=True)] = None

    def check(self, prediction: Prediction) -> None:
        super().check(prediction)
        if "forwards" not in self.without_effect:
            check_forwards(prediction, self.forwards)

    def work(self, prediction: Prediction) -> Work:
        return Work(forwards=min(len(prediction), self.forwards or len(prediction)))

    def token_effects(self, predictions: Sequence[Prediction], divergence: Divergence) -> list[TokenEffects]:
        """Mask every token, or search, for predictions that share the runs."""
        batches = predictions[-1].batches(self.batch, read=len(predictions))
        return effects_of_tokens(predictions, self.mask, divergence, batches, self.forwards)
