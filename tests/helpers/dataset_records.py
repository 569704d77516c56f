"""Records of the public data sets, as tests write them into files."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import SHARED
from heta_lens._util.text import Span
from heta_lens.data.instance import Instance

DATA = SHARED / "data"
shared = pytest.mark.skipif(not DATA.exists(), reason="the public data sets are not beside the repository")
unchecked = pytest.mark.usefixtures("unchecked")
STORY = "Nina put the key in the drawer. Karl left. Where is the key?"
NINA = Instance(
    id="nina",
    text=STORY,
    answer=" drawer",
    template="where",
    support=(Span(0, 31),),
    gold=(Span(24, 30), Span(0, 4)),
    distractor=(Span(32, 42),),
    question=(Span(43, 60),),
    choices=(" drawer", " trunk"),
    counterfactual=Instance(id="nina-counterfactual", text=STORY.replace("drawer", "trunk"), answer=" trunk"),
    paraphrase=Instance(id="nina-passive", text="The key was put in the drawer by Nina.", answer=None),
)


def changed(**fields: Any) -> Instance:
    return replace(NINA, **fields)


def written(path: Path, records: Iterable[Any]) -> Path:
    """A file with a record a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


LONG = "I landed in Norway. (I slept). I stayed in the capital,"
LONGRA = {
    "category": "capital",
    "text": LONG,
    "target": "Oslo",
    "antecedent": "Norway",
    "antecedent_span": [12, 18],
    "distractor_span": [20, 30],
}

CURATED = {
    "id": "heta_qa_7",
    "narrative_id": "narrative_1",
    "sciq_id": "sciq_2",
    "narrative_segment": "A sailor leaves his plant at home.",
    "sciq_support_segment": "Leaves make sugar: the leaves of a plant catch light.",
    "question": "Which part of a plant catches light?",
    "answer": "leaves",
    "input_text": "A sailor leaves his plant at home. <s> Leaves make sugar: the leaves of a plant catch light. <s> "
    "Question: Which part of a plant catches light?",
    "important_words": ["leaves", "plant", "light"],
}


def narrative(summary: str) -> dict[str, Any]:
    return {
        "document": {"id": "d", "summary": {"text": summary, "title": "T"}, "text": "…"},
        "question": {"text": "Who?"},
        "answers": [{"text": "Ann"}],
    }


def science(question: str = "What do plants catch?", answer: str = "light", support: str = "") -> dict[str, Any]:
    return {
        "question": question,
        "correct_answer": answer,
        "support": support or "Green plants catch light.\n\n They need  it.",
        **{"distractor1": "rain", "distractor2": "wind", "distractor3": "dust"},
    }


NARRATIVES = [
    narrative("Ann sails to a far island.  She finds a map. Then she leaves."),
    narrative("Ann sails to a far island.  She finds a map. Then she leaves."),
    narrative("He sails to a far island. It is cold there."),
    narrative("Bob reads by the light of a lamp. He is tired."),
    narrative("A heading."),
    narrative(""),
]

SENTENCES = ["Kim was cold.", "She saw a coat.", "She put it on."]
WHY: dict[str, Any] = {
    "narrative": " ".join(SENTENCES),
    "question": "Why did She put it on?",
    "is_ques_answerable": "Answerable",
    "answer": "She was cold.",
    "original_narrative_form": SENTENCES,
    "question_meta": "rocstories_narrative_7_sentence_2_question_0",
    "helpful_sentences": [0],
}

PROSE = {"wiki_bio_text": "J. Doe (born 3 May 1950)\nis a pilot. She flew in Peru. She writes.", "gpt3_text": "…"}
