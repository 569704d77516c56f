"""WikiBio: how a biography continues, after its first sentences, or given a table of facts.

The paper cites SelfCheckGPT's set of 238 biographies, which are prose. Records of the full WikiBio have a table beside
the text, and say where a fact comes from.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from heta_lens._util.options import check_at_least
from heta_lens._util.text_spans import Span
from heta_lens.data.dataset_files import Record, each, listed_texts, needed, texts
from heta_lens.data.instance import Instance
from heta_lens.data.text_layout import Piece, composed, occurrences, one_line, split_sentences

HUB, ONLY_SPLIT = "potsawee/wiki_bio_gpt3_hallucination", "evaluation"
NOTHING = "<none>"


def instances(records: Iterable[Mapping[str, Any]], *, sentences: int = 1) -> Iterator[Instance]:
    """Instances of either kind of record, recognised by its fields.

    Of prose (``wiki_bio_text``) the first sentences are the prompt, and the model continues it. A table
    (``input_text`` with ``target_text``) is followed by the text up to where it first repeats a row: that is the
    answer, its row the support, the other rows a distractor. Texts that repeat no row verbatim are left out.
    """
    check_at_least("sentences", sentences, 1, whole=True)
    made = each(records, lambda number, record: _instance(f"wikibio-{number:05d}", record, sentences))
    return (instance for instance in made if instance is not None)


def _instance(id: str, record: Mapping[str, Any], sentences: int) -> Instance | None:
    if isinstance(record, Mapping) and "input_text" in record:
        return _of_table(id, record)
    (prose,) = texts(record, ("wiki_bio_text",), id)
    return Instance(id, " ".join(split_sentences(one_line(prose))[:sentences]), None)


def _of_table(id: str, record: Mapping[str, Any]) -> Instance | None:
    (target,) = texts(record, ("target_text",), id)
    (given,) = needed(record, ("input_text",), id)
    (table,) = needed(given, ("table",), f"the input_text of {id}")
    rows = _rows(table, f"the table of {id}")
    # The title repeats the name, and would be a second place that tells it.
    rows = [(header, content) for header, content in rows if content != NOTHING and header != "article_title"]
    target = one_line(target)
    repeated = _first_repeated([content for _, content in rows], target)
    return None if repeated is None else _cut(id, rows, target, repeated)


def _rows(table: Record, what: str) -> list[tuple[str, str]]:
    """Each row's header and content."""
    needed(table, ("column_header", "content"), what)
    headers, contents = (listed_texts(table, name, what) for name in ("column_header", "content"))
    if len(headers) != len(contents):
        raise ValueError(f"{what} has {len(headers)} column_header and {len(contents)} content: give one for each row")
    return [(header, one_line(content)) for header, content in zip(headers, contents, strict=True)]


def _first_repeated(contents: Iterable[str], prose: str) -> Span | None:
    """The first repetition of a row in the text, but not at its start: the prompt must have a beginning."""
    # Every place of the text is looked up among the rows: a search for each row would be quadratic.
    rows, text = {_folded(content) for content in contents if content}, _folded(prose)
    lengths = sorted(set(map(len, rows)), reverse=True)
    ends = {match.start() for match in re.finditer(r"(?!\w)", prose)}
    first: set[str] = set()
    for start in (match.start() for match in re.finditer(r"(?<!\w)", prose)):
        spans = [Span(start, start + length) for length in lengths if start + length in ends]
        repeated = [span for span in spans if text[slice(*span)] in rows and text[slice(*span)] not in first]
        if repeated and start:
            return repeated[0]
        first |= {text[slice(*span)] for span in repeated}
    return None


def _folded(text: str) -> str:
    """Without capitals, and as long as before: `occurrences` ignores case as well."""
    lower = [letter.lower()[0] for letter in text]
    return "".join(folded if len(folded := letter.casefold()) == 1 else letter for letter in lower)


def _cut(id: str, rows: list[tuple[str, str]], prose: str, repeated: Span) -> Instance:
    answer = prose[repeated.start : repeated.stop]
    telling = [bool(occurrences(answer, content)) for _, content in rows]
    lines = [
        piece
        for (header, content), tells in zip(rows, telling, strict=True)
        for piece in (
            Piece(f"{header.replace('_', ' ')}: {content}", "support" if tells else "distractor"),
            Piece("\n"),
        )
    ]
    pieces = [*lines, Piece(prose[: repeated.start].rstrip(), "question")]
    # Texts that are cut where the same row is to be repeated are not independent.
    template = next((header for (header, _), tells in zip(rows, telling, strict=True) if tells), "")
    instance = composed(id, pieces, " " + answer, template=template)
    gold = [where for row in instance.support for where in occurrences(answer, instance.text, row)]
    return replace(instance, gold=tuple(gold))
