"""The contract of a method: `Method`, what its ``explain`` returns (`Scores`), and the refusals that methods share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from einops import repeat
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.files import brief
from heta_lens._util.options import AtLeast, Options, check_options, chosen, settings
from heta_lens._util.python import versions, warn
from heta_lens._util.target_kinds import KINDS, Kind, Side, kind_of, members, sides
from heta_lens._util.work import Work, working
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import Diagnostics, sink_mass
from heta_lens.model.lock import one_at_a_time
from heta_lens.model.norms_and_neurons import weight_processing
from heta_lens.prediction.gradients import check_gradients
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import check_scale, joint_logit

# ---------------------------------------------------------------------------------------------------- make attribution
# Scores become an `Attribution`: put beside the tokens they belong to, with what is known about the prediction.


def make_attribution(
    prediction: Prediction,
    method: str,
    scores: Float[Tensor, "pos"],
    parts: Mapping[str, Tensor],
    options: Mapping[str, Any],
    diagnostics: Mapping[str, Any],
    interactions: Float[Tensor, "pos pos"] | None = None,
    *,
    signed: bool = False,
) -> Attribution:
    """The scores of a method, beside the tokens they belong to."""
    text, spans = prediction.located
    chat = prediction.prompt.chat
    return Attribution(
        ids=prediction.ids.cpu(),
        tokens=prediction.written,
        positions=torch.arange(len(prediction)),
        offsets=torch.tensor(spans),
        special=torch.tensor(prediction.adapter.tokenizer.special(prediction.ids.tolist())),
        text=text,
        target=prediction.target,
        target_text=prediction.target_text,
        method=method,
        scores=_detached(scores),
        parts=_detached(parts),
        options={**options, "model": weight_processing(prediction.adapter), "versions": versions()},
        diagnostics=Diagnostics.of(_detached(_facts(prediction, diagnostics))),
        signed=signed,
        interactions=_detached(interactions),
        messages=None if chat is None else chat.of_context(text, spans),
    )


def _facts(prediction: Prediction, more: Mapping[str, Any]) -> dict[str, Any]:
    """What is known about a prediction beside the scores, and ``more`` of it from the method."""
    prompt = prediction.prompt
    return {
        **_target_facts(prediction),
        **_unknown(prediction),
        "prefix_reuse": prompt.reuse,
        "user_hooks": len(prompt.user_hooks),
        "cache_mismatch": prompt.mismatch,
        **more,
        "checks": {name: dict(counts) for name, counts in (prompt.checks | more.get("checks", {})).items()},
    }


def _target_facts(prediction: Prediction) -> dict[str, Any]:
    """How likely the target is, both sides of a contrast, or what a function gives; and what other tokens there are."""
    if callable(prediction.target):
        return {"target_value": float(prediction.value)}
    both = sides(prediction.target)
    of_each = {
        "target_token": [_written(prediction, tokens) for tokens in both],
        "target_log_prob": [float(joint_logit(prediction.log_probs, tokens)) for tokens in both],
        "target_rank": [_rank(prediction.log_probs, tokens) for tokens in both],
    }
    ids = [token for tokens in both for token in members(tokens)]
    others = [token for token in prediction.others if token not in ids]
    facts: dict[str, Any] = {
        name: tuple(values) if isinstance(prediction.target, tuple) else values[0] for name, values in of_each.items()
    }
    if prediction.others:
        facts["other_spellings"] = _spelled(prediction, others)
    if of_sets := [token for tokens in both if isinstance(tokens, frozenset) for token in members(tokens)]:
        facts["target_members"] = _spelled(prediction, of_sets)
    return facts


def _unknown(prediction: Prediction) -> dict[str, Any]:
    """Where the context has words that the tokenizer does not know."""
    unknown = prediction.adapter.tokenizer.unknown
    places = [place for place, token in enumerate(prediction.ids.tolist()) if token == unknown]
    return {"unknown": places} if places else {}


def _written(prediction: Prediction, tokens: Side) -> str:
    """A token as it is written after the context; a set has no text of its own."""
    return prediction.adapter.tokenizer.write(tokens, prediction.ids.tolist()) if isinstance(tokens, int) else ""


def _rank(log_probs: Float[Tensor, "vocab"], tokens: Side) -> int:
    """1 for the most likely token; of a set, its best member's."""
    return int((log_probs > log_probs[members(tokens)].max()).sum()) + 1


def _spelled(prediction: Prediction, tokens: Sequence[int]) -> list[dict[str, Any]]:
    tokenizer, ids = prediction.adapter.tokenizer, prediction.ids.tolist()
    return [
        {
            "id": token,
            "text": tokenizer.write(token, ids),
            "log_prob": float(prediction.log_probs[token]),
        }
        for token in tokens
    ]


def _detached(value: Any) -> Any:
    """Every tensor in it, on the CPU and without its graph."""
    if isinstance(value, Mapping):
        return {name: _detached(item) for name, item in value.items()}
    return value.detach().cpu() if isinstance(value, Tensor) else value


# ----------------------------------------------------------------------------------------------------- returned scores
# What a method returned, checked: one finite number per token.


def checked_scores(method: str, scores: Any, prediction: Prediction) -> Float[Tensor, "pos"]:
    """Scores as a tensor; refused unless they are one finite number per token."""
    values = scores
    if not isinstance(scores, Tensor):
        try:
            values = torch.as_tensor(np.asarray(scores, dtype=np.float64))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{method} returned {brief(scores)}: return one number per token") from None
    if values.shape != (len(prediction),):
        raise ValueError(
            f"{method} returned scores of shape {tuple(values.shape)} for {len(prediction)} tokens: "
            "return one number per token"
        )
    if values.is_complex():
        raise TypeError(f"{method} returned complex scores: return one real number per token")
    values = values if values.is_floating_point() else values.to(prediction.embeddings)
    prediction.check_finite("the score", values)
    return values


__all__ = [
    "AtLeast",
    "Method",
    "NotApplicable",
    "Scores",
    "refuse_hooks",
    "refuse_overlong",
]

ALL_KINDS: frozenset[Kind] = frozenset(KINDS)
ONE_TOKEN: frozenset[Kind] = frozenset(("token",))
MANY, TRIED = 1000, 8  # forwards that are so many that their time is estimated, and those run at once for that
LONG = 60.0  # seconds that are worth a warning
UNTITLED = {"batch", "progress", "seed"}  # options that do not make it another score


class NotApplicable(ValueError):
    """A method that has no answer for a target or a prompt: evaluations count it as skipped, not as failed."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a method finds: a score per context token, and ``diagnostics``, anything worth keeping beside them.

    ``parts`` are the factors of the scores and ``interactions`` a score per pair of tokens, for methods that have them.
    """

    scores: Float[Tensor, "pos"]
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Float[Tensor, "pos"]] = field(default_factory=dict)
    interactions: Float[Tensor, "pos pos"] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Method(Options, ABC):
    """A way to explain a prediction: a frozen dataclass of options that is called with a `Prediction`.

    To write one, subclass `Method` under ``@dataclass(frozen=True, eq=False, kw_only=True)``. Fields are its options;
    annotations check them (``steps: Annotated[int, AtLeast(1, whole=True)] = 50``), and the docstring documents each in
    a line ``- ``steps``: …``. `heta_lens.methods.options` has those that many methods take. It must have

    - ``name``: what users write, ``method="lime"``
    - ``family``: ``gradient``, ``attention``, ``hidden_states``, ``perturbation``, ``generation``, ``control``
    - ``cost``: in forwards F and backwards B, of N context tokens and L layers
    - ``work(prediction)``: how many ``forwards`` and ``backwards`` lie ahead
    - ``explain(prediction, progress)``: the scores

    and may have

    - ``signed = False``: scores are ≥ 0 and have no direction; by default, above 0 speaks for the target
    - ``target_agnostic = True``: the scores do not depend on which target is explained; sets, contrasts and functions
      are then refused, except for a ``control``
    - ``differentiates = True``: it takes gradients of the target, so that a function as the target must have one
    - ``takes``: the kinds of target that it explains; by default a ``token``, a ``set`` of tokens, a ``contrast`` of
      two tokens or sets, and a ``function`` of the logits
    - ``scaled_by``: the options that its cost grows with, whose values a budget decides
    - ``paper``: who published it, as which title, and where
    - ``adapted``: in which way it differs from what its authors do
    - ``random``, ``directed``, ``title``: properties, where the options decide
    - ``check(prediction)``: refuse a prediction, with a ``ValueError``, before any work; after ``super().check``, which
      refuses other targets than it takes
    - ``without_effect``: options that do nothing with the others as they are

    ``progress``: show a progress bar; None shows it on a terminal or in a notebook.
    """

    progress: bool | None = None

    name: ClassVar[str]
    family: ClassVar[str]
    cost: ClassVar[str]
    signed: ClassVar[bool] = True
    target_agnostic: ClassVar[bool] = False
    differentiates: ClassVar[bool] = False
    scaled_by: ClassVar[tuple[str, ...]] = ()
    paper: ClassVar[str] = ""
    adapted: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Complete the docstring by the options that the class inherits, and by what the table of all methods says."""
        if "name" in vars(cls):
            own = [f"{label}: {vars(cls)[name]}." for name, label in LABELS.items() if name in vars(cls)]
            cls.__doc__ = "\n\n".join([with_inherited_options(cls), *own])

    def __post_init__(self) -> None:
        check_options(self)
        if unused := self.unused_message():
            warn(unused)

    @one_at_a_time("prediction")
    def __call__(self, prediction: Prediction) -> Attribution:
        self.check(prediction)
        work = self.work(prediction)
        if work.get("backwards") or work.get("hvps"):
            check_gradients(prediction)
        warn_of_long_work(self, prediction, work)
        with prediction.running(), working(work, self.progress) as progress, progress.counting():
            result = self.explain(prediction, progress)
        scores = checked_scores(self.name, result.scores, prediction)
        diagnostics = {**progress.cost(), **common_facts(self, scores), **result.diagnostics}
        return make_attribution(
            prediction,
            self.title,
            scores,
            result.parts,
            settings(self),
            diagnostics,
            result.interactions,
            signed=self.directed,
        )

    def sharing_runs(self, predictions: Sequence[Prediction]) -> list[list[Prediction]]:
        """These predictions of one prompt, those together that `each` explains by the same runs."""
        return [[prediction] for prediction in predictions]

    @one_at_a_time("predictions")
    def each(self, predictions: Sequence[Prediction]) -> list[Attribution]:
        """Explain several predictions of one prompt, one after the other."""
        for prediction in predictions:
            self.check(prediction)
        return [self(prediction) for prediction in predictions]

    def check(self, prediction: Prediction) -> None:
        """Refuse, before any work, what cannot be done for this prediction."""
        check_target(self, prediction)

    @abstractmethod
    def work(self, prediction: Prediction) -> dict[str, int]:
        """How many ``forwards`` and ``backwards`` of the whole context lie ahead, at most."""

    def positions_read(self, prediction: Prediction) -> int:  # noqa: ARG002
        """At how many positions a run keeps the predicted distribution, which is what takes memory."""
        return 1

    @abstractmethod
    def explain(self, prediction: Prediction, progress: Work) -> Scores:
        """Scores of the context's tokens. ``progress.add("forwards", 1)`` moves the progress bar."""

    @property
    def random(self) -> bool:
        """Whether another seed may give other scores."""
        return hasattr(self, "seed")

    @property
    def takes(self) -> frozenset[Kind]:
        """The kinds of target that it explains with these options."""
        return ONE_TOKEN if self.ignores_target and self.family != "control" else ALL_KINDS

    @property
    def directed(self) -> bool:
        """Whether, with these options, a score above 0 speaks for the target."""
        return self.signed

    @property
    def ignores_target(self) -> bool:
        """Whether, with these options, the scores are the same for every target."""
        return self.target_agnostic

    @property
    def title(self) -> str:
        """The method's name in its results."""
        return self.name


REFUSED: dict[Kind, str] = {
    "token": "does not explain a single token, as {0!r}: it takes {1}",
    "contrast": "explains one token, and cannot contrast it with another",
    "set": "explains one token, not {0} together: name one of them, or choose a method that takes sets, such as 'heta'",
    "function": "explains a token, not the function target={0}: name a token, or choose a method that takes functions, "
    "such as 'fast' or 'leave_one_out' with effect='log_prob'",
}
WAY_OUT = (
    "name a single token, or choose a method that reads the target, such as 'fast' or 'leave_one_out' with "
    "effect='log_prob'"
)
SAME_FOR_EVERY_TARGET = "these scores are the same for every target"
LABELS = {"cost": "Cost", "paper": "Paper", "adapted": "Adapted"}  # of the class attributes that the docstring repeats


def warn_of_long_work(method: Method, prediction: Prediction, work: Mapping[str, int]) -> None:
    """Say before much work how long it will take, by the time of a few forwards; a backward takes about two."""
    runs = work.get("forwards", 0) + 2 * work.get("backwards", 0)
    if runs < MANY:
        return
    copies = min(TRIED, prediction.prompt.batches("auto", len(prediction)).of(len(prediction)))
    states = repeat(prediction.embeddings, "pos d -> copy pos d", copy=copies)
    with prediction.running(), torch.no_grad():
        begun = perf_counter()
        float(prediction.rerun().log_probs(states)[0, 0])  # which waits for an accelerator
        seconds = runs / copies * (perf_counter() - begun)
    if seconds > LONG:
        counts = " and ".join(f"{count:,} {kind}" for kind, count in work.items() if count)
        lower = f"lower {' or '.join(method.scaled_by)}, or " if method.scaled_by else ""
        warn(
            f"method={method.name!r} takes up to {counts} here, about {seconds / 60:,.0f} min: {lower}choose a cheaper "
            "method (heta_lens.estimate compares costs)"
        )


def common_facts(method: Method, scores: Float[Tensor, "pos"]) -> dict[str, Any]:
    """Diagnostics that every method has."""
    facts = {
        "sink_mass": sink_mass(scores),
        "chosen": {name: value for name, value in chosen(method).items() if name not in UNTITLED},
        "unused_options": method.unused_options,
    }
    if method.ignores_target:
        facts["note"] = SAME_FOR_EVERY_TARGET
    return facts | ({"adapted": method.adapted} if method.adapted else {})


def with_inherited_options(method: type[Method]) -> str:
    """A method's docstring, followed by those lines of its base classes that document options it does not itself."""
    own = cleandoc(method.__doc__ or "")
    inherited = [cleandoc(base.__doc__ or "") for base in method.__mro__[1:] if "name" not in vars(base)]
    documented = "".join(line.split(": ")[0] for line in own.splitlines() if line.startswith("- "))
    lines = [line for line in inherited if line.startswith("- ") and line[2:].split(": ")[0] not in documented]
    return ("\n" if documented else "\n\n").join([own, "\n".join(lines)]) if lines else own


def check_target(method: Method, prediction: Prediction) -> None:
    """Refuse a target of a kind that the method does not explain, and a function that it cannot differentiate."""
    kind = kind_of(prediction.target)
    if kind not in method.takes:
        raise refusal(method, kind, prediction.target_text)
    if "scale" in method.given:
        check_scale(prediction.target, method.given["scale"], None)
    if method.differentiates:
        prediction.check_differentiable()


def refusal(method: Method, kind: Kind, target: Any) -> NotApplicable:
    """Say why the method does not explain a kind of target, and the way out; ``target`` is how it is written."""
    if kind == "token" or not method.ignores_target:
        takes = " or ".join(sorted(method.takes))
        return NotApplicable(f"method={method.name!r} {REFUSED[kind].format(target, takes)}")
    given = "".join(f", {name}={value!r}" for name, value in chosen(method).items() if name not in UNTITLED)
    return NotApplicable(
        f"method={method.name!r}{given} gives every target the same scores, which cannot explain the {kind} {target}: "
        f"{WAY_OUT}"
    )


def refuse_overlong(method: Method, prediction: Prediction, positions: int, way_out: str) -> None:
    longest = getattr(prediction.adapter.model.cfg, "n_ctx", None)
    if longest is not None and positions > longest:
        raise ValueError(f"method={method.name!r} takes {positions} positions, and this model has {longest}: {way_out}")


def refuse_hooks(method: Method, prediction: Prediction, why: str) -> None:
    if prediction.prompt.user_hooks:
        raise ValueError(f"method={method.name!r} {why}, which hooks on the model were not made for: take them off")


# ----------------------------------------------------------------------------------------------------- function method
# A plain function ``f(prediction) -> scores`` as a method.


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMethod(Method):
    """A function as a method: without options, at an unknown cost, and signed where a score is below 0."""

    family: ClassVar = "function"
    cost: ClassVar = "not known"
    signed: ClassVar = False
    function: ClassVar[Callable[[Prediction], Any]]

    def __call__(self, prediction: Prediction) -> Attribution:
        result = super().__call__(prediction)
        return replace(result, signed=bool((result.scores < 0).any()))

    def work(self, prediction: Prediction) -> dict[str, int]:  # noqa: ARG002
        return {}

    def explain(self, prediction: Prediction, progress: Work) -> Scores:  # noqa: ARG002
        scores = type(self).function(prediction)
        return scores if isinstance(scores, Scores) else Scores(checked_scores(self.name, scores, prediction))


def as_method(method: Any, name: str = "") -> type[Method]:
    """A method's class as it is; a function as a class of this name, by default its own."""
    if isinstance(method, type) and issubclass(method, Method):
        if name and getattr(method, "name", name) != name:
            raise ValueError(f"it is registered as {name!r}, but its class has the name {method.name!r}")
        return method
    if isinstance(method, type) or not callable(method):
        raise TypeError(f"{brief(method)} is neither a heta_lens.Method nor a function (prediction) -> scores")
    own = name or getattr(method, "__name__", type(method).__name__)
    names = {"name": own, "function": staticmethod(method), "__doc__": method.__doc__, "__module__": method.__module__}
    return type(own, (FunctionMethod,), names)
