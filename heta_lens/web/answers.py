"""What the page asks of a model: an answer, explanations of the answer, and predictions after a token is changed."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor

from heta_lens._util.html_view import View
from heta_lens._util.numerics import kl
from heta_lens._util.options import check_token, keywords
from heta_lens._util.target_kinds import Activation
from heta_lens._util.work import watcher
from heta_lens.api import attribute_span
from heta_lens.attribution import Attribution
from heta_lens.causal import Components, components
from heta_lens.causal.changes import likeliest
from heta_lens.methods.registry import method_of
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import lean_names_filter, put_where
from heta_lens.model.lock import holding
from heta_lens.model.tokenizer import check_length
from heta_lens.model.weights import identity
from heta_lens.plots import page
from heta_lens.plots.comparison import compare
from heta_lens.prediction.chat import ChatPrompt, read_prompt
from heta_lens.prediction.generation import continuation
from heta_lens.prediction.masking import mask_vector
from heta_lens.prediction.patching import group_members, logits_with, redrawn
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.spans_and_batches import span_predictions
from heta_lens.prediction.target import log_softmax
from heta_lens.span_attribution import SpanAttribution
from heta_lens.web.requests import Change, Question, target_of

Result: TypeAlias = Attribution | SpanAttribution
Message: TypeAlias = Mapping[str, Any]
Emit: TypeAlias = Callable[[Message], None]

FOUND = 32  # components that are patched
KEPT = 60  # the latest results, which can be saved and compared
SHOWN = 5  # most likely next tokens, before and after a change
FEW_PROBES = 3  # of HETA's first result, which the result from all probes replaces
INTERVAL = 0.2  # seconds between two messages on the progress
PATIENT = 15.0  # seconds: a longer wait is announced, and begins when it is asked for
WARM = 1.0  # seconds of a forward in which the start hardly counts
EXPECTED = (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError, SafetensorError, sqlite3.Error)


def sentence(error: Exception) -> str:
    """Return what a page says about an error."""
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return "the memory is full: take a shorter prompt, or another method"
    return str(error) if isinstance(error, EXPECTED) and str(error) else f"{type(error).__name__}: {error}"


class Tokenized(NamedTuple):
    """The prompt and the answer as ids, or as a chat; the ids; and the length of the prompt."""

    tokens: Any
    ids: Int[Tensor, "1 pos"]
    start: int


@dataclass(eq=False)
class Answers:
    """Answers about one model; the latest results are kept by number, to be saved and compared."""

    model: Any
    results: "OrderedDict[int, tuple[Any, View]]" = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    drawing: Lock = field(default_factory=Lock)  # matplotlib's settings are global

    @property
    def adapter(self) -> ModelAdapter:
        return ModelAdapter(self.model)

    @property
    def model_name(self) -> str:
        """The model's name, with a digest of the weights."""
        facts = identity(self.model)
        return f"{facts['name'] or 'a model'} ({facts['weights']})"

    def write(self, prompt: Any, tokens: int, emit: Emit) -> None:
        """Let the model write an answer, and emit each token."""
        ids, write = self._tokenized(Question(prompt)).ids, self.adapter.tokenizer.write
        context = ids[0].tolist()

        def on_token(token: int) -> None:
            emit({"token": token, "text": write(token, context)})
            context.append(token)

        continuation(self.adapter, ids, tokens, on_token)

    def texts(self, question: Question) -> list[str]:
        """Return the texts of the written tokens."""
        tokenized = self._tokenized(question)
        ids, write = tokenized.ids[0].tolist(), self.adapter.tokenizer.write
        return [write(ids[place], ids[:place]) for place in range(tokenized.start, len(ids))]

    # ----------------------------------------------------------------------------------------------------- explanations
    def explain(self, question: Question, methods: Sequence[str], emit: Emit, patient: Sequence[str] = ()) -> None:
        """Explain a token of the answer, or all tokens, by each method, and emit each result.

        HETA sends a result from few probes, with wide error bars, and then the result from all probes. A method that
        would take long and is not among ``patient`` emits its seconds instead; one that fails emits its error.
        """
        tokenized, cache, pace = self._tokenized(question), None, 0.0  # seconds a forward, of the fastest work so far
        asked: dict[str, Any] = {"targets": target_of(question), "through": None, "tokens": tokenized.tokens}
        one = question.at is not None

        def explain_by(name: str) -> None:
            nonlocal cache, pace
            stages = [{"probes": FEW_PROBES}, {}] if name == "heta" and one else [{}]
            for stage, options in enumerate(stages):
                chosen, *given = name.split()
                begun, method = perf_counter(), method_of(chosen, {"progress": False, **keywords(given), **options})
                with ProgressReporter(emit, name) as progress, holding(self.model):
                    if cache is None:
                        cache, pace = self._cache_and_pace(tokenized)
                    if one:
                        predictions = [self._prediction(question, tokenized, cache, method.rules)]
                    else:
                        predictions = span_predictions(cache, tokenized.start, None, **asked, rules=method.rules)[1]
                    progress.expected = sum(method.work_together(few).worth for few in method.sharing_runs(predictions))
                    if name not in patient and progress.expected * pace > PATIENT:
                        emit({"method": name, "later": progress.expected * pace})
                        return
                    started = perf_counter()
                    span = {**asked, "method": method}
                    result = method(*predictions) if one else attribute_span(cache, tokenized.start, **span)
                    if progress.expected:
                        pace = min(pace, (perf_counter() - started) / progress.expected)
                cost = {"seconds": perf_counter() - begun, "whole": stage == len(stages) - 1}
                emit({"method": name, **cost, **self.keep(result)})

        for name in methods:
            try:
                explain_by(name)
            except EXPECTED as error:
                emit({"method": name, "error": sentence(error)})

    def compare(self, results: Sequence[int]) -> Message:
        """Return the view that compares several results."""
        compared = [self.result(number) for number in results]
        return self.keep(compared[0], compare(compared))

    def keep(self, result: Result | Components, view: View | None = None) -> Message:
        """Keep a result, and return its number and its view, by default its page."""
        view = page(cast(Result, result)) if view is None else view
        number = next(self.numbers)
        self.results[number] = result, view
        while len(self.results) > KEPT:
            self.results.popitem(last=False)
        return {"result": number, "title": view.title, "html": view.fragment, "files": [".html", *view.exports]}

    def result(self, number: int) -> Result:
        if isinstance(result := self.kept(number)[0], Components):
            raise ValueError(f"result {number} has components rather than scores: give an explanation")
        return result

    def kept(self, number: int) -> tuple[Result | Components, View]:
        if number not in self.results:
            raise ValueError("this explanation is no longer kept: explain the token again")
        return self.results[number]

    # ---------------------------------------------------------------------------------------------------------- changes
    def components(self, question: Question, positions: Sequence[int], patient: bool, emit: Emit) -> None:
        """Find the components that carry the tokens to the target; announce a long wait instead if not ``patient``."""
        tokenized, name = self._tokenized(question), "components"
        where: dict[str, Any] = {"position": self._position(question, tokenized), "tokens": tokenized.tokens}
        with ProgressReporter(emit, name) as progress, holding(self.model):
            cache, pace = self._cache_and_pace(tokenized)
            progress.expected = FOUND  # later positions and layers run again, not the whole
            seconds = FOUND * pace
            if seconds > PATIENT and not patient:
                emit({"later": seconds})
                return
            found = components(cache, positions, target_of(question), verify=FOUND, progress=False, **where)
        with self.drawing:
            view = found.plot()
        emit(self.keep(found, view))

    def change(self, question: Question, change: Change) -> Message:
        """Change tokens, and return the prediction before and after, and the scores of the changed tokens."""
        tokenized = self._tokenized(question)
        with holding(self.model):
            before = self._prediction(question, tokenized, self.adapter.cache(tokenized.ids, lean_names_filter))
            if max(change.positions) >= len(before):
                raise ValueError(f"positions must be tokens before the explained one, from 0 to {len(before) - 1}")
            logits, value = self._after(question, tokenized, before, change)
        effect: dict[str, Any] = {"before": float(before.value), "after": value, "drop": float(before.value) - value}
        if not isinstance(before.target, Activation):
            log_probs = log_softmax(logits)
            rows = likeliest(before, log_probs, SHOWN).reset_index(names="text").to_dict("records")
            effect |= {"kl": float(kl(before.log_probs, log_probs)), "tokens": rows}
        scores = [self._score(self.result(number).summed, change) for number in change.results]
        return effect | {"target": before.target_words, "scores": scores}

    @torch.no_grad()
    def _after(
        self, question: Question, tokenized: Tokenized, before: Prediction, change: Change
    ) -> tuple[Float[Tensor, "vocab"], float]:
        """Return the logits (or the activation that is the target) and the target's value after a change."""
        if change.how in ("delete", "replace"):
            after = self._same_target(question, before, self._edited(before, change))
            return after.logits, float(after.value)
        if change.how == "mask":
            layer, other = None, mask_vector(before, "zero").expand_as(before.embeddings)
        elif change.how == "resample":
            layer, other = None, next(redrawn(before, 1, 0))
        else:
            layer = before.adapter.check_layer("layer", change.layer) or None
            other = self._counterfactual(question, tokenized, before, change).states(layer)
        put = put_where(group_members([change.positions], len(before)), other[None])
        with before.running():
            logits = logits_with(before, {before.rerun(layer=layer).site: put}, before.states(layer)[None], layer=layer)
        return logits[0], float(before.objective(logits[0]))

    def _edited(self, before: Prediction, change: Change) -> Int[Tensor, "1 pos"]:
        """Return the context without the tokens, or with the text in place of the first of the tokens."""
        first, text = min(change.positions), change.text
        inserted = list[int]()
        if change.how == "replace":
            if not text:
                raise ValueError("there is no text to insert: write a text, or delete the tokens")
            spaced = before.written[first][:1].isspace() and not text[0].isspace()
            any_token = [0.0] * self.adapter.vocabulary
            inserted = self.adapter.tokenizer.spell(" " * spaced + text, before.ids[:first].tolist(), any_token)
        elif before.begins and 0 in change.positions:
            raise ValueError("the token at 0 begins the text for the model: mask this token rather than delete it")
        edited = list[int]()
        for place, token in enumerate(before.ids.tolist()):
            edited += inserted * (place == first) if place in change.positions else [token]
        if not edited:
            raise ValueError("without these tokens the prompt is empty: keep one")
        return before.ids.new_tensor([edited])

    def _counterfactual(
        self, question: Question, tokenized: Tokenized, before: Prediction, change: Change
    ) -> Prediction:
        """Return the same prediction after the counterfactual prompt, which must have as many tokens."""
        other = self._tokenized(Question(change.counterfactual, question.written))
        length = len(before) + other.start - tokenized.start
        if length != len(before):
            raise ValueError(
                f"the counterfactual prompt has {length} tokens before the explained one, and this prompt "
                f"{len(before)}: write a prompt with {len(before)}"
            )
        return self._same_target(question, before, other.ids[:, : len(before)])

    def _score(self, result: Attribution, change: Change) -> dict[str, float]:
        """Return the score of the changed tokens, and its share of all scores, as in the view."""
        rows = [row for row, place in enumerate(result.positions.tolist()) if place in change.positions]
        score = float(result.scores[rows].sum())
        return {"score": score, "share": abs(score) / (float(result.scores.abs().sum()) or 1)}

    # -------------------------------------------------------------------------------------------------------- the model
    def _tokenized(self, question: Question) -> Tokenized:
        prompt, written = read_prompt(self.model, question.prompt), [*question.written]
        ids = prompt.tokens if isinstance(prompt, ChatPrompt) else prompt
        for token in written:
            check_token("written", token, self.adapter.vocabulary)
        whole = torch.cat([ids, ids.new_tensor([written])], 1) if written else ids
        check_length(self.model, whole.shape[1], "prompt and answer are")
        tokens = prompt.followed_by(written) if isinstance(prompt, ChatPrompt) else whole
        return Tokenized(tokens, whole, ids.shape[1])

    def _prediction(self, question: Question, tokenized: Tokenized, cache: Any, rules: Any = None) -> Prediction:
        where: dict[str, Any] = {"position": self._position(question, tokenized), "tokens": tokenized.tokens}
        return Prediction.from_cache(cache, target_of(question), rules=rules, **where)

    def _cache_and_pace(self, tokenized: Tokenized, *, warm: bool = False) -> tuple[Any, float]:
        """Return a cache, and the seconds that a forward takes: of a short text the second, since the first is slow."""
        started = perf_counter()
        cache = self.adapter.cache(tokenized.ids, lean_names_filter)
        seconds = perf_counter() - started
        return self._cache_and_pace(tokenized, warm=True) if seconds < WARM and not warm else (cache, seconds)

    def _position(self, question: Question, tokenized: Tokenized) -> int | None:
        return None if question.at == len(question.written) else tokenized.start + (question.at or 0)

    def _same_target(self, question: Question, before: Prediction, ids: Int[Tensor, "1 pos"]) -> Prediction:
        """Return the prediction of the same target after other ids."""
        target = target_of(question) if isinstance(before.target, Activation) else before.target
        return Prediction.from_cache(self.adapter.cache(ids, lean_names_filter), target, tokens=ids)


class ProgressReporter:
    """Watches the work inside a block, and sends the share of the ``expected`` work, or the number of runs."""

    def __init__(self, emit: Emit, method: str) -> None:
        self.emit, self.method, self.expected = emit, method, 0
        self.outer, self.done, self.sent_at = watcher.get(), 0, perf_counter()

    def __enter__(self) -> "ProgressReporter":
        self.token = watcher.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        watcher.reset(self.token)

    def __call__(self, kind: str, rows: int) -> None:
        if self.outer:
            self.outer(kind, rows)
        self.done += rows if kind == "forwards" else 2 * rows
        if perf_counter() - self.sent_at > INTERVAL:
            self.sent_at = perf_counter()
            share = min(1.0, self.done / self.expected) if self.expected else None
            self.emit({"method": self.method, "done": share, "runs": self.done, "waiting": kind == "waiting"})
