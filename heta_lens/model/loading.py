"""Loads models: the demo model that ships with the library, and any other by its name or folder."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal, TypeAlias, get_args

import torch
from huggingface_hub import constants, get_session
from safetensors.torch import load_file
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from heta_lens.model.checkpoints import (
    WHOLE,
    Checked,
    CheckpointError,
    check_folder,
    check_weight_file,
    load_weights,
    one_line,
)

Kind: TypeAlias = Literal["hooked", "bridge"]

ANSWER = 2.5  # seconds to wait for the hub's answer
DEMO = Path(__file__).parents[1] / "demo_model"
HAS_HOOKED = importlib.util.find_spec("transformer_lens.HookedTransformer") is not None
"""`HookedTransformer` was removed in TransformerLens 4."""


def load_demo_model(kind: Kind | None = None) -> Any:
    """The small trained model that ships with the library: offline, on the CPU, in float32, ready to be explained.

    It reads the stories of `heta_lens.data.recall` and answers questions about them. ``kind`` is ``"hooked"`` for a
    `HookedTransformer` (TransformerLens 3 only) or ``"bridge"`` for a `TransformerBridge`; by default the first where
    it exists.
    """
    if kind not in (None, *get_args(Kind)):
        raise ValueError(f"kind={kind!r} is not one of {', '.join(get_args(Kind))}")
    if kind == "hooked" and not HAS_HOOKED:
        raise ValueError("kind='hooked' needs TransformerLens 3: HookedTransformer was removed in 4; use kind='bridge'")
    with _untouched():
        # Not by `from_pretrained`: this is silent, needs no network and takes a tenth of a second.
        weights: Any = LlamaForCausalLM(LlamaConfig.from_pretrained(DEMO, attn_implementation="eager"))
        weights.tie_weights()
        check_weight_file(DEMO / WHOLE)
        load_weights(str(DEMO), weights, load_file(DEMO / WHOLE))
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        if kind == "hooked" or (kind is None and HAS_HOOKED):
            return _hooked(weights, tokenizer)
        return TransformerBridge.boot_transformers(
            str(DEMO), hf_model=weights, tokenizer=tokenizer, device="cpu"
        ).eval()


@contextmanager
def _untouched() -> Iterator[None]:
    """Build a model in float32, and leave the caller's random state and default dtype as they were."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(before)


def load_model(name: str) -> Any:
    """A model by name: ``"demo"``, a model of the Hugging Face hub, or the folder of one saved on this machine.

    Weights are read from safetensors only, and refused by name if missing, of another shape or not finite.
    """
    if name == "demo":
        return load_demo_model()
    path = Path(name).expanduser()
    if not name or (name.startswith(("/", ".", "~")) and not path.exists()):
        raise ValueError(f"no model {name!r}: give demo, a name of the Hugging Face hub, or a folder that exists")
    local = path.exists()
    if local:
        check_folder(path)
    silent = not (local or constants.HF_HUB_OFFLINE or hub_answers())
    try:
        with _offline() if silent else nullcontext():
            return TransformerBridge.boot_transformers(str(path) if local else name, model_class=Checked).eval()
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # whatever a library raises for files it cannot read
        where = f"{constants.ENDPOINT} did not answer" if silent else "looked for on the Hugging Face hub"
        what = "" if local else f" (not a folder here; {where})"
        raise ValueError(f"the model {name!r}{what} cannot be loaded: {one_line(error)}") from error


def hub_answers(seconds: float = ANSWER) -> bool:
    """Whether the hub can be reached: tried once, where a download would retry for half a minute."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):  # whatever the client raises without a network
            answers.append(get_session().head(constants.ENDPOINT, timeout=seconds))

    request = Thread(target=ask, daemon=True)  # looking up a host name has no time limit
    request.start()
    request.join(seconds)
    return bool(answers)


_going_offline = Lock()


@contextmanager
def _offline() -> Iterator[None]:
    """Make the hub's client use local files only."""
    with _going_offline:
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before


def _hooked(weights: Any, tokenizer: Any) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_llama_weights

    config = weights.config
    size = config.hidden_size // config.num_attention_heads
    hooked = HookedTransformerConfig(
        model_name="heta_lens demo",
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_head=size,
        n_heads=config.num_attention_heads,
        d_mlp=config.intermediate_size,
        d_vocab=config.vocab_size,
        n_ctx=config.max_position_embeddings,
        act_fn="silu",
        gated_mlp=True,
        normalization_type="RMS",
        final_rms=True,
        eps=config.rms_norm_eps,
        positional_embedding_type="rotary",
        rotary_dim=size,
        rotary_base=int(config.rope_parameters["rope_theta"]),
        rotary_adjacent_pairs=False,
        original_architecture="LlamaForCausalLM",
        default_prepend_bos=True,
        init_weights=False,
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(hooked, tokenizer=tokenizer)
    load_weights(str(DEMO), model, convert_llama_weights(weights, hooked))
    # The same angles as in the weights' own model: a frequency off by one bit shows after a thousand positions.
    cosines, sines = weights.model.rotary_emb(torch.zeros(1), torch.arange(hooked.n_ctx)[None])
    for block in model.blocks:
        block.attn.rotary_cos.copy_(cosines[0])
        block.attn.rotary_sin.copy_(sines[0])
    return model.eval()
