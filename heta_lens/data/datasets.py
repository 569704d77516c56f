"""Records of public data sets: from the Hugging Face hub, or from a file of the same format.

A file is read whole or refused, because an evaluation should not depend on which lines were damaged. The error names
the file, the first wrong line and the field, and counts the other wrong lines.
"""

import csv
import re
import sys
from ast import literal_eval
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from heta_lens._util.files import NotJSON, brief, numbered_lines, parse_json, read_text, regular_file
from heta_lens._util.options import check_at_least, check_choice, described, fits
from heta_lens._util.python import extra
from heta_lens._util.text import Span, sentences, visible_span
from heta_lens.data.instance import Instance, spans_of

Record = Mapping[str, Any]
Item = TypeVar("Item")
Made = TypeVar("Made")


class Row(dict[str, Any]):
    """A record of a file, with its place in it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where


def load(
    name: str, split: str = "test", path: str | Path | None = None, *, field: str = "", option: str = "path"
) -> list[Record]:
    """The records of a data set: of the file at ``path``, or else from the Hugging Face hub.

    Args:
        name: its name on the hub.
        split: which split to load from the hub; a file has only one.
        path: a json, jsonl, csv or parquet file.
        field: the key of the records in a json file of one object.
        option: the caller's name of ``path``, for error messages.
    """
    return _from_hub(name, split, option) if path is None else read(path, name, field=field, option=option)


def _from_hub(name: str, split: str, option: str) -> list[Record]:
    load_dataset = extra("datasets", "a data set of the Hugging Face hub").load_dataset

    try:
        return list(load_dataset(name, split=split))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise OSError(
            f"the {split} split of {name} could not be had from the Hugging Face hub ({reason}): "
            f"give {option}= a json, jsonl, csv or parquet file of its records"
        ) from error


def read(path: str | Path, name: str = "the data set", *, field: str = "", option: str = "path") -> list[Record]:
    """The records of a file, by its extension."""
    path = Path(path).expanduser()
    readers = {".json": _json, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{option}={str(path)!r} must end in one of {', '.join(readers)}, to be read as {name}")
    regular_file(path, f"{option}={str(path)!r} is not a file: give one with the records of {name}")
    records = readers[path.suffix](path, field)
    if not records:
        raise ValueError(f"{path} holds no records of {name}")
    return records


def _json(path: Path, field: str) -> list[Record]:
    """A list of records, an object that holds one, or (as the hub has them) lines with a record each."""
    text = read_text(path)
    try:
        value = parse_json(text)
    except NotJSON as error:
        if error.reason == "Extra data":
            return _of_lines(path, text)
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"{path}, line {line}, is not valid JSON: {error}") from None
    except ValueError as error:
        if len(lines := [*numbered_lines(text)]) > 1 and _is_json(lines[0][1]):
            return _of_lines(path, text)
        raise ValueError(f"{path}: {error}") from None
    if isinstance(value, Mapping):
        value = value.get(field, [value])
    if not isinstance(value, list):
        raise ValueError(f"{path} holds no list of records")
    return [_row(record, f"{path}: record {number}") for number, record in enumerate(value)]


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _row(record: Any, where: str) -> Row:
    if not isinstance(record, Mapping):
        raise ValueError(f"{where} is not an object but {brief(record)}")
    return Row(record, where)


def _jsonl(path: Path, _: str) -> list[Record]:
    return _of_lines(path, read_text(path))


def _of_lines(path: Path, text: str) -> list[Record]:
    def row(_: int, numbered: tuple[int, str]) -> Row:
        number, line = numbered
        where = f"{path}, line {number}"
        try:
            return _row(parse_json(line), where)
        except NotJSON as error:
            raise ValueError(f"{where}, is not valid JSON: {error}") from None

    return [*each([*numbered_lines(text)], row, lambda numbered: f"{path}, line {numbered[0]}")]


def _csv(path: Path, _: str) -> list[Record]:
    # Not by pandas, which reads an answer such as "None" as missing.
    text = read_text(path)
    with _fields_of_any_length():
        rows = csv.reader(StringIO(text, newline=""), strict=True)
        try:
            return [*_csv_rows(path, rows)]
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}, is not valid CSV: {error}") from None


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the limit of 131,072 characters, which is global and so restored."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_rows(path: Path, rows: Any) -> Iterator[Row]:
    columns = next(rows, [])
    line = rows.line_num
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise ValueError(f"{path}, line 1: the column {brief(repeated)} is there twice")
    for row in rows:
        line, first = rows.line_num, line + 1
        if row and len(row) != len(columns):
            raise ValueError(f"{path}, line {first}, has {len(row)} fields, and line 1 names {len(columns)} columns")
        if row:
            yield Row(dict(zip(columns, row, strict=True)), f"{path}, line {first}")


def _parquet(path: Path, _: str) -> list[Record]:
    import pyarrow.parquet  # comes with datasets

    try:
        # Not `read_table`, which adds columns by the names of folders.
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read()
        names = table.column_names
        records = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a readable Parquet file: {reason[:200]}") from None
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{path}: the column {brief(repeated)} is there twice")
    return [Row(record, f"{path}: record {number}") for number, record in enumerate(records)]


# ------------------------------------------------------------------------------------------------------------ parsing
def each(
    items: Iterable[Item],
    make: Callable[[int, Item], Made],
    place: Callable[[Item], str] = lambda item: place_of(item, ""),
) -> Iterator[Made]:
    """What ``make`` gives for each item and its number.

    The first wrong item is refused with its place in the file and the number of others.
    """
    for number, item in enumerate(items):
        try:
            made = make(number, item)
        except (ValueError, TypeError) as error:
            others = _count_wrong(items, number + 1, make) if isinstance(items, Sequence) else 0
            raise _placed(error, place(item), others) from None
        yield made


LONGEST = 600  # characters of an error that may show what is in a file


def _count_wrong(items: Sequence[Item], start: int, make: Callable[[int, Item], Any]) -> int:
    wrong = 0
    for number in range(start, len(items)):
        try:
            make(number, items[number])
        except (ValueError, TypeError):
            wrong += 1
    return wrong


def _placed(error: ValueError | TypeError, where: str, others: int) -> ValueError | TypeError:
    message = str(error) if where in str(error) else f"{where}: {error}"
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]} …"
    more = f" ({others} of those after it are wrong too)" if others else ""
    return (TypeError if isinstance(error, TypeError) else ValueError)(message + more)


def place_of(record: Any, otherwise: str) -> str:
    """The place of a record in its file; ``otherwise``, if it has none."""
    return getattr(record, "where", otherwise)


def needed(record: Record, names: Sequence[str], what: str) -> list[Any]:
    """The values of these fields; one that is missing or null is named."""
    if not isinstance(record, Mapping):
        raise TypeError(f"{what} is {brief(record)}, and must be an object with {', '.join(names)}")
    if missing := [name for name in names if record.get(name) is None]:
        has = brief(", ".join(map(str, record)))[1:-1] or "nothing"
        raise ValueError(f"{what} has no {', '.join(missing)}: it has {has}")
    return [record[name] for name in names]


def texts(record: Record, names: Sequence[str], what: str) -> list[str]:
    """The values of these fields, which must be text."""
    return [_text(value, name, what) for name, value in zip(names, needed(record, names, what), strict=True)]


def text_or_nothing(record: Record, name: str, what: str) -> str:
    """The text of a field that may be missing or null."""
    value = record.get(name)
    return "" if value is None else _text(value, name, what)


def listed_texts(record: Record, name: str, what: str) -> list[str]:
    """The texts in a field's list; none, where it is missing or null."""
    values = record.get(name)
    if not isinstance(values, list | tuple | None):
        raise TypeError(f"{what}: its {name} is {brief(values)}, and must be a list of text")
    return [_text(value, f"{name}[{at}]", what) for at, value in enumerate(values or ())]


def _text(value: Any, name: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: its {name} is {brief(value)}, and must be text")
    return value


# --------------------------------------------------------------------------------------------------------- text layout
# Texts made of named pieces, with the spans of each name; and their words and sentences.


WORD = re.compile(r"\w+(?:['’\-]\w+)*")
ABBREVIATIONS = "Mr Mrs Ms Dr St Jr Sr Prof Rev Col Capt Gen Lt Sgt vs etc [A-Z]".split()  # noqa: SIM905
NOT_ABBREVIATED = "".join(rf"(?<!\b{abbreviation}\.)" for abbreviation in ABBREVIATIONS)
PROSE_END = re.compile(rf"(?<=[.!?]){NOT_ABBREVIATED}[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])")


class Piece(NamedTuple):
    text: str
    name: str = ""
    """Such as ``support``; empty for what stands between."""


def laid_out(pieces: Iterable[Piece]) -> tuple[str, dict[str, tuple[Span, ...]]]:
    """The text, and the spans of each name, without the white space at their ends."""
    pieces, start, spans = list(pieces), 0, {}
    for piece in pieces:
        span = visible_span(piece.text, Span(0, len(piece.text)))
        if piece.name and span.start < span.stop:
            spans.setdefault(piece.name, []).append(Span(start + span.start, start + span.stop))
        start += len(piece.text)
    return "".join(piece.text for piece in pieces), {name: tuple(of_name) for name, of_name in spans.items()}


def composed(id: str, pieces: Iterable[Piece], answer: str | None, **known: Any) -> Instance:
    """An instance whose text is made of pieces, with the names of its spans."""
    text, spans = laid_out(pieces)
    return Instance(id, text, answer, **{**spans, **known})


def words_within(text: str, spans: Iterable[Span]) -> list[Span]:
    """The words that lie whole in these spans."""
    whole = [Span(*match.span()) for match in WORD.finditer(text)]
    inside = sorted(spans)
    starts, reached = [start for start, _ in inside], [0, *accumulate((stop for _, stop in inside), max)]
    return [word for word in whole if word.stop <= reached[bisect_right(starts, word.start)]]


def occurrences(phrase: str, text: str, span: Span | None = None) -> list[Span]:
    """The spans of a phrase in the text (or in this span of it) as whole words, whatever their case."""
    start, stop = span or (0, len(text))
    wanted = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)", re.IGNORECASE)
    return [Span(*match.span()) for match in wanted.finditer(text, start, stop)]


def one_line(text: str) -> str:
    """The text with single blanks for all its white space."""
    return " ".join(text.split())


def split_sentences(text: str) -> list[str]:
    """Split at full stops, question and exclamation marks before a capital, but not after an initial or a title."""
    return [text[start:stop].strip() for start, stop in sentences(text, PROSE_END)]


# -------------------------------------------------------------------------------------------------------------- longra
# LongRA: a word that must agree with one long before it, with a remark in brackets between the two.


TEXTS, SPANS = ("text", "target", "category"), ("antecedent_span", "distractor_span")
FIELDS = (*TEXTS, *SPANS)


def longra_instances(
    records: Iterable[Mapping[str, Any]], *, says: Callable[[str], str] | None = None
) -> Iterator[Instance]:
    """From records with ``text``, ``target``, ``category`` and the spans of characters of antecedent and distractor.

    ``says``, a function from a text to the model's continuation, keeps only those that it answers, as in `kept`.
    """
    if says is not None and not callable(says):
        raise TypeError(f"says={says!r} is not a function from a text to the token that follows")
    made = each(records, _longra_instance)
    return made if says is None else kept(made, says)


def _longra_instance(number: int, record: Mapping[str, Any]) -> Instance:
    what = place_of(record, f"record {number} of LongRA")
    text, target, category = texts(record, TEXTS, what)
    antecedent, distractor = (spans_of([span]) for span in needed(record, SPANS, what))
    instance = Instance(
        id=f"longra-{number:03d}",
        text=text,
        answer=" " + target.strip(),
        template=category,
        support=antecedent,
        gold=antecedent,
        distractor=distractor,
    )
    named = record.get("antecedent", instance.words("gold")[0])
    if instance.words("gold") != [named]:
        raise ValueError(f"{instance.id}: antecedent_span says {brief(instance.words('gold')[0])}, not {brief(named)}")
    return instance


def kept(instances: Iterable[Instance], says: Callable[[str], str]) -> Iterator[Instance]:
    """Instances that the model answers both with and without the distractor, as ReAGent keeps them.

    ``says`` gives the text of the model's next token after a prompt. An answer of several tokens is never given, so its
    instance is not kept.
    """
    for instance in instances:
        if instance.answer is None:
            raise ValueError(f"instance {instance.id!r} has no answer to compare with the model's")
        prompts = (instance.text, without(instance.text, instance.distractor))
        if all(says(prompt).strip() == instance.answer.strip() for prompt in prompts):
            yield instance


def without(text: str, spans: Iterable[Span]) -> str:
    """The text without these spans; of the white space around each, only that before it is kept."""
    out: list[Span] = []  # those that overlap are one
    for start, stop in sorted(spans):
        whole = out.pop() if out and start <= out[-1].stop else Span(start, stop)
        out.append(Span(whole.start, max(stop, whole.stop)))
    for start, stop in reversed(out):
        before, after = text[:start], text[stop:]
        if not before or before[-1].isspace():
            after = after.lstrip()
        text = before + after if after else before.rstrip()
    return text


# ----------------------------------------------------------------------------------------------------------- tellmewhy
# TellMeWhy: a story of a few sentences, and why something in it was done.


TELLMEWHY_HUB = "StonyBrookNLP/tellmewhy"
Answer: TypeAlias = Literal["model", "given"]


def tellmewhy_instances(
    records: Iterable[Mapping[str, Any]],
    *,
    answer: Answer = "model",
    cue: str | None = None,
    answerable: bool = False,
) -> Iterator[Instance]:
    """One instance per question, of which there is a record for every annotator.

    Args:
        records: as the hub has them.
        answer: ``"model"`` leaves it to the model, since people answer in their own words, which begin otherwise each
            time; ``"given"`` takes what the first annotator says.
        cue: what the text ends with, such as ``"Answer:"``; None ends it with the question, as ReAGent does.
        answerable: only questions whose answer stands in the story, as most annotators find.
    """
    check_choice("answer", answer, get_args(Answer))
    questions: dict[tuple[str, str], list[Record]] = {}
    for record, key in each(records, _with_key):
        questions.setdefault(key, []).append(record)
    kept = [
        group for group in questions.values() if not answerable or group[0].get("is_ques_answerable") == "Answerable"
    ]
    return each(
        kept,
        lambda number, group: _tellmewhy_instance(number, group, answer, cue),
        lambda group: place_of(group[0], ""),
    )


def _with_key(number: int, record: Record) -> tuple[Record, tuple[str, str]]:
    """A record and its key: the story and the question."""
    what = place_of(record, f"record {number} of TellMeWhy")
    narrative, question = texts(record, ("narrative", "question"), what)
    return record, (narrative, question)


def _tellmewhy_instance(number: int, group: Sequence[Record], answer: Answer, cue: str | None) -> Instance:
    first = group[0]
    meta = (
        text_or_nothing(first, "question_meta", place_of(first, f"tellmewhy-{number:05d}")) or f"tellmewhy-{number:05d}"
    )
    asking = Piece(" ".join([first["question"].strip(), *([cue] if cue else [])]), "question")
    given = f" {texts(first, ('answer',), meta)[0].strip()}" if answer == "given" else None
    # Questions about one story share its sentences.
    return composed(meta, [*_story(group, meta), Piece(" "), asking], given, template=meta.split("_sentence_")[0])


def _story(group: Sequence[Record], meta: str) -> list[Piece]:
    """The story in pieces: sentences that helped to answer are support, the others a distractor."""
    narrative = group[0]["narrative"].strip()
    sentences = _listed(group[0], "original_narrative_form", str, meta)
    helpful = _helpful(group, len(sentences), meta)
    pieces, done = [], 0
    for at, sentence in enumerate(sentences):
        start = narrative.find(sentence.strip(), done)
        if start < 0 or not helpful:
            return [Piece(narrative)]  # which sentence is which is not known
        stop = start + len(sentence.strip())
        name = "support" if at in helpful else "distractor"
        pieces += [Piece(narrative[done:start]), Piece(narrative[start:stop], name)]
        done = stop
    return [*pieces, Piece(narrative[done:])]


def _helpful(group: Sequence[Record], count: int, meta: str) -> set[int]:
    """The sentences, counted from 0, that at least half of the annotators who name any name."""
    votes = [votes for record in group if (votes := set(_listed(record, "helpful_sentences", int, meta)))]
    named = Counter(at for vote in votes for at in vote)
    if count and (outside := [at for at in named if at not in range(count)]):
        raise ValueError(
            f"{meta}: helpful_sentences name {brief(outside[0])}, but its sentences go from 0 to {count - 1}"
        )
    return {at for at, times in named.items() if 2 * times >= len(votes)}


def _listed(record: Record, name: str, kind: type, meta: str) -> list[Any]:
    """A list of text or numbers, which a csv file holds as text."""
    value = record.get(name)
    if not value:
        return []
    try:
        items = literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        items = None
    if not isinstance(items, list | tuple):
        raise ValueError(f"{meta}: {brief(value)} is not a list, as {name} must be")
    for item in items:
        if not fits(item, kind):
            raise TypeError(f"{meta}: {name} holds {brief(item)}, and must be a list of {described(kind)}")
    return [*items]


# ------------------------------------------------------------------------------------------------------------- wikibio
# WikiBio: how a biography continues, after its first sentences, or given a table of facts.
#
# The paper cites SelfCheckGPT's set of 238 biographies, which are prose. Records of the full WikiBio have a table
# beside
# the text, and say where a fact comes from.


WIKIBIO_HUB, ONLY_SPLIT = "potsawee/wiki_bio_gpt3_hallucination", "evaluation"
NOTHING = "<none>"


def wikibio_instances(records: Iterable[Mapping[str, Any]], *, sentences: int = 1) -> Iterator[Instance]:
    """Instances of either kind of record, recognised by its fields.

    Of prose (``wiki_bio_text``) the first sentences are the prompt, and the model continues it. A table
    (``input_text`` with ``target_text``) is followed by the text up to where it first repeats a row: that is the
    answer, its row the support, the other rows a distractor. Texts that repeat no row verbatim are left out.
    """
    check_at_least("sentences", sentences, 1, whole=True)
    made = each(records, lambda number, record: _wikibio_instance(f"wikibio-{number:05d}", record, sentences))
    return (instance for instance in made if instance is not None)


def _wikibio_instance(id: str, record: Mapping[str, Any], sentences: int) -> Instance | None:
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
