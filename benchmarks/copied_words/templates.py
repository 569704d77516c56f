"""The stories that are filled with words, and the words by kind."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

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


def kind_of(slot: str) -> str:
    return slot.rstrip("0123456789")


def rivals(kind: str) -> list[str]:
    """The words that a word of this kind competes with: for a name every name, for food all food, and so on."""
    group = next(group for group in GROUPS if kind in group)
    return list(dict.fromkeys(word for member in group for word in KINDS[member]))
