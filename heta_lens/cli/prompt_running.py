"""A model reads a prompt, perhaps goes on writing, and what was asked is explained."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from heta_lens.cli.checks_before_loading import check_before_loading
from heta_lens.cli.prompt_arguments import Prompt
from heta_lens.cli.question_arguments import Question, Span

if TYPE_CHECKING:
    from heta_lens import Attribution, Method, SpanAttribution

Explained: TypeAlias = "Attribution | SpanAttribution"


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt as a model read it: the ``cache``, the ``tokens`` (ids, or a chat), and what it wrote after it.

    ``span`` is where the tokens stand that are explained, if they are several.
    """

    cache: Any
    tokens: Any
    span: Span | None = None
    written: str | None = None

    def explained(self, question: Question, method: "Method") -> Explained:
        from heta_lens.api import attribute, attribute_span

        if self.span is None:
            return attribute(self.cache, question.target, position=question.position, tokens=self.tokens, method=method)
        place = self.span.start, self.span.stop
        return attribute_span(self.cache, *place, through=question.through, tokens=self.tokens, method=method)


def read_prompt(model: str, prompt: Prompt, question: Question, **loading: Any) -> ReadPrompt:
    """Load the model, and have it read the prompt; and write, if that is the question."""
    return read_by(loaded_for(model, prompt, question, **loading), prompt, question)


def loaded_for(model: str, prompt: Prompt, question: Question, **loading: Any) -> Any:
    """The model, unless it can be refused before it is loaded that this prompt and question do not fit it."""
    from heta_lens.model.loading import load_model

    check_before_loading(model, prompt, question, **loading)
    return load_model(model, **loading)


def read_by(loaded: Any, prompt: Prompt, question: Question) -> ReadPrompt:
    """The prompt as this model reads it."""
    from heta_lens.model.adapter import ModelAdapter
    from heta_lens.model.hook_sites import lean_names_filter

    tokens, ids = _encoded(loaded, prompt)
    adapter = ModelAdapter(loaded)
    if question.generate is None:
        return ReadPrompt(adapter.cache(ids, lean_names_filter), tokens, question.span)
    added = _written(adapter, ids, question.generate)
    text = "".join(adapter.tokenizer.write(token, [*ids[0].tolist(), *added[:at]]) for at, token in enumerate(added))
    whole = ids.new_tensor([[*ids[0].tolist(), *added]])
    tokens = whole if isinstance(prompt, str) else tokens.followed_by(whole[:, ids.shape[1] :])
    return ReadPrompt(adapter.cache(whole, lean_names_filter), tokens, question.span or Span(ids.shape[1]), text)


def _encoded(loaded: Any, prompt: Prompt) -> tuple[Any, Any]:
    """The tokens as `attribute` takes them, a chat or ids; and the ids."""
    from heta_lens.model.prompt_encoding import encode, refuse_unknown
    from heta_lens.prediction.chat_prompt import chat

    if isinstance(prompt, str):
        ids = encode(loaded, prompt)
        return ids, ids
    tokens = chat(loaded, prompt)
    refuse_unknown(loaded, tokens.text)
    return tokens, tokens.tokens


def _written(adapter: Any, ids: Any, count: int) -> list[int]:
    """The ids that the model writes after these, up to the one that ends a text."""
    from heta_lens.model.hook_sites import lean_names_filter
    from heta_lens.prediction.generation import Writer, greedy
    from heta_lens.prediction.prediction import Prediction

    longest, length = getattr(adapter.model.cfg, "n_ctx", None), ids.shape[1] + count
    if longest is not None and length > longest:
        raise ValueError(
            f"--generate {count} makes {length} tokens of the prompt's {ids.shape[1]}, and this model reads {longest} "
            "at most"
        )
    prediction = Prediction.from_cache(adapter.cache(ids, lean_names_filter), tokens=ids)
    with prediction.running():
        writer = Writer.after(prediction, prediction.prompt.batches("auto", length), _nothing)
        written = greedy(writer, count, adapter.tokenizer.eos).tolist()
    if not written:
        raise ValueError(f"--generate {count}: the model ends the text at once, and writes nothing to explain")
    return written


def _nothing(_: int) -> None:
    """What is done with each token as it is written."""
