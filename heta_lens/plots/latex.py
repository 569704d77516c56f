"""LaTeX of tokens as coloured text, in boxes that wrap at line ends."""

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from heta_lens._util.text import JOINERS
from heta_lens.attribution import Attribution
from heta_lens.plots.coloured_text import ColouredText, without_space
from heta_lens.plots.scales import BLUE, ORANGE, shade_of, tint
from heta_lens.span_attribution import SpanAttribution

ARROW = r"\ensuremath{\rightarrow}"
LONGEST = 40  # characters of a box, since no line breaks inside
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # other characters in older fonts, like the next three
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"-\kern0pt{}",  # two hyphens would be a dash
    ",": r",\kern0pt{}",  # two commas would be a quotation mark
    " ": r"\ ",  # TeX reads several spaces as a single space
    "\n": r"\hetanewline{}",
    "\t": ARROW,
    "→": ARROW,
    "⏎": r"\hetanewline{}",  # how views write white space alone
    **dict.fromkeys("␣⍽", r"\textvisiblespace{}"),
    **{character: f"\\{character}" for character in "{}$&#_%"},
}
HEAD = r"""% In the preamble: \usepackage{xcolor}
% For characters beyond Latin letters, compile with LuaLaTeX or XeLaTeX, and choose a font that has them.
\begingroup
\definecolor{hetaabove}{RGB}{ABOVE}%
\definecolor{hetabelow}{RGB}{BELOW}%
\providecommand{\hetatoken}[2]{\colorbox[RGB]{#1}{\strut{}#2}}%
\providecommand{\hetaframed}[1]{\fbox{\strut{}#1}}%
\providecommand{\hetanewline}{\ensuremath{\hookleftarrow}}%
\providecommand{\hetaspace}{\penalty0\hskip0pt plus 1pt\relax}% a line may break here
\providecommand{\hetainside}{\penalty900\hskip0pt\relax}% and here, if it must
\setlength{\fboxsep}{0pt}\setlength{\parindent}{0pt}\raggedright
\setlength{\lineskip}{1.5pt}\setlength{\lineskiplimit}{1pt}\hbadness=10000\relax
"""


def latex(
    attribution: Attribution | SpanAttribution, *, marked: Collection[int] = (), note: str = "", special: bool = False
) -> str:
    r"""Return LaTeX of the question, the text with every token coloured by score, and the meaning of the colours.

    Put the LaTeX into a file and ``\input`` the file. The commands are local to the paragraph, and need xcolor. A span
    is coloured by the sums over all targets, and the span's own tokens follow in frames. ``marked`` positions are
    underlined, as evidence, and ``note`` may say why. ``special=True`` colours special tokens and a chat template's
    too.
    """
    return latex_of(ColouredText.of(attribution, marked, note, special=special))


def latex_of(shown: ColouredText) -> str:
    return "".join(
        [
            HEAD.replace("ABOVE", tint(BLUE).numbers).replace("BELOW", tint(ORANGE).numbers),
            f"\\textbf{{{escaped(shown.title)}}}\\par\\smallskip\n",
            "".join(_boxes(shown)).removesuffix("\\newline\n"),
            f"%\n\\hetaspace{{}}{escaped(shown.answer)}%\n" if shown.answer else "",
            "\\par\\smallskip\n",
            f"{{\\footnotesize {_caption(shown)}%\n",
            *(f"\\par {escaped(note)}%\n" for note in shown.notes),
            "\\par}\\endgroup\n",
        ]
    )


def escaped(text: str) -> str:
    """Return LaTeX that shows exactly the text: no command, no ligature, every space, ⟨U+202E⟩ for the invisible."""
    return "".join(
        ESCAPES.get(character, character)
        if character in ESCAPES or character.isprintable() or character in JOINERS
        else f"\\textless{{}}U+{ord(character):04X}\\textgreater{{}}"
        for character in text
    )


def _boxes(shown: ColouredText) -> Iterator[str]:
    """Yield a box per token on a line of LaTeX; a token with line ends and a very long token have several boxes."""
    shades = [*shown.tints, *[tint(shade_of(0.0))] * len(shown.written)]
    boxes = [
        "\\hetaframed" if number in shown.framed else f"\\hetatoken{{{shade.numbers}}}"
        for number, shade in enumerate(shades)
    ]
    pieces = [
        (number, text)
        for number, token in enumerate(shown.all_tokens)
        for text in re.findall(rf"[^\n]{{0,{LONGEST - 1}}}\n|[^\n]{{1,{LONGEST}}}", token)
    ]
    for (_, last), (number, text) in pairwise([(-1, ""), *pieces]):
        if last:
            between_words = last[-1].isspace() or (text[0].isspace() and text[0] != "\n")
            yield "\\hetaspace" if between_words else "\\hetainside"
        bare = without_space(text)
        shown_text = f"\\underline{{{escaped(bare)}}}" if number in shown.marked else escaped(bare)
        yield f"{escaped(text[: len(text) - len(bare)])}{boxes[number]}{{{shown_text}}}"
        yield "\\newline\n" if text.endswith("\n") else "%\n"


def _caption(shown: ColouredText) -> str:
    """Return the legend of the deepest colours and of white."""
    end = shown.end
    box = "\\colorbox{{{}}}{{\\strut\\hspace{{1.2em}}}} {}"
    below = [box.format("hetabelow", "$-$" + escaped(f"{end:.3g}"))] if bool((shown.shown < 0).any()) else []
    above = box.format("hetaabove", f"{escaped(f'{end:.3g}')}, which is {escaped(shown.share(end))}")
    return f"{escaped(shown.scale)}: " + "\\quad\n".join([*below, "white is 0", above])
