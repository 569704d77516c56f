"""What of a question the configuration and the tokenizer alone can refuse, before any weights are read."""

from typing import TYPE_CHECKING, Any

from heta_lens.cli.prompt_arguments import Prompt
from heta_lens.cli.question_arguments import Question

if TYPE_CHECKING:
    from heta_lens.model.loading import WithoutWeights


def check_before_loading(model: str, prompt: Prompt, question: Question, **loading: Any) -> None:
    """Refuse a text that is too long, a place outside of it, and a target that is not one token.

    Models that load at once are not looked at, nor are GGUF files, whose weights are read in no more time than their
    tokenizer. Neither are chats, and files that cannot be read here: loading the model
    says what is wrong with them.
    """
    if model == "demo" or "gguf_file" in loading or model.endswith(".gguf") or not isinstance(prompt, str):
        return
    from heta_lens.model.loading import load_without_weights
    from heta_lens.model.prompt_encoding import check_text

    check_text(prompt)
    hub = {name: loading[name] for name in ("revision", "trust_remote_code") if name in loading}
    try:
        known = load_without_weights(model, **hub)
    except ValueError:
        return
    ids = known.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    _check_length(known, len(ids))
    _check_places(question, len(ids) + _added(known.tokenizer, prompt, len(ids)))
    _check_target(known, question.target, ids)


def _added(tokenizer: Any, prompt: str, count: int) -> int:
    """How many tokens there may be beside the text's own: those that the tokenizer adds, or one that begins it."""
    return max(1, len(tokenizer(prompt)["input_ids"]) - count)


def _check_length(known: "WithoutWeights", count: int) -> None:
    longest = getattr(known.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and count > longest:
        raise ValueError(f"the text is {count} tokens long, and this model reads {longest} at most")


def _check_places(question: Question, most: int) -> None:
    """Refuse places outside of the prompt and what is written after it, which have at most so many tokens."""
    most += question.generate or 0
    span = () if question.span is None else (question.span.start, question.span.stop)
    places = {"--position": (question.position,), "--span": span, "--through": question.through or ()}
    for flag, given in places.items():
        for place in given:
            if place is not None and not -most <= place <= most:
                raise ValueError(f"{flag} {place} is outside of the text, which has at most {most} tokens")


def _check_target(known: "WithoutWeights", target: Any, ids: list[int]) -> None:
    """Refuse texts that are not a single token, and ids that no token has."""
    from heta_lens._util.options import check_token
    from heta_lens.model.tokenizer import TokenizerWrapper

    tokenizer = TokenizerWrapper(known.tokenizer)
    size = known.config.get_text_config().vocab_size
    for side in target if isinstance(target, tuple) else (target,):
        for token in side if isinstance(side, set) else (side,):
            if isinstance(token, str) and not tokenizer.is_single(token):  # to look for it takes seconds
                tokenizer.find(token, ids, [0.0] * len(known.tokenizer))
            elif isinstance(token, int):
                check_token("target", token, size)
