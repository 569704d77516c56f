"""``heta-lens attribute``: explain what a model says after a prompt, by one method or several."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heta_lens._util.progress import progress_in_lines
from heta_lens.cli.aligned_scores import comparison_document, show_comparison, write_comparison
from heta_lens.cli.application import MODELS, command
from heta_lens.cli.errors_and_messages import errors_in_a_line
from heta_lens.cli.json_output import add, wanted
from heta_lens.cli.loading_flags import loading_options, with_loading_flags
from heta_lens.cli.method_arguments import methods_of, with_method_flags
from heta_lens.cli.prompt_arguments import prompt_of, with_prompt_flags
from heta_lens.cli.prompt_running import Explained, read_prompt
from heta_lens.cli.question_arguments import Question, question_of, with_question_flags
from heta_lens.cli.result_files import Files, with_file_flags
from heta_lens.cli.result_views import (
    BY,
    GROUPS,
    HIGHEST,
    SPECIAL,
    TOP,
    check_by,
    document_of,
    name_files,
    show_result,
    show_written,
    write_files,
)

if TYPE_CHECKING:
    from heta_lens import Method


@command("attribute")
@with_loading_flags
@with_file_flags
@with_method_flags
@with_question_flags
@with_prompt_flags
def attribute_text(
    model: Annotated[str, typer.Option(help=MODELS)] = "demo",
    by: Annotated[str, typer.Option(metavar="|".join(GROUPS), help=BY)] = "token",
    top: Annotated[int, typer.Option(metavar="N", min=1, help=TOP)] = HIGHEST,
    special: Annotated[bool, typer.Option("--special", help=SPECIAL)] = False,
    *,
    prompt_flags: dict[str, Any],
    question_flags: dict[str, Any],
    method_flags: dict[str, Any],
    files: dict[str, Any],
    loading: dict[str, Any],
) -> None:
    """Explain a model's next token, or its answer.

    The prompt is a text of your own, or a chat.
    """
    written = Files(**files)
    with errors_in_a_line(*written.paths, names=written.names):
        prompt = prompt_of(**prompt_flags)
        written.check()
        check_by(by, not isinstance(prompt, str))
        question = question_of(question_flags)
        methods = _checked(methods_of(method_flags), question, by)
        written.without_views.check_apart(methods, {"--html": written.html, "--figure": written.figure})
        read = read_prompt(model, prompt, question, **loading_options(loading))
        with progress_in_lines():
            results = {label: read.explained(question, method) for label, method in methods.items()}
        if read.written is not None:
            add(generated=read.written)
        _put_out(results, written, by, top, read.written or "", special=special)


def _checked(methods: "dict[str, Method]", question: Question, by: str) -> "dict[str, Method]":
    """The methods, refused if they do not fit the question, or the way it is to be answered."""
    for method in methods.values():
        question.check(method)
    if len(methods) > 1 and by != "token":
        raise ValueError(f"--by {by} lists the groups of one method, and there are {len(methods)}: give one")
    return methods


def _put_out(results: Mapping[str, Explained], files: Files, by: str, top: int, written: str, *, special: bool) -> None:
    """Files first, so that a terminal that cannot show something loses nothing."""
    if len(results) > 1:
        _put_out_several(results, files, top, written, special=special)
        return
    (explained,) = results.values()
    write_files(explained, files, special=special)
    if wanted():
        add(**document_of(explained, files, by))
    show_result(explained, by=by, top=top, special=special, written=written)
    name_files(files)


def _put_out_several(results: Mapping[str, Explained], files: Files, top: int, written: str, *, special: bool) -> None:
    """One page and one figure of all of them, and a file of each, where those are wanted."""
    apart = {label: files.without_views.of(label, results) for label in results}
    for label, explained in results.items():
        write_files(explained, apart[label], special=special)
    write_comparison(results, files.views, special=special)
    if wanted():
        each = [{"method": label, **document_of(result, apart[label])} for label, result in results.items()]
        add(methods=each, correlations=comparison_document(results), page=files.html, figure=files.figure)
    show_written(written)
    show_comparison(results, top, special=special)
    for own in apart.values():
        name_files(own)
    name_files(files.views)
