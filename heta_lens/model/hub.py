"""The Hugging Face hub: whether it answers, and whatever goes wrong there in one sentence."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

import transformers
from huggingface_hub import constants, get_session
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from heta_lens.model.checkpoints import CheckpointError, first_sentence

ANSWER = 2.5  # seconds to wait for the hub's answer
SERVER_ERRORS = 500  # from this status code on

Read = TypeVar("Read")


def folder_of(name: str, what: str, revision: str | None = None) -> Path | None:
    """The folder that a name is of; None for a name of the hub; refused if it can only be a folder, and is none.

    A folder has no ``revision``.
    """
    missing = f"no {what} {name!r}: give demo, a name on the Hugging Face hub, or a folder that exists"
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # a home that nobody has
        raise ValueError(missing) from error
    if not name or (name.startswith(("/", ".", "~")) and not path.exists()):
        raise ValueError(missing)
    if path.exists() and revision is not None:
        raise ValueError(f"revision={revision!r} is of a {what} on the hub, and {name!r} is a folder")
    return path if path.exists() else None


def read_from(name: str, what: str, local: Path | None, read: Callable[[str], Read]) -> Read:
    """What ``read`` makes of a folder or a name; a hub that does not answer is not waited for."""
    silent = not (local or constants.HF_HUB_OFFLINE or hub_answers(name))
    try:
        with _offline() if silent else nullcontext():
            return read(str(local or name))
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # whatever a library raises for files it cannot read
        where = f"{constants.ENDPOINT} did not answer" if silent else "looked for on the Hugging Face hub"
        place = "" if local else f" (not a folder here; {where})"
        raise ValueError(f"the {what} {name!r}{place} cannot be loaded: {reason(error, name)}") from error


def reason(error: BaseException, name: str) -> str:
    """What to do about an error of the hub, or what the library said."""
    chain = [error]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None and earlier not in chain:
        chain.append(earlier)
    if any(isinstance(link, GatedRepoError) for link in chain):
        return f"it is gated; accept its terms at {constants.ENDPOINT}/{name} and log in with `hf auth login`"
    if any(isinstance(link, RepositoryNotFoundError) for link in chain):
        return "the hub has no such model, or it is private and you are not logged in (`hf auth login`)"
    if any(isinstance(link, LocalEntryNotFoundError) for link in chain) or "in the cached files" in str(error):
        return "no copy of it is on this machine"
    if unknown := re.search(r"model type `([^`]*)` but Transformers does not recognize", str(error)):
        return f"transformers {transformers.__version__} does not know {unknown[1]!r} models; a newer version may"
    if "trust_remote_code" in str(error):
        return "it comes with code of its own, which runs only with trust_remote_code=True (--trust-remote-code)"
    return first_sentence(error)


def hub_answers(name: str, seconds: float = ANSWER) -> bool:
    """Whether the hub says anything about a model: tried once, where a download would retry for half a minute."""
    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):  # whatever the client raises without a network
            answers.append(get_session().head(f"{constants.ENDPOINT}/api/models/{name}", timeout=seconds))

    request = Thread(target=ask, daemon=True)  # looking up a host name has no time limit
    request.start()
    request.join(seconds)
    return any(answer.status_code < SERVER_ERRORS for answer in answers)


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
