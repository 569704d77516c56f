"""``heta-lens demo``: explain the answer of the small model that ships with heta_lens."""

from pathlib import Path
from typing import Annotated, Any

import typer

from heta_lens.cli.application import command
from heta_lens.cli.errors_and_messages import errors_in_a_line, note
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.method_arguments import methods_of
from heta_lens.cli.prompt_running import read_prompt
from heta_lens.cli.question_arguments import Question
from heta_lens.cli.result_files import Files, check_page
from heta_lens.cli.result_views import document_of, name_files, show_result, write_files

PAGE = "Where the page is written."
SEED = "Which story (by default one whose explanation is easy to read)."
EASY = {1: 0, 2: 8}  # seeds, by hops


@command("demo")
def demo(
    seed: Annotated[int | None, typer.Option(help=SEED, show_default=False)] = None,
    hops: Annotated[int, typer.Option(min=1, max=2, help="1 asks for the place, 2 for the room it is in.")] = 1,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help=PAGE)] = Path("heta_lens_demo.html"),
) -> None:
    """Explain an answer of the small demo model.

    The model ships with heta_lens, and answers a question about a short story.
    """
    with errors_in_a_line(html):
        check_page(html)
        from heta_lens.data import recall

        chosen = EASY[hops] if seed is None else seed
        story = next(recall.stories("test", seed=chosen, hops=2 if hops == 2 else 1, facts=4))
        marked = {position for stretch in story.evidence for position in stretch.tokens}
        (method,) = methods_of({}).values()
        explained: Any = read_prompt("demo", story.text, Question()).explained(Question(), method)
        answers = "answers" if explained.target_text == story.answer else "does not answer"
        evidence = " ".join(story.text[slice(*stretch.characters)] for stretch in story.evidence)
        why = f"Underlined: the evidence for{story.answer}, which the model {answers}: {evidence}"
        files = Files(html=html)
        write_files(explained, files, marked, why)
        add(answer=story.answer, evidence=sorted(marked), **(document_of(explained, files) if wanted() else {}))
        show_result(explained, marked=marked)
        note(why)
        name_files(files)
