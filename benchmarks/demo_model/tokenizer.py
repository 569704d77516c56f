"""The demo model's tokenizer: every word of the recall stories is one token."""

from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from heta_lens.data import recall
from heta_lens.data.recall import PUNCTUATION, TRUTH

SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


@cache
def vocabulary() -> dict[str, int]:
    """Every token's id: special ones, punctuation, and words with the blank before them."""
    lists = [value for name, value in vars(recall).items() if name.isupper()]
    shaped = {word for shape in recall.SHAPES for word in shape.split() if not word.startswith("{")}
    words = {word for one in lists for word in one} | shaped - set(PUNCTUATION) | set(TRUTH.values())
    tokens = [*SPECIAL.values(), *PUNCTUATION, *(" " + word for word in sorted(words))]
    return {token: index for index, token in enumerate(tokens)}


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(tokenizer_models.WordLevel(vocabulary(), unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Prepend(" ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+|[^\w\s]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocabulary()["<bos>"])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, model_max_length=1024, **SPECIAL
    )
    fast.save_pretrained(folder)
