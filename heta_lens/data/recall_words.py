"""What the recall stories are made of. No word stands in two lists, and every word is one token of the demo model."""


def _split(text: str) -> list[str]:
    return text.split()


NAMES = _split("""
Ada Adam Alba Amir Amy Anna Anton Aria Ben Bella Carl Cleo Clara Dan Dora Elsa Emil Emma Enzo Eva Felix Finn Flora Gus
Hana Henry Hugo Ida Ines Iris Ivan Jack Jane Jonas Julia Kai Karl Lara Lena Leo Lily Lina Luca Lucy Luis Maja Marc
Maria Max Mia Milo Mina Nick Nina Noah Nora Olga Omar Oscar Paul Pia Ravi Rosa Ruth Sam Sara Sofia Theo Tim Tom Vera
Victor Will Yara Zoe
""")

OBJECTS = _split("""
apple ball bell belt bone book bottle bracelet brush button cake camera candle cap card carrot coat coin comb compass
cookie crown cup diary dice doll drum feather flute fork glove hammer hat helmet horn kite key knife ladder lamp lemon
letter lock magnet map marble mask medal mirror mug nail needle orange paddle paper pearl pen pencil phone photo
puppet purse radio ribbon ring rope ruler scarf shell shirt shoe soap sock spoon stamp stone sweater sword ticket
torch towel toy umbrella vase wallet watch whistle wig
""")

PLACES = _split("""
backpack bag barrel basin basket bathtub bin briefcase boat bookcase bowl box bucket cabinet cage carriage cart case
casket chest cooler cradle crib cooker crate cupboard closet drawer dresser envelope fireplace folder freezer fridge
hamper jar kettle locker mailbox oven pan pocket pot pouch rucksack sack safe satchel sink suitcase tank tent tin tray
trolley trunk tub van wagon wardrobe
""")

ROOMS = _split("""
attic bakery ballroom barn basement bathroom bedroom cabin cafe cave cellar chapel church classroom corridor courtyard
factory garage garden greenhouse gym hall hospital kitchen laboratory library lobby lounge market museum nursery
office palace pantry park prison school shed shop stable station studio study temple theater tower warehouse workshop
""")

VERBS = _split("put left placed kept stored dropped")
MOODS = _split("happy sad tired hungry proud calm angry busy bored brave curious quiet shy sleepy glad nervous")
TIMES = _split("morning evening afternoon night day summer winter week")
SKIES = _split("warm cold windy rainy sunny cloudy foggy bright dark stormy")
COLOURS = _split("red blue green yellow black white brown pink golden silver")
ACTIONS = _split("sang danced slept laughed waited smiled rested cooked walked painted worked read")
