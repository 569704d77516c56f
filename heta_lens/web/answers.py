"""Answers to what the page asks: the model's answer, explanations of its words, and what if a token were another."""

from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from safetensors.torch import load as tensors_of
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.numerics import kl
from heta_lens._util.options import check_choice, check_token
from heta_lens._util.storage import only_vector
from heta_lens._util.target_kinds import Activation, members, sides
from heta_lens._util.work import watched
from heta_lens.api import attribute_span
from heta_lens.attribution import Attribution
from heta_lens.methods.base import Method
from heta_lens.methods.registry import method_of
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import lean_names_filter
from heta_lens.model.lock import holding
from heta_lens.model.tokenizer import check_length
from heta_lens.model.weights import identity
from heta_lens.plots import page
from heta_lens.plots.comparison import compare
from heta_lens.prediction.chat import ChatPrompt, read_prompt
from heta_lens.prediction.generation import continuation
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.target import activation, log_softmax
from heta_lens.span_attribution import SpanAttribution

Result: TypeAlias = Attribution | SpanAttribution
Line: TypeAlias = Mapping[str, Any]
Tell: TypeAlias = Callable[[Line], None]

KEPT = 60  # results that can be saved and compared; older ones are asked again
SHOWN = 5  # next tokens in the table of an intervention, before and after it
FEW_PROBES = 3  # of HETA's first explanation, which the whole one replaces
EVERY = 0.2  # seconds between two words on the progress
WAYS = ("mask", "delete", "replace", "patch")


@dataclass(frozen=True)
class Question:
    """What is asked: a prompt, the ids that the model wrote after it, and the target.

    - ``prompt``: a text, or the messages of a chat
    - ``at``: which of the ``written`` tokens is explained; their number for the token after them, None for all
    - ``target``: None for the written (or most likely) token; the ``text`` of a token, and of another ``against`` it;
      or a ``hook`` with an ``index`` or a ``direction`` (a safetensors file in base64), and a ``head``
    """

    prompt: Any
    written: Sequence[int] = ()
    at: int | None = None
    target: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class WhatIf:
    """A change of tokens: ``how`` is one of ``WAYS``; ``text`` is put in, and ``counterfactual`` patched from."""

    positions: Sequence[int]
    how: Literal["mask", "delete", "replace", "patch"]
    text: str = ""
    counterfactual: Any = None
    layer: int | None = None
    results: Sequence[int] = ()


class Asked(NamedTuple):
    """The tokens of a question (ids, or a chat), the ids, and the number of tokens before the answer."""

    tokens: Any
    ids: Int[Tensor, "1 pos"]
    start: int


@dataclass(eq=False)
class Answers:
    """Answers about one model. The latest results are kept, by number, to be saved and compared."""

    model: Any
    results: "OrderedDict[int, tuple[Result, View]]" = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def adapter(self) -> ModelAdapter:
        return ModelAdapter(self.model)

    # -------------------------------------------------------------------------------------------------------- questions
    def write(self, question: Question, tokens: int, tell: Tell) -> None:
        """Let the model write an answer, and tell its tokens as they come."""
        ids, write = self._asked(question).ids, self.adapter.tokenizer.write
        so_far = ids[0].tolist()

        def told(token: int) -> None:
            tell({"token": token, "text": write(token, so_far)})
            so_far.append(token)

        continuation(self.adapter, ids, tokens, told)

    def explain(self, question: Question, methods: Sequence[str], tell: Tell) -> None:
        """Explain a word of the answer, or all words, by methods in turn; each is told when it is there.

        HETA's first explanation is from few probes, and has wide error bars, which the whole one narrows.
        """
        asked, cache = self._asked(question), None
        for name in methods:
            stages = [{"probes": FEW_PROBES}, {}] if name == "heta" and question.at is not None else [{}]
            for stage, options in enumerate(stages):
                begun, method = perf_counter(), method_of(name, {"progress": False, **options})
                with Reporting(tell, name) as reporting, holding(self.model):
                    if cache is None:
                        cache = self.adapter.cache(asked.ids, lean_names_filter)
                    result = self._explained(question, asked, cache, method, reporting)
                ended = {"seconds": perf_counter() - begun, "whole": stage == len(stages) - 1}
                tell({"method": name, **ended, **self.shown(result)})

    def texts(self, question: Question) -> list[str]:
        """Return the texts of the written tokens."""
        asked = self._asked(question)
        ids, write = asked.ids[0].tolist(), self.adapter.tokenizer.write
        return [write(ids[place], ids[:place]) for place in range(asked.start, len(ids))]

    @property
    def model_name(self) -> str:
        """The model's name, with a digest of the weights."""
        facts = identity(self.model)
        return f"{facts['name'] or 'a model'} ({facts['weights']})"

    def shown(self, result: Result) -> Line:
        """Keep a result, and return its number and its view."""
        return self._keep(result, page(result))

    def compared(self, results: Sequence[int]) -> Line:
        """Return the view of several results beside each other."""
        chosen = [self.result(number) for number in results]
        return self._keep(chosen[0], compare(chosen))

    def result(self, number: int) -> Result:
        return self._kept(number)[0]

    def view(self, number: int) -> View:
        return self._kept(number)[1]

    def what_if(self, question: Question, change: WhatIf) -> Line:
        """Change tokens, and return the prediction before and after it, and what the scores had promised."""
        check_choice("how", change.how, WAYS)
        asked = self._asked(question)
        with holding(self.model):
            before = self._prediction(question, asked, self.adapter.cache(asked.ids, lean_names_filter))
            if not change.positions or not all(0 <= place < len(before) for place in change.positions):
                raise ValueError(f"positions must be tokens before the explained one, from 0 to {len(before) - 1}")
            logits, value = self._changed(question, asked, before, change)
        found: dict[str, Any] = {"before": float(before.value), "after": value, "drop": float(before.value) - value}
        if not isinstance(before.target, Activation):
            after = log_softmax(logits)
            found |= {"kl": float(kl(before.log_probs, after)), "tokens": self._likely(before, after)}
        return found | {"promised": [*self._promised(change)]}

    # -------------------------------------------------------------------------------------------------------- the model
    def _asked(self, question: Question) -> Asked:
        before, written = read_prompt(self.model, question.prompt), [*question.written]
        ids = before.tokens if isinstance(before, ChatPrompt) else before
        for token in written:
            check_token("written", token, self.adapter.vocabulary)
        whole = torch.cat([ids, ids.new_tensor([written])], 1) if written else ids
        check_length(self.model, whole.shape[1], "prompt and answer are")
        tokens = before.followed_by(written) if isinstance(before, ChatPrompt) else whole
        return Asked(tokens, whole, ids.shape[1])

    def _prediction(self, question: Question, asked: Asked, cache: Any, rules: Any = None) -> Prediction:
        position = None if question.at == len(question.written) else asked.start + (question.at or 0)
        target = target_of(question.target)
        return Prediction.from_cache(cache, target, position=position, tokens=asked.tokens, rules=rules)

    def _explained(
        self, question: Question, asked: Asked, cache: Any, method: Method, reporting: "Reporting"
    ) -> Result:
        if question.at is None:
            target = target_of(question.target)
            return attribute_span(cache, asked.start, tokens=asked.tokens, targets=target, method=method)
        prediction = self._prediction(question, asked, cache, method.rules)
        reporting.expected = method.work(prediction).worth
        return method(prediction)

    @torch.no_grad()
    def _changed(
        self, question: Question, asked: Asked, before: Prediction, change: WhatIf
    ) -> tuple[Float[Tensor, "vocab"], float]:
        """Return the logits after a change (of an activation, what is read), and the target's value."""
        places, layer = [*change.positions], None
        if change.how in ("delete", "replace"):
            ids = self._edited(before, change)
            target = target_of(question.target) if isinstance(before.target, Activation) else before.target
            after = Prediction.from_cache(self.adapter.cache(ids, lean_names_filter), target, tokens=ids)
            return after.logits, float(after.value)
        if change.how == "patch":
            layer = change.layer or None  # the embeddings enter the first
            if layer is not None:
                self.adapter.check_layer("layer", layer)
            states, other = before.states(layer).clone(), self._counterfactual(question, asked, before, change)
            states[places] = other.states(layer)[places]
        else:
            states = before.embeddings.clone()
            states[places] = before.mask_vector("zero")
        with before.running():
            logits = before.rerun(layer=layer).logits(states[None])[0]
        return logits, float(before.objective(logits))

    def _edited(self, before: Prediction, change: WhatIf) -> Int[Tensor, "1 pos"]:
        """Return the context without the tokens, or with the text's tokens in place of the first of them."""
        if change.how == "delete" and before.begins and 0 in change.positions:
            raise ValueError("the token at 0 begins the text for the model: mask it, rather than delete it")
        put = list[int]()
        if change.how == "replace":
            if not change.text:
                raise ValueError("there is no text to put in: write one, or delete the tokens")
            first = min(change.positions)
            spaced = before.written[first][:1].isspace() and not change.text[0].isspace()
            context, any_token = before.ids[:first].tolist(), [0.0] * self.adapter.vocabulary
            put = self.adapter.tokenizer.spell(" " * spaced + change.text, context, any_token)
        edited = list[int]()
        for place, token in enumerate(before.ids.tolist()):
            edited += put * (place == min(change.positions)) if place in change.positions else [token]
        if not edited:
            raise ValueError("without these tokens there is no prompt: leave one")
        return before.ids.new_tensor([edited])

    def _counterfactual(self, question: Question, asked: Asked, before: Prediction, change: WhatIf) -> Prediction:
        other = self._asked(Question(change.counterfactual, question.written))
        length = len(before) + other.start - asked.start
        if length != len(before):
            raise ValueError(
                f"the other prompt has {length} tokens before the explained one, and this prompt {len(before)}: write "
                "one of as many"
            )
        cache = self.adapter.cache(other.ids[:, : len(before)], lean_names_filter)
        return Prediction.from_cache(cache, before.target, tokens=other.ids[:, : len(before)])

    # ------------------------------------------------------------------------------------------------------- the answer
    def _likely(self, before: Prediction, after: Float[Tensor, "vocab"]) -> list[dict[str, Any]]:
        """Return the most likely next tokens before and after, and the target's, with both probabilities."""
        asked = [] if callable(before.target) else [id for side in sides(before.target) for id in members(side)]
        both = [log_probs.topk(min(SHOWN, len(after))).indices.tolist() for log_probs in (before.log_probs, after)]
        write, context = before.adapter.tokenizer.write, before.ids.tolist()
        rows = [
            {
                "text": write(token, context),
                "target": token in asked,
                "before": float(before.log_probs[token].exp()),
                "after": float(after[token].exp()),
            }
            for token in dict.fromkeys([*asked, *both[0], *both[1]])
        ]
        return sorted(rows, key=lambda row: -max(row["before"], row["after"]))

    def _promised(self, change: WhatIf) -> Iterator[dict[str, Any]]:
        """Yield, for each of the shown results, the score of the changed tokens and its share of all."""
        for number in change.results:
            result = self.result(number).summed
            own = [row for row, place in enumerate(result.positions.tolist()) if place in change.positions]
            sizes = result.scores.abs()
            share = float(sizes[own].sum() / (sizes.sum() or 1))
            yield {"score": float(result.scores[own].sum()), "share": share}

    def _keep(self, result: Result, view: View) -> Line:
        number = next(self.numbers)
        self.results[number] = result, view
        while len(self.results) > KEPT:
            self.results.popitem(last=False)
        return {"result": number, "title": view.title, "html": view.fragment, "files": [".html", *view.exports]}

    def _kept(self, number: int) -> tuple[Result, View]:
        if number not in self.results:
            raise ValueError("this explanation is not kept any more: ask again")
        return self.results[number]


def target_of(given: Mapping[str, Any] | None) -> Any:
    """Return what is explained, in the form of `attribute`."""
    if not given:
        return None
    if "hook" not in given:
        return (given["text"], given["against"]) if given.get("against") else given["text"]
    direction = given.get("direction")
    if direction is not None:
        direction = only_vector("the direction's file", tensors_of(b64decode(direction)))
    return activation(given["hook"], index=given.get("index"), direction=direction, head=given.get("head"))


class Reporting:
    """Tells, inside a block, the share of the ``expected`` work that is done, or the number of runs, now and then."""

    def __init__(self, tell: Tell, method: str) -> None:
        self.tell, self.method, self.expected = tell, method, 0
        self.outer, self.done, self.said = watched.get(), 0, perf_counter()

    def __enter__(self) -> "Reporting":
        self.token = watched.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        watched.reset(self.token)

    def __call__(self, kind: str, rows: int) -> None:
        if self.outer:
            self.outer(kind, rows)
        self.done += rows if kind == "forwards" else 2 * rows
        if perf_counter() - self.said > EVERY:
            self.said = perf_counter()
            share = min(1.0, self.done / self.expected) if self.expected else None
            self.tell({"method": self.method, "done": share, "runs": self.done, "waiting": kind == "waiting"})
