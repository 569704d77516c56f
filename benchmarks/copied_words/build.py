"""Build `prompts.jsonl`: short stories whose next word must be copied from earlier in the story.

The answer to "which context tokens made the model predict this one?" is known here before any method is asked: the next
token repeats a word that the story names once or twice, and the model stops expecting it when that word is replaced.

How a prompt is made. A template below is filled with words drawn at random (seeded) from lists by kind; one of its
slots is the answer. Its twin is the same story with every occurrence of the answer replaced by another word of the same
kind, drawn before the model is asked, that the story does not contain. Both have the same token length and differ at
the source positions only.

Selection rule. A filled template is kept exactly when
- the answer is one token, and decoding the context with that token appended adds " " + answer to the decoded context;
- the context has 25 to 80 tokens, the beginning-of-story token included;
- the answer occurs in the text once or twice, each time as that very token, never within the last 7 tokens;
- the model gives the answer p > 0.3, and at most a third of that p in the twin.
The model's probabilities are the only thing about it that is looked at; no attribution takes part. Of the stories kept,
templates take turns, each giving its earliest draw with an answer it has not given yet, passed over when that answer is
used up, until `WANTED` are chosen or none is left. The wording of the templates was settled beforehand by the same
probabilities: stories after which the model hardly ever copies were reworded or left out.

One JSON object per line:
    id, template, kind      the prompt's name, its template, the kind of word copied
    text, ids               the context, and its token ids (beginning-of-story token first)
    target, target_id       the answer with its leading space, and its token id
    source_positions        indices into `ids` of all occurrences of the answer
    distance                tokens from the last occurrence to the place of the answer: len(ids) - source_positions[-1]
    competitors             the other words like it (other names, other things, ...) that the story contains
    p                       the model's probability of the answer
    swapped_word, swapped_id, p_swapped
                            what replaces the answer in the twin, its token id, and the answer's probability there

Run `python benchmarks/copied_words/build.py [--model FOLDER]`, where FOLDER holds the model and its `load.py`.
"""

import argparse
import json
import random
import re
import runpy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".." / "shared" / "models" / "stories3M"
OUTPUT = Path(__file__).with_name("prompts.jsonl")

SEED = 0
DRAWS = 80  # fillings tried per template
WANTED = 150
WORD_LIMIT = 6  # prompts that may share an answer
TOKENS = range(25, 81)
NEAREST = 8  # smallest distance
P_MIN = 0.3
SWAP_RATIO = 1 / 3

WORDS = {
    "girl": "Lily Mia Sue Anna Lucy Emma Sara Amy Jane Sally",
    "boy": "Tim Tom Ben Max Sam Jack Bob Mark Leo Billy",
    "pet": "Spot Fluffy Max Leo Buddy Bob",
    "thing": (
        "ball kite doll car truck book boat drum bell train balloon spoon blanket rope stick shell rock ring key map "
        "crown bike box"
    ),
    "wear": "hat shirt coat dress scarf",
    "animal": (
        "dog cat bird frog rabbit bunny bear fox duck mouse lion cow pig horse sheep goat monkey turtle squirrel bee "
        "butterfly snake"
    ),
    "colour": "red blue green yellow pink purple white black brown",
    "place": "park beach zoo farm forest garden store school river lake castle library cave pond hill market",
    "dish": "cake cookie pizza pie sandwich salad",
    "treat": "cake cookie pizza banana carrot sandwich pie lemon peach salad",
    "food": "soup bread milk juice honey cheese candy rice corn pasta popcorn",
}
KINDS = {kind: words.split() for kind, words in WORDS.items()}
GROUPS = (("girl", "boy", "pet"), ("thing", "wear"), ("animal",), ("colour",), ("place",), ("dish", "treat", "food"))

PAUSES = (
    "",
    " It was a warm and sunny day.",
    " The sun was high in the sky.",
    " The trees were tall and the grass was soft.",
    " The wind was soft and the air was sweet.",
    " It was a very nice day and everyone was happy.",
    " A cloud came and it began to rain, but soon the rain stopped and the sun came out again.",
)

STORIES = """
wind: thing1
Once upon a time, there was a little girl named {girl1}. She had a {thing1} and a {thing2}.{pause} One day, a big wind
came and took the {thing1} away. {girl1} was very sad. Her mom said, "Do not cry. We will find your

goodbye: boy1
One day, {girl1} went out to play. She saw a boy who was all alone. His name was {boy1}.{pause} They played together
and became good friends. When it was time to go home, she waved her hand and said, "Goodbye,

coin: girl1
{boy1} and {girl1} were playing in the yard.{pause} {boy1} dug in the mud and found a shiny coin. He was very happy.
He ran to show the coin to

sharing: boy1
{girl1} had a big bag of nuts. Her friend {boy1} had no nuts and felt sad.{pause} She wanted to be kind, so she opened
the bag and gave some nuts to

hurt: animal2
Once there was a {animal1} who lived under a big tree. One day, he met a {animal2} who had a hurt leg. The {animal1}
brought some water and was very kind.{pause} "Thank you for your help," said the

race: animal1
A {animal1} and a {animal2} wanted to have a race.{pause} The {animal2} ran very fast, but then he got tired and took
a nap. The {animal1} did not stop. When the {animal2} woke up, he was too late. "You won the race!" he said to the

boxes: colour1
{girl1} has two boxes. One box is {colour1} and one box is {colour2}. She likes the {colour1} box more.{pause} Her mom
asks, "Which box do you want to open first?" {girl1} says, "I want to open the

crayon: colour1
{boy1} liked to draw with his {colour1} crayon. His sister liked her {colour2} crayon.{pause} One day, {boy1} wanted
to draw a big house, but he could not find his

trip: place1
{girl1} and {boy1} wanted to go to the {place1}. They did not want to go to the {place2}.{pause} Their mom smiled and
said, "Get your bags, kids. Today we will go to the

hungry: food1
{boy1} was very hungry. His mom made some {food1} and his dad made some {food2}.{pause} {boy1} sat down at the table.
"What do you want to eat first?" his mom asked. {boy1} said, "I want to eat the

shop: thing1
{girl1} wanted to buy a {thing1} for her friend. She went to a shop with her dad.{pause} She saw a {thing2} and a lot
of other things. The man asked, "What do you want?" {girl1} said, "I want to buy a

birthday: thing1
It was {boy1}'s birthday. His grandma gave him a {thing1} and his grandpa gave him a {thing2}.{pause} He wanted to
play with the {thing1} first. He hugged his grandma and said, "Thank you for the

hiding: boy2
{girl1}, {boy1} and {boy2} played hide and seek. {girl1} counted to ten and looked for them. She found {boy1} behind
the door.{pause} Now she had to find the other boy. She looked under the bed and said, "I see you,

runaway: pet1
{girl1} had a dog named {pet1}. Her friend had a dog named {pet2}. One day, {pet1} saw a bug and ran away.{pause}
{girl1} was scared and wanted to find her dog. She looked all around and called, "Where are you,

broken: thing1
{boy1} and {boy2} were out in the yard.{pause} They had a fight over a {thing1}. It fell down and broke. They cried
and ran to their dad. The dad put his {thing2} away and said, "Do not worry, boys. I can fix the

picnic: treat1
The family had a picnic. {girl1} had a {treat1} and {boy1} had a {treat2}.{pause} A big bird came down and sat next to
{girl1}. She was not scared. She wanted to feed the bird, so she gave it a piece of her

farm: animal1
A farmer had a {animal1}, a {animal2} and a {animal3}.{pause} One night, the {animal1} ran away. The farmer was sad.
He took a lamp and went out in the dark. He called and called, but he could not find the

hats: colour1
{girl1} has a {colour1} hat and {boy1} has a {colour2} hat. They put the hats in a big bag and go out.{pause} When
they come home, their mom opens the bag. "{girl1}, what color is your hat?" she asks. {girl1} says, "My hat is

forgotten: wear1
{girl1} had a new {wear1}. She wore it to school. Her friend {girl2} had a new {wear2} too.{pause} When {girl1} came
home, her mom looked at her and asked, "{girl1}, where is your new

wish: thing1
{girl1} wanted a {thing1} and her brother wanted a {thing2}. They told a fairy about their wish.{pause} The fairy
smiled and waved her hand. There was a bright light. {girl1} looked down and saw her new

wait: girl2
{girl1} and her sister {girl2} walked to the shop with their mom.{pause} {girl1} walked very fast, but her sister was
slow and tired. {girl1} stopped, turned around and said, "Hurry up,

turns: thing1
{boy1} had a {thing1} and {girl1} had a {thing2}.{pause} {girl1} wanted to trade, but {boy1} loved his {thing1} too
much. {girl1} was angry. She said, "You are not nice. You can keep your

hole: animal1
{boy1} and {girl1} heard a cry. A {animal1} was in a deep hole, and a {animal2} stood next to the hole.{pause} {boy1}
got a ladder and went down. He came back up and said, "Do not be afraid, little

sorry: girl1
{boy1} took a toy from {girl1} and made her cry. Her friend {girl2} told the teacher.{pause} The teacher said that it
was not nice to take things. {boy1} felt bad. He gave the toy back to

bake: dish1
{girl1} and her grandma wanted to make a {dish1}. They did not have time to make a {dish2}.{pause} They mixed
everything in a big bowl. Soon it was ready. "Look, Mom!" said {girl1}. "We made a

lost: place1
{boy1} lived near a {place1}. One day, he walked too far and got lost. He came to a {place2} he did not know.{pause} A
kind old man asked, "Where do you live?" {boy1} said, "I live near the

looking: thing1
{boy1} had a {thing1} and a {thing2}. One morning, he could not see his {thing1}. He looked for it in his room and
found his {thing2}. {boy1} asked his mom, "Mom, do you know where my

asking: thing1
{girl1} was at the park with her mom. {boy1} came and showed her his {thing2}.{pause} Then he pointed at her and
asked, "Can I play with your {thing1}?" {girl1} smiled and said, "Yes, you can play with my

visit: place1
"Do you want to go to the {place2} or to the {place1}?" asked Dad. {boy1} and {girl1} said, "We want to go to the
{place1}!"{pause} They got in the car and sang songs. Soon they were at the

guess: animal1
{boy1} drew a {animal1} and {girl1} drew a {animal2}. They showed the pictures to their mom.{pause} Mom looked at them
and smiled. "{boy1}, this is very good," she said. "I like your

letter: girl2
{girl1} missed her friend {girl2}. She asked her sister {girl3} for some paper and a pen.{pause} She sat down and
wrote a letter. It said, "I miss you. Please come and play with me. Your friend is {girl1}." She put it in a box and
sent it to

kitchen: treat1
{boy1} took a {treat1} from the table when no one was looking. He left the {treat2} for his sister.{pause} Mom came in
and was angry. "{boy1}," she said, "did you eat the

feeding: food1
{girl1} found a little bird in the yard. She gave it some {food2}, but it did not eat. Then she gave it some {food1}
and it ate a lot.{pause} "Mom!" said {girl1}. "The bird likes to eat

spill: food1
{girl1} wanted {food1} and {boy1} wanted {food2}. Mom gave them two bowls.{pause} But {girl1} did not look where she
was going and fell down. "Oh no!" she cried. "I spilled my

neighbor: pet1
{boy1} had a new puppy. He named it {pet1}. {girl1} had a kitten named {pet2}.{pause} The puppy ran to the door and
wagged its tail. {boy1} laughed and said, "Good boy,

hill: place1
The bus stopped at the {place1}. {girl1} and {boy1} got out.{pause} They played all day and did not want to go to the
{place2}. At night, {girl1} told her mom, "We had so much fun at the

dark: animal1
{girl1} heard a noise in the dark. She thought it was a {animal2}, but it was only a {animal1}. She was not scared any
more. She opened the door and gave some water to the

prize: girl1
{girl1} and {girl2} sang a song at school. {girl2} sang well, but {girl1} sang the best.{pause} The teacher clapped
her hands. "I have a prize for one of you," she said. She gave the prize to

petting: animal1
{boy1} and {girl1} saw a {animal1} and a {animal2} in the yard. The {animal2} ran away, but the {animal1} did not
move. {girl1} wanted to pet the

lending: thing2
"May I use your {thing1}?" {boy1} asked. "No," said {girl1}. "I need it now, but you can use my {thing2}." {boy1} was
angry. He did not want the

picking: colour1
{boy1} had a {colour2} car and a {colour1} car. He let his friend {girl1} pick one. She liked the {colour1} car more.
{boy1} said, "You can have the

walk: place1
{boy1} and his dog walked past the {place2}. They saw a man with a big bag of apples. Then they came to the {place1}.
There was no one at the
"""


@dataclass(frozen=True)
class Template:
    """A story up to the word before the answer; `{thing1}` is a slot for a thing, `{pause}` for an idle sentence."""

    name: str
    answer: str
    story: str

    @property
    def kind(self) -> str:
        return kind_of(self.answer)

    @property
    def slots(self) -> list[str]:
        return list(dict.fromkeys(re.findall(r"{(\w+\d)}", self.story)))


def parse(stories: str) -> Iterator[Template]:
    """Read the stories: each a line "name: slot of the answer", then its text, wrapped; a blank line in between."""
    for block in stories.strip().split("\n\n"):
        head, text = block.split("\n", 1)
        name, answer = head.split(": ")
        yield Template(name, answer, " ".join(text.split()))


TEMPLATES = tuple(parse(STORIES))


@dataclass(frozen=True)
class Candidate:
    """A filled template and its twin."""

    template: Template
    text: str
    answer: str
    swapped: str
    competitors: list[str]
    ids: list[int]
    answer_id: int
    swapped_id: int

    @property
    def sources(self) -> list[int]:
        return [i for i, token in enumerate(self.ids) if token == self.answer_id]

    @property
    def twin(self) -> list[int]:
        return [self.swapped_id if token == self.answer_id else token for token in self.ids]

    @property
    def distance(self) -> int:
        return len(self.ids) - self.sources[-1]


@dataclass(frozen=True)
class Scored:
    """A candidate with the answer's probability after the story and after its twin."""

    candidate: Candidate
    p: float
    p_swapped: float


def kind_of(slot: str) -> str:
    return slot.rstrip("0123456789")


def rivals(kind: str) -> list[str]:
    """The words that a word of this kind competes with: for a name every name, for food all food, and so on."""
    group = next(group for group in GROUPS if kind in group)
    return list(dict.fromkeys(word for member in group for word in KINDS[member]))


def fill(template: Template, rng: random.Random) -> dict[str, str]:
    """Draw a different word for every slot, the pause, and the word (`swap`) that replaces the answer in the twin."""
    words: dict[str, str] = {}
    for slot in [*template.slots, "swap"]:
        kind = template.kind if slot == "swap" else kind_of(slot)
        words[slot] = rng.choice([word for word in KINDS[kind] if word not in words.values()])
    return words | {"pause": rng.choice(PAUSES)}


def next_id(tokenizer: Any, ids: list[int], word: str) -> int | None:
    """The id of the single token that continues the context with " " + word, if there is one."""
    token = tokenizer.encode(f"a {word}", add_special_tokens=False)[-1]
    return token if tokenizer.decode([*ids, token]) == f"{tokenizer.decode(ids)} {word}" else None


def draw(template: Template, tokenizer: Any, rng: random.Random) -> Candidate | None:
    """Fill the template once; None when the answer or its replacement is not one token."""
    words = fill(template, rng)
    text, answer, swapped = template.story.format(**words), words[template.answer], words["swap"]
    ids = tokenizer.encode(text)
    answer_id, swapped_id = next_id(tokenizer, ids, answer), next_id(tokenizer, ids, swapped)
    if answer_id is None or swapped_id is None:
        return None
    competitors = [word for word in rivals(template.kind) if word != answer and mentions(text, word)]
    return Candidate(template, text, answer, swapped, competitors, ids, answer_id, swapped_id)


def mentions(text: str, word: str) -> int:
    """How often the text has the word, in any case, plurals included."""
    return len(re.findall(rf"\b{word}(e?s)?\b", text, re.IGNORECASE))


def well_formed(candidate: Candidate, tokenizer: Any) -> bool:
    """The rules that need no model: length, occurrences, distance, and a twin that is the tokenized swapped story."""
    twin_text = re.sub(rf"\b{candidate.answer}\b", candidate.swapped, candidate.text)
    return (
        len(candidate.ids) in TOKENS
        and mentions(candidate.text, candidate.answer) == len(candidate.sources)
        and len(candidate.sources) in (1, 2)
        and candidate.distance >= NEAREST
        and not mentions(candidate.text, candidate.swapped)
        and tokenizer.encode(twin_text) == candidate.twin
    )


@torch.no_grad()
def probability(model: Any, ids: list[int], token: int) -> float:
    logits = model(torch.tensor([ids])).logits[0, -1]
    return logits.double().softmax(-1)[token].item()


def score(candidates: Iterable[Candidate], model: Any) -> Iterator[Scored]:
    for candidate in candidates:
        p, p_swapped = (probability(model, ids, candidate.answer_id) for ids in (candidate.ids, candidate.twin))
        yield Scored(candidate, p, p_swapped)


def eligible(scored: Scored) -> bool:
    return scored.p > P_MIN and scored.p_swapped <= SWAP_RATIO * scored.p


def candidates_of(template: Template, tokenizer: Any) -> list[Candidate]:
    rng = random.Random(f"{SEED} {template.name}")
    drawn = (draw(template, tokenizer, rng) for _ in range(DRAWS))
    return [candidate for candidate in drawn if candidate is not None and well_formed(candidate, tokenizer)]


def first_of_each_answer(kept: Iterable[Scored]) -> list[Scored]:
    first: dict[str, Scored] = {}
    for scored in kept:
        first.setdefault(scored.candidate.answer, scored)
    return list(first.values())


def choose(by_template: Iterable[list[Scored]]) -> list[Scored]:
    """Templates take turns; a story whose answer is used up is passed over."""
    chosen: list[Scored] = []
    used: Counter[str] = Counter()
    for turn in zip_longest(*by_template):
        for scored in turn:
            if scored is None or used[scored.candidate.answer] == WORD_LIMIT or len(chosen) == WANTED:
                continue
            used[scored.candidate.answer] += 1
            chosen.append(scored)
    return sorted(chosen, key=lambda scored: TEMPLATES.index(scored.candidate.template))


def record(scored: Scored, number: int) -> dict[str, Any]:
    candidate = scored.candidate
    return {
        "id": f"{candidate.template.name}-{number}",
        "template": candidate.template.name,
        "kind": candidate.template.kind,
        "text": candidate.text,
        "target": f" {candidate.answer}",
        "target_id": candidate.answer_id,
        "ids": candidate.ids,
        "source_positions": candidate.sources,
        "distance": candidate.distance,
        "competitors": candidate.competitors,
        "p": round(scored.p, 6),
        "swapped_word": candidate.swapped,
        "swapped_id": candidate.swapped_id,
        "p_swapped": round(scored.p_swapped, 6),
    }


def records(chosen: Iterable[Scored]) -> list[dict[str, Any]]:
    numbers: Counter[str] = Counter()
    out = []
    for scored in chosen:
        name = scored.candidate.template.name
        numbers[name] += 1
        out.append(record(scored, numbers[name]))
    return out


def summary(rows: list[dict[str, Any]]) -> str:
    def spread(values: list[float]) -> str:
        return f"min {min(values):.4g}, median {median(values):.4g}, max {max(values):.4g}"

    def counts(key: str) -> str:
        return ", ".join(f"{name.strip()} {count}" for name, count in Counter(row[key] for row in rows).most_common())

    return "\n".join(
        [
            f"prompts     {len(rows)}",
            f"tokens      {spread([len(row['ids']) for row in rows])}",
            f"p           {spread([row['p'] for row in rows])}",
            f"p_swapped/p {spread([row['p_swapped'] / row['p'] for row in rows])}",
            f"distance    {spread([row['distance'] for row in rows])}",
            f"once        {sum(len(row['source_positions']) == 1 for row in rows)}",
            f"competitors {sum(bool(row['competitors']) for row in rows)}",
            f"kinds       {counts('kind')}",
            f"templates   {len({row['template'] for row in rows})}: {counts('template')}",
            f"words       {len({row['target'] for row in rows})}: {counts('target')}",
        ]
    )


def build(folder: Path) -> list[dict[str, Any]]:
    loaders = runpy.run_path(str(folder / "load.py"))
    tokenizer, model = loaders["load_tokenizer"](str(folder)), loaders["load_hf"](str(folder))
    by_template = []
    for template in TEMPLATES:
        kept = filter(eligible, score(candidates_of(template, tokenizer), model))
        by_template.append(first_of_each_answer(kept))
    return records(choose(by_template))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build prompts.jsonl from the templates in this file.")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the model and its load.py")
    rows = build(parser.parse_args().model)
    OUTPUT.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sys.stdout.write(f"{summary(rows)}\n")


if __name__ == "__main__":
    main()
