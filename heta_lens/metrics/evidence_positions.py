"""Which tokens a prompt's known spans are: its evidence, distractors, and question."""

from heta_lens._util.text_spans import Span, tokens_in
from heta_lens.data.instance import Instance
from heta_lens.metrics.candidate_tokens import ordinary
from heta_lens.prediction.prediction import Prediction


def evidence_positions(instance: Instance, prediction: Prediction, name: str) -> list[int]:
    """The tokens of an instance's spans of this name: ``gold``, ``support``, ``distractor`` or ``question``."""
    text, spans = prediction.located
    start = text.find(instance.text)
    if start < 0:
        raise ValueError(
            f"instance {instance.id!r}: the tokenizer does not give its text back, so nothing can be located in it by "
            "its characters"
        )
    shifted = [Span(start + span.start, start + span.stop) for span in getattr(instance, name)]
    inside = {position for span in shifted for position in tokens_in(text, spans, span)}
    return sorted(inside & {*ordinary(prediction)})
