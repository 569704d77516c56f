"""An attribution's tokens as LaTeX: coloured boxes that wrap at line ends, for a paper's source."""

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from heta_lens._util.text import JOINERS
from heta_lens.attribution import Attribution
from heta_lens.plots.figures import Coloured, tint
from heta_lens.plots.scales import BLUE, ORANGE, Shade
from heta_lens.span_attribution import SpanAttribution

LONGEST = 40  # characters of a box, since no line breaks inside
ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # which older fonts have as other characters, as these:
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\hetaquote{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": r"-\kern0pt{}",  # two of which would be a dash
    ",": r",\kern0pt{}",  # two of which would be a quotation mark
    " ": r"\ ",  # several of which would be one
    "\n": r"\hetanewline{}",
    "\t": r"\ensuremath{\rightarrow}",
    **{character: f"\\{character}" for character in "{}$&#_%"},
}
HEAD = r"""% In the preamble: \usepackage{xcolor}
% For characters beyond Latin letters, compile with LuaLaTeX or XeLaTeX, and choose a font that has them.
\begingroup
\definecolor{hetaabove}{RGB}{ABOVE}%
\definecolor{hetabelow}{RGB}{BELOW}%
\providecommand{\hetatoken}[2]{\colorbox[RGB]{#1}{\strut{}#2}}%
\providecommand{\hetaframed}[1]{{\setbox0=\hbox{\strut{}#1}%
  \rlap{\rule[\ht0]{\wd0}{0.4pt}}\rlap{\rule[-\dp0]{\wd0}{0.4pt}}\box0}}%
\providecommand{\hetaedge}{{\setbox0=\hbox{\strut}\rule[-\dp0]{0.4pt}{\dimexpr\ht0+\dp0+0.4pt\relax}}}%
\providecommand{\hetanewline}{\ensuremath{\hookleftarrow}}%
\providecommand{\hetaquote}{\ifcsname\csname f@encoding\endcsname\string\textquotedbl\endcsname
  \textquotedbl\else\char34 \fi}% straight, where the fonts have it
\providecommand{\hetaspace}{\penalty0\hskip0pt plus 1pt\relax}% a line may break here
\providecommand{\hetainside}{\penalty900\hskip0pt\relax}% and here, if it must
\setlength{\fboxsep}{0pt}\setlength{\parindent}{0pt}\raggedright
\setlength{\lineskip}{1.5pt}\setlength{\lineskiplimit}{1pt}\hbadness=10000\relax
"""


def latex(
    attribution: Attribution | SpanAttribution,
    *,
    marked: Collection[int] = (),
    note: str = "",
    special: bool = False,
) -> str:
    r"""The question, the text with every token coloured by its score, and what the deepest colours stand for.

    Put it into a file and ``\input`` it. It defines its commands for itself alone, and needs xcolor. A span is coloured
    by all of its targets together, and its own tokens follow in frames. ``marked`` positions are underlined, as
    evidence, and ``note`` may say why. ``special=True`` colours special tokens, and a chat template's, too.
    """
    return latex_of(Coloured.of(attribution, marked, note, special=special))


def latex_of(shown: Coloured) -> str:
    """Of a coloured text, as a paragraph of its own."""
    return "".join(
        [
            HEAD.replace("ABOVE", _numbers(tint(BLUE))).replace("BELOW", _numbers(tint(ORANGE))),
            f"\\textbf{{{escaped(shown.title)}}}\\par\\smallskip\n",
            "".join(_tokens(shown)).removesuffix("\\newline\n"),
            "\\par\\smallskip\n",
            f"{{\\footnotesize {_scale(shown)}%\n",
            *(f"\\par {escaped(note)}%\n" for note in shown.notes),
            "\\par}\\endgroup\n",
        ]
    )


def escaped(text: str) -> str:
    """The text as LaTeX that shows exactly it: no command, no ligature, every space, ⟨U+202E⟩ for the invisible."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in ESCAPES or character.isprintable() or character in JOINERS:
        return ESCAPES.get(character, character)
    return f"\\textless{{}}U+{ord(character):04X}\\textgreater{{}}"


def _tokens(shown: Coloured) -> Iterator[str]:
    """A box per token, one per line; a token with line ends, or a very long one, has several."""
    boxes = [f"\\hetatoken{{{_numbers(shade)}}}" for shade in shown.tints]
    boxes += ["\\hetaframed"] * len(shown.written)
    pieces = [
        (number, text)
        for number, token in enumerate([*shown.tokens, *shown.written])
        for text in re.findall(rf"[^\n]{{0,{LONGEST - 1}}}\n|[^\n]{{1,{LONGEST}}}", token)
    ]
    for (before, last), (number, text) in pairwise([(-1, ""), *pieces]):
        if last:
            between_words = last[-1].isspace() or (text[0].isspace() and text[0] != "\n")
            yield "\\hetaspace" if between_words else "\\hetainside"
        if before < len(shown.tokens) <= number:
            yield "\\hetaedge"
        shown_text = f"\\underline{{{escaped(text)}}}" if number in shown.marked else escaped(text)
        yield f"{boxes[number]}{{{shown_text}}}"
        yield "\\newline\n" if text.endswith("\n") else "%\n"
    if shown.written:
        yield "\\hetaedge%\n"


def _numbers(shade: Shade) -> str:
    return ",".join(map(str, shade))


def _scale(shown: Coloured) -> str:
    """What the colours stand for, deepest and at 0."""
    end = shown.end
    box = "\\colorbox{{{}}}{{\\strut\\hspace{{1.2em}}}} {}"
    below = [box.format("hetabelow", f"$-{end:.3g}$")] if bool((shown.shown < 0).any()) else []
    above = box.format("hetaabove", f"${end:.3g}$, which is {escaped(shown.share(end))}")
    return "\\quad\n".join([*below, "white is 0", above])
