"""Writes tables into RESULTS.md, by model, and one into docs/models.md."""

import torch

from benchmarks.report import markdown
from benchmarks.speed.models import HERE, MODELS
from heta_lens._util.python import versions

RESULTS = HERE / "RESULTS.md"
Table = tuple[str, list[str], list[list[str]]]
TELLING = (
    "the naive implementation and ours",
    "FLOPs by context length",
    "cheaper ways, whole scores",
    "a long context",
    "what memory holds",
)
WAIT_TITLE = "What you wait for"
MODELS_PAGE = HERE.parent / "docs" / "models.md"
MARKS = "<!-- what you wait for -->", "<!-- until here -->"
LEGEND = """\
**naive** is [`reference.py`](reference.py), a naive implementation: the formulas as they stand, every token probed
alone. **ours** is what `Heta()` does: tokens share HVPs in groups, which makes the curvature another estimate of the
same expectation; with `groups=None`, and for the information, it gives the same numbers (*difference* is the largest,
relative to the largest entry, in float32). Not counted, once per prompt: the run that filled the cache, the one that
checks it, and those that keep keys and values. Ratios are of runs that took turns: their median, with the least and the
most (N = 2048: one run, before derivatives had closed forms).

**~** extrapolated: from a few tokens of the naive implementation, which all cost the same; from one probe, where tokens
share HVPs; else from a few neighbouring tokens that begin together, interpolated over positions.

**forwards** are FLOPs that torch counted, in units of one clean run of the prompt with every position unembedded. The
**floor** is worked out from the model's sizes: a product costs two runs of the token's own suffix (of the whole prompt,
where tokens share it), a masked run one, attention is over all keys, as it is computed, and behind the last attention
one position is run. **MiB** are what tensors held at most, beyond the model and the prediction (–: not watched). (A
product with H costs two runs' worth of multiplying by weights, but six runs' worth of attention, which is not linear:
narrow models and long contexts stay further above the floor.)

FLOPs by context length are of our whole score, after the run that filled the cache. The cost of a
product grows with the context, and attention's with its square; how many there are does not depend on the length.

Cheaper ways are whole scores, each timed once, in short contexts. ρ (rank correlation) and L1 (0 to 2, of scores that
sum to 1) are against `groups=None` with the same 10 probes: the error of sharing, not that of chance. "What memory
holds" is written by `python -m benchmarks.long`. gpt2-like and llama-like have random weights and read random tokens.
On a GPU: not measured."""


def keep(table: Table) -> None:
    """Write a table into its file, in place of the one that has its title; rows of other lengths stay."""
    if table[0] == WAIT_TITLE:
        MODELS_PAGE.write_text(rewritten(MODELS_PAGE.read_text(), table))
    else:
        RESULTS.write_text(page(RESULTS.read_text() if RESULTS.exists() else "", table))


def rewritten(text: str, table: Table) -> str:
    before, rest = text.split(MARKS[0])
    stood, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n{markdown(table[1], joined(stood, table))}\n{MARKS[1]}{after}"


def page(before: str, table: Table) -> str:
    """The tables that there were and this one, by model and then by what they tell."""
    title, columns, _ = table
    where = f"{torch.get_num_threads()} threads, float32 on the CPU; " + ", ".join(map(" ".join, versions().items()))
    sections = dict(section.split("\n\n", 1) for section in before.strip().split("\n## ")[1:])
    sections[title] = f"{where}.\n\n{markdown(columns, joined(sections.get(title, ''), table))}"
    order = [*MODELS]
    titles = sorted(sections, key=lambda title: (order.index(title.split(":")[0]), TELLING.index(title.split(": ")[1])))
    parts = [f"## {title}\n\n{sections[title].strip()}" for title in titles]
    return "\n\n".join(["# Speed", f"Written by `python -m benchmarks.speed`.\n\n{LEGEND}", *parts]) + "\n"


def joined(before: str, table: Table) -> list[list[str]]:
    """Its rows and those that stood for other lengths, under the same columns."""
    _, columns, rows = table
    header, _, *stood = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in before.splitlines() if line.startswith("|")
    ] or [[], []]
    lengths = {row[0] for row in rows}
    others = [row for row in stood if row[0] not in lengths] if header == columns else []
    return sorted([*others, *rows], key=lambda row: int(row[0]))
