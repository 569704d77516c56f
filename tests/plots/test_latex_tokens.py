"""Tokens as LaTeX."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.attributions import attribution
from heta_lens import Attribution, SpanAttribution, plots
from heta_lens.plots.figures import Coloured
from heta_lens.plots.latex_tokens import escaped, latex

HOSTILE = (
    "$x_1$", "\n", "</script>", "a%b&c#d{e}~^\\", "\u202e", "\n\n", "\t", "  ", "\\input{x}", "^^41", "--", ",,", '"q"',
    "`a'", "x" * 120, " ?`!`", "[", "]", "", "é", "\\", "}", " end", "\n",
)  # fmt: skip
WRITTEN = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\hetaquote{}": '"', r"\textquotesingle{}": "'",
    r"\textasciigrave{}": "`", r"-\kern0pt{}": "-", r",\kern0pt{}": ",", r"\hetanewline{}": "\n",
    r"\ensuremath{\rightarrow}": "\t",
}  # fmt: skip


def read(written: str) -> str:
    """What TeX would typeset, by its own rules for these commands; anything else that is special is refused."""
    commands = "|".join(map(re.escape, WRITTEN))
    text = ""
    for command, sign, plain in re.findall(rf"({commands})|\\([{{}}$&#_% ])|(.)", written, re.DOTALL):
        assert plain not in {*"\\{}$&#_%~^"}, f"{plain!r} is special in {written!r}"
        assert plain != " ", "TeX reads several spaces as one"
        text += WRITTEN.get(command, "") or sign or plain
    return text


def hostile() -> Attribution:
    return attribution(
        HOSTILE, [(-1) ** at * at / 3 for at in range(len(HOSTILE))], signed=True, target_text="$_{\n", method="a_b"
    )


def span() -> SpanAttribution:
    tokens = ("The", " cat", " s", "at", "\n", " on")
    steps = [attribution(tokens[:end], range(1, end + 1)) for end in range(3, 6)]
    return SpanAttribution(tuple(steps), tokens)


def boxes(text: str) -> list[tuple[str, str]]:
    """The colour and the contents of every token's box, in the lines that have them."""
    start = r"^(?:\\hetaspace|\\hetainside)?(?:\\hetaedge)?"
    return re.findall(start + r"\\hetatoken\{([\d,]+)\}\{(.*)\}(?:%|\\newline|\\par.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("token", HOSTILE)
def test_a_token_is_escaped(token: str) -> None:
    expected = token.replace("\u202e", "<U+202E>")
    assert read(escaped(token)) == expected


def test_every_ascii_character_is_escaped() -> None:
    printable = "".join(map(chr, range(32, 127)))
    assert read(escaped(printable)) == printable
    assert read(escaped(printable[::-1])) == printable[::-1]


def test_no_two_characters_become_another() -> None:
    assert not re.search("--|,,|''|``|<<|>>|[?!]`", escaped("---,,''``<<>>?`!`"))


def test_every_token_has_its_colour_and_its_text() -> None:
    shown = hostile()
    found = boxes(latex(shown))
    assert "".join(read(text) for _, text in found) == "".join(HOSTILE).replace("\u202e", "<U+202E>")
    plain = attribution()
    assert [colour for colour, _ in boxes(latex(plain))] == [
        f"{shade.red},{shade.green},{shade.blue}" for shade in Coloured.of(plain).tints
    ]
    assert all(len(read(text)) <= 40 for _, text in found), "no line breaks in a box"


def test_lines_break_between_words_and_after_line_ends() -> None:
    text = latex(attribution(["The", " cat", "s", "\n", "end"], [1.0] * 5))
    before = re.findall(r"^(.*?)\\hetatoken\{[\d,]+\}", text, re.M)
    assert before == ["", "\\hetaspace", "\\hetainside", "\\hetainside", "\\hetaspace"]
    assert text.count("\\newline\n") == 1
    assert "\\newline\n" not in latex(attribution(["a", "\n"], [1.0, 2.0])), "not after the last"


def test_the_head_says_what_is_needed() -> None:
    first, second, *_ = latex(attribution()).splitlines()
    assert first == r"% In the preamble: \usepackage{xcolor}"
    assert "LuaLaTeX or XeLaTeX" in second


def test_the_scale_and_what_is_beyond_it_are_said() -> None:
    text = latex(attribution(["The", " cat", " sat"], [1.0, 9.0, -2.0], signed=True))
    assert "{hetaabove}" in text and "$4$, which is 33.3\\%\\ of\\ the\\ score" in text
    assert "\\colorbox{hetabelow}" in text and "$-4$" in text and "beyond\\ the\\ scale" in text
    assert "\\colorbox{hetabelow}" not in latex(attribution())


def test_the_answer_of_a_span_is_framed() -> None:
    text = latex(span())
    framed = re.findall(r"\\hetaframed\{(.*)\}(?:%|\\newline)", text)
    assert "".join(map(read, framed)) == "at\n on"
    assert text.count("\\hetaedge%") == 1 and text.count("\\hetaedge\\hetaframed") == 1
    assert len(boxes(text)) == 3 and "framed" in text
    assert "\\hetaframed{" not in latex(attribution()).partition("\\raggedright")[2]


def test_groups_are_closed() -> None:
    for shown in (hostile(), span()):
        text = re.sub(r"\\[{}]", "", latex(shown))
        assert text.count("{") == text.count("}")
        assert text.count("\\begingroup") == text.count("\\endgroup") == 1
    assert plots.latex is latex


def test_evidence_is_underlined() -> None:
    made = attribution()
    text = latex(made, marked=[1], note="where it is said")
    assert text.count("\\underline{") == 1 and escaped("where it is said") in text and "underline" not in latex(made)
    assert escaped("underlined: evidence") in latex(made, marked=[1])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pdflatex", "lualatex"])
def test_it_compiles(engine: str, tmp_path: Path) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"{engine} is not installed")
    source = "\\documentclass{article}\\usepackage{xcolor}\\begin{document}%s\\end{document}"
    (tmp_path / "page.tex").write_text(
        source % "\n\nText.\n\n".join([latex(hostile(), marked=range(4)), latex(span())]), encoding="utf-8"
    )
    options = ["-halt-on-error", "-interaction=nonstopmode"]
    done = subprocess.run(
        [engine, *options, "page.tex"], cwd=tmp_path, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0 and (tmp_path / "page.pdf").exists(), log[-2000:]
    assert "Overfull" not in log
