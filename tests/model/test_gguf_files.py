"""GGUF files are read as the models they were written from, and what cannot be read is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

import heta_lens
from helpers.gguf_files import MERGES, TEMPLATE, TOKENS, small_llama, write_gguf
from heta_lens._util import python
from heta_lens.cli import app
from heta_lens.model.checkpoints import read_gguf

TEXT = "a  5 in a"


@pytest.fixture(scope="module")
def plain() -> Any:
    return small_llama()


@pytest.fixture
def file(plain: Any, tmp_path: Path) -> Path:
    write_gguf(plain, tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


@torch.no_grad()
def test_it_is_the_model_that_was_written(plain: Any, file: Path) -> None:
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    model = heta_lens.load_model(file)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == default
    ids = torch.arange(4, 24)[None]
    torch.testing.assert_close(model(ids), plain(ids).logits, atol=1e-5, rtol=1e-5)
    assert not model.training


def test_its_configuration_is_exact_and_it_can_be_saved(plain: Any, file: Path, tmp_path: Path) -> None:
    model, tokenizer = read_gguf(file)
    assert model.config.rms_norm_eps == 1e-5
    assert model.model.norm.variance_epsilon == 1e-5
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert getattr(model.config, "quantization_config", None) is None
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    direct, saved = heta_lens.load_model(file), heta_lens.load_model(tmp_path / "saved")
    ids = saved.to_tokens(TEXT)
    assert torch.equal(direct.to_tokens(TEXT), ids)
    torch.testing.assert_close(direct(ids), saved(ids), atol=0, rtol=0)
    torch.testing.assert_close(saved(ids), plain(ids).logits, atol=1e-5, rtol=1e-5)


def test_a_file_in_a_folder(file: Path, tmp_path: Path) -> None:
    for model in (heta_lens.load_model(tmp_path), heta_lens.load_model(tmp_path, gguf_file=file.name)):
        assert model.cfg.n_layers == 2
    small_llama().save_pretrained(tmp_path)  # another model beside it, without a tokenizer
    assert heta_lens.load_model(str(tmp_path), gguf_file=file.name).cfg.n_layers == 2


def test_the_tokenizer_splits_as_the_file_says(plain: Any, file: Path, tmp_path: Path) -> None:
    """Digits are split off first: so the spaces before one are one token, and not two."""
    tokenizer = read_gguf(file).tokenizer
    assert tokenizer.tokenize(TEXT) == ["a", "ĠĠ", "5", "Ġ", "in", "Ġa"]
    assert tokenizer.tokenize("<|im_start|>a") == ["<|im_start|>", "a"]
    assert tokenizer.chat_template == TEMPLATE
    assert (len(tokenizer), len(MERGES)) == (len(TOKENS), 3)
    write_gguf(plain, tmp_path / "other.gguf", splits="gpt-2")
    assert read_gguf(tmp_path / "other.gguf").tokenizer.tokenize(TEXT) == ["a", "Ġ", "Ġ", "5", "Ġ", "in", "Ġa"]


def test_the_precision_can_be_chosen(file: Path) -> None:
    model = heta_lens.load_model(file, dtype="bfloat16", device="cpu")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_tokenizer_can_be_given(file: Path) -> None:
    given = AutoTokenizer.from_pretrained(heta_lens.model.loading.DEMO)
    assert heta_lens.load_model(file, tokenizer=given).tokenizer.vocab_size == given.vocab_size


def test_it_is_explained(file: Path) -> None:
    model = heta_lens.load_model(file)
    _, cache = model.run_with_cache(TEXT)
    attribution = heta_lens.attribute(cache, method="leave_one_out")
    assert [token.strip() for token in attribution.tokens[1:3]] == ["a", ""]
    assert attribution.scores.isfinite().all()


@pytest.mark.parametrize("named", [["--model", "{file}"], ["--model", "{folder}", "--gguf-file", "small.gguf"]])
def test_from_the_shell(named: list[str], file: Path) -> None:
    flags = [flag.format(file=file, folder=file.parent) for flag in named]
    done = CliRunner().invoke(app, ["attribute", TEXT, "--method", "random", *flags])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("absent.gguf", {}, r"there is no file '.*absent.gguf'; GGUF files in its folder: small.gguf"),
        ("", {"gguf_file": "absent"}, r"there is no file '.*absent'; GGUF files in its folder: small.gguf"),
        ("small.gguf", {"gguf_file": "small.gguf"}, "is a file: give one"),
        ("nowhere/", {"gguf_file": "small.gguf"}, "is no folder here: download the file and give its path"),
        ("", {"gguf_file": 3}, "gguf_file=3 must be the name of a file in the model's folder"),
        ("small.gguf", {"quantization_config": "8bit"}, "quantization_config= cannot be used with a GGUF file"),
        ("small.gguf", {"device_map": "auto"}, "device_map= cannot be used with a GGUF file, which takes dtype="),
        ("small.gguf", {"n_ctx": 8}, "n_ctx= cannot be used with a GGUF file"),
        ("small.gguf", {"revision": "main"}, "revision= cannot be used with a GGUF file"),
    ],
)
@pytest.mark.usefixtures("file", "unchecked")
def test_what_does_not_fit_is_refused(place: str, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        heta_lens.load_model(str(tmp_path / place), **options)


def test_a_loaded_model_has_no_file(plain: Any) -> None:
    with pytest.raises(ValueError, match="gguf_file= says how to load weights, which this model has"):
        heta_lens.load_model(plain, gguf_file="small.gguf")


def test_several_files_need_a_name(file: Path, tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"has several GGUF files \(b.gguf, small.gguf\): say which with gguf_file="):
        heta_lens.load_model(tmp_path)


def test_other_files_are_refused(file: Path) -> None:
    file.write_text("no such thing")
    with pytest.raises(ValueError, match=r"small.gguf' is not a GGUF file: it begins with b'no s', not b'GGUF'"):
        heta_lens.load_model(file)


@pytest.mark.parametrize("kept", [0.0005, 0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused(kept: float, file: Path) -> None:
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    with pytest.raises(ValueError, match=r"small.gguf' is damaged \(.*\): download it again"):
        heta_lens.load_model(file)


def test_missing_weights_are_refused(plain: Any, file: Path) -> None:
    write_gguf(plain, file, without="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"lacks model.layers.1.mlp.up_proj.weight"):
        heta_lens.load_model(file)


def test_rescaled_frequencies_are_refused(plain: Any, file: Path) -> None:
    """Transformers leaves them out without a word."""
    write_gguf(plain, file, **{"rope_freqs.weight": np.ones(8, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"has rescaled rotary frequencies \(rope_freqs.weight\)"):
        heta_lens.load_model(file)


def test_an_unknown_architecture_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"llama", b"lhama"))
    with pytest.raises(ValueError, match=r"architecture lhama is not supported yet \(by transformers\): load the"):
        heta_lens.load_model(file)


def test_a_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs gguf, which is not installed: pip install 'heta-lens\[gguf\]'"):
        heta_lens.load_model(file)
