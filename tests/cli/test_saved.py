"""``show``, ``compare`` and ``estimate``, as a user types them: no model is loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from helpers.evaluating import run
from heta_lens.cli.views import Files
from heta_lens.model import loading

TEXT = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"
TOKEN, OTHER, SPAN = "token.safetensors", "other.safetensors", "span.safetensors"


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attributions of a text, of a token and of a span, an attribution of another text, and many scores."""
    folder = tmp_path_factory.mktemp("saved")
    for name, words in {
        TOKEN: [TEXT, "-m", "loo"],
        OTHER: [TEXT, "-m", "ixg"],
        SPAN: [TEXT, "-m", "loo", "--generate", "2"],
        "leo.safetensors": ["Leo put the key in the", "-m", "recency"],
    }.items():
        assert run("attribute", *words, "--save", str(folder / name)).exit_code == 0
    (folder / "p.csv").write_text(f"text\n{TEXT}\n{TEXT}\n")
    many = "attribute-dataset", str(folder / "p.csv"), "-m", "recency,ixg", "--out", str(folder / "many")
    assert run(*many).exit_code == 0
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_show_prints_the_output_of_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("attribute", TEXT, "-m", "loo").stdout
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    assert run("show", TOKEN).stdout == first
    both = run("show", TOKEN, SPAN, "--top", "1").stdout
    assert TOKEN in both and SPAN in both and "why ' drawer'?" in both and "why ' drawer.'?" in both
    assert "drawer." in run("show", TOKEN, "--by", "word", "--top", "1").stdout
    assert run("show", "many", "--prompt", "p-1", "--method", "recency").stdout.count("recency: why") == 1


def test_prompts_of_one_form_have_files_of_their_own(tmp_path: Path) -> None:
    files = Files(html=tmp_path / "a.html")
    named = [own.html.name for own in files.apart(["q-1", "q_1", "日本", "中国"]).values() if own.html]
    assert named == ["a-q_1.html", "a-q_1_1.html", "a-日本.html", "a-中国.html"]


SHOW = """
import sys
from heta_lens.__main__ import main
sys.argv[1:] = ["show", *{paths!r}]
try:
    main()
except SystemExit as end:
    print("exit", end.code)
print("heavy", sorted({{"transformers", "transformer_lens"}} & sys.modules.keys()))
"""


@pytest.mark.slow
def test_show_imports_no_model_library() -> None:
    code = SHOW.format(paths=[TOKEN, SPAN])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "why ' drawer'?" in ended.stdout and ended.stdout.endswith("exit 0\nheavy []\n")


def test_a_page_opens_by_what_the_terminal_lists(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    assert run("show", TOKEN, "--by", "sentence", "--html", str(page)).exit_code == 0
    assert '"unit":"sentences"' in page.read_text()
    assert run("attribute", TEXT, "-m", "recency", "--by", "word", "--html", str(page)).exit_code == 0
    assert '"unit":"words"' in page.read_text()


def test_compare_prints_ranks_and_correlations(tmp_path: Path) -> None:
    page, figure = tmp_path / "c.html", tmp_path / "c.svg"
    done = run("compare", TOKEN, OTHER, "--top", "2", "--html", str(page), "--figure", str(figure))
    assert done.exit_code == 0, done.output
    assert re.search(r"position +token +leave_one_out +input_x_gradient", done.stdout)
    assert re.search(r"^7 +' drawer' +9\.36 \(1\) ", done.stdout, re.MULTILINE)
    assert re.search(r"^leave_one_out +0\.\d\d", done.stdout, re.MULTILINE)
    assert "input_x_gradient" in page.read_text() and "<svg" in figure.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", TOKEN, "--by", "role"], "--by role is for a chat"),
        (["show", "nowhere"], "there is no file nowhere"),
        (["compare", TOKEN], "a comparison takes two or more attributions of one text: got 1"),
        (["compare", TOKEN, OTHER, "--html", TOKEN], f"--html {TOKEN} cannot be written"),
        (["compare", TOKEN, "leo.safetensors"], "at position 1, ' Mia' in the first and ' Leo' in the second"),
        (["show", TOKEN, "--prompt", "p-1"], "--prompt p-1 is for a folder or file of attribute-dataset"),
        (["show", TOKEN, "-m", "lime"], "--method lime is for a folder or file of attribute-dataset"),
        (["compare", TOKEN, OTHER, "--prompt", "p-1"], "--prompt p-1 is for a folder or file of attribute-dataset"),
        (["compare", "many"], "these are of the prompts p-0, p-1: choose one with --prompt"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


# ------------------------------------------------------------------------------------------------------------ estimate


@pytest.fixture
def config(tmp_path: Path) -> str:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaConfig(**sizes, vocab_size=50, dtype="bfloat16").save_pretrained(tmp_path)
    return str(tmp_path)


def estimated(config: str, tokens: int, *words: str) -> Any:
    return run("estimate", "--config", config, "--tokens", str(tokens), "--gpu-memory", "8", *words)


def test_estimate_says_what_fits(config: str) -> None:
    said = estimated(config, 20, "-o", "batch=2")
    assert said.exit_code == 0 and "bfloat16, 20 tokens; GiB of 7.45, predicted" in said.output
    assert re.search(r"batch=2: .* = weights", said.output) and "(2 at once)" in said.output
    fast = estimated(config, 20, "-m", "fast")
    assert fast.exit_code == 0 and re.search(r"fast: .* = weights", fast.output)


def test_estimate_says_what_a_method_needs_without_a_gpu_to_fit_into(config: str) -> None:
    said = run("estimate", "--config", config, "--tokens", "20", "--json")
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    needed, *smaller = (choice["bytes"] for choice in document["choices"])
    assert document["memory"] is None and {choice["fits"] for choice in document["choices"]} == {None}
    assert needed > max(smaller) > 0
    assert {step["copies"] for step in document["choices"][0]["steps"].values()} == {1}
    assert "too much" not in run("estimate", "--config", config, "--tokens", "20").output


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_estimate_gets_one_sentence(config: str) -> None:
    for said, message in (
        (estimated(config, 1), "tokens=1 must be at least 2"),
        (estimated(config + "/no", 9), "no configuration"),
        (estimated(config, 9, "-o", "variant=windy"), "variant='windy'"),
        (estimated(config, 9, "-o", "config=x"), "config"),
        (estimated(config, 9, "-m", "limee"), "did you mean"),
        (estimated(config, 5000), "tokens=5000: this model reads 2048 at most"),
    ):
        assert said.exit_code == 2 and message in said.output and "Traceback" not in said.output
