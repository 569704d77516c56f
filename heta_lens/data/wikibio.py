"""WikiBio: how a biography goes on, after its first sentences, or given a table of facts.

The paper cites SelfCheckGPT's set of 238 biographies, which are prose. Records of the full WikiBio have a table beside
the text, and say where a fact comes from.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from heta_lens.data.instance import Instance
from heta_lens.data.layout import Piece, composed, occurrences, one_line, split_sentences
from heta_lens.data.records import Record, each, listed_texts, needed, texts
from heta_lens.options import check_at_least
from heta_lens.text import Span

HUB, ONLY_SPLIT = "potsawee/wiki_bio_gpt3_hallucination", "evaluation"
NOTHING = "<none>"


def instances(records: Iterable[Mapping[str, Any]], *, sentences: int = 1) -> Iterator[Instance]:
    """From either kind of record, by its fields.

    Of prose (``wiki_bio_text``) the first sentences are the prompt, and the model says how it goes on. A table
    (``input_text`` with ``target_text``) is followed by the text as far as where it first says what a row holds: that
    is the answer, its row the support, the other rows a distractor. Texts that say no row word for word are left out.
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
    (told,) = texts(record, ("target_text",), id)
    (given,) = needed(record, ("input_text",), id)
    (table,) = needed(given, ("table",), f"the input_text of {id}")
    rows = _rows(table, f"the table of {id}")
    # The title repeats the name, and would be a second place that tells it.
    rows = [(header, content) for header, content in rows if content != NOTHING and header != "article_title"]
    told = one_line(told)
    said = _first_said([content for _, content in rows], told)
    return None if said is None else _cut(id, rows, told, said)


def _rows(table: Record, what: str) -> list[tuple[str, str]]:
    """Each row's header and content."""
    needed(table, ("column_header", "content"), what)
    headers, contents = (listed_texts(table, name, what) for name in ("column_header", "content"))
    if len(headers) != len(contents):
        raise ValueError(f"{what} has {len(headers)} column_header and {len(contents)} content: give one for each row")
    return [(header, one_line(content)) for header, content in zip(headers, contents, strict=True)]


def _first_said(contents: Iterable[str], told: str) -> Span | None:
    """Where the text first says what a row holds, but not in its first word: something must be there to go on from."""
    # Every place of the text is looked up among the rows: a search for each row would be quadratic.
    rows, text = {_folded(content) for content in contents if content}, _folded(told)
    lengths = sorted(set(map(len, rows)), reverse=True)
    ends = {match.start() for match in re.finditer(r"(?!\w)", told)}
    first: set[str] = set()
    for start in (match.start() for match in re.finditer(r"(?<!\w)", told)):
        spans = [Span(start, start + length) for length in lengths if start + length in ends]
        said = [span for span in spans if text[slice(*span)] in rows and text[slice(*span)] not in first]
        if said and start:
            return said[0]
        first |= {text[slice(*span)] for span in said}
    return None


def _folded(text: str) -> str:
    """Without capitals, and as long as before: `occurrences` does not tell capitals apart either."""
    lower = [one.lower()[0] for one in text]
    return "".join(folded if len(folded := one.casefold()) == 1 else one for one in lower)


def _cut(id: str, rows: list[tuple[str, str]], told: str, said: Span) -> Instance:
    answer = told[said.start : said.stop]
    telling = [bool(occurrences(answer, content)) for _, content in rows]
    lines = [
        piece
        for (header, content), tells in zip(rows, telling, strict=True)
        for piece in (
            Piece(f"{header.replace('_', ' ')}: {content}", "support" if tells else "distractor"),
            Piece("\n"),
        )
    ]
    pieces = [*lines, Piece(told[: said.start].rstrip(), "question")]
    # Texts that are cut where the same is to be said are alike.
    template = next((header for (header, _), tells in zip(rows, telling, strict=True) if tells), "")
    instance = composed(id, pieces, " " + answer, template=template)
    gold = [where for row in instance.support for where in occurrences(answer, instance.text, row)]
    return replace(instance, gold=tuple(gold))
