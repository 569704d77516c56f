"""Explain one prediction in the terminal, offline.

The model is small and random, so the answer means nothing; everything else is as with a real one. Replace `model` by a
model of your own to get an answer that means something.
"""

import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge
from transformers import PreTrainedTokenizerFast

import heta_lens

PROMPT = "the cat sat on the mat and the dog ran to the red"
SIZES = {"d_model": 32, "d_head": 8, "n_heads": 4, "n_layers": 3, "d_mlp": 64, "n_ctx": 64, "act_fn": "gelu_new"}


def small_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word of the prompt."""
    words = {word: index for index, word in enumerate(dict.fromkeys(PROMPT.split()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def random_model() -> TransformerBridge:
    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    model = TransformerBridge.boot_native({**SIZES, "d_vocab": len(tokenizer)}, tokenizer=tokenizer, device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def main() -> None:
    console = Console(width=100)
    model = random_model()
    tokens = torch.tensor([model.tokenizer.encode(PROMPT)])

    _, cache = model.run_with_cache(tokens, names_filter=heta_lens.names_filter)
    attribution = heta_lens.attribute(cache, tokens=tokens, balance="sum")

    console.print("A small random model, so the answer means nothing; it shows what one looks like.\n", style="yellow")
    console.print(repr(attribution), markup=False, highlight=False)
    console.print(
        "\nPart by part. This score is balanced, M · (β S/ΣS + γ I/ΣI), so that both parts count:", style="bold"
    )
    columns = ["position", "token", "score", "score_se", "gate", "curvature", "information"]
    console.print(attribution.to_frame()[columns].to_string(index=False), markup=False, highlight=False)


if __name__ == "__main__":
    main()
