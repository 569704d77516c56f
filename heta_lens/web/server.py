"""The web server of the app, which listens on this computer alone, at an address with a secret.

A response is a stream of JSON lines. The page cancels the work by closing the connection, when it asks something else.
"""

import asyncio
import json
import re
import secrets
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from threading import Event, Thread
from typing import Any

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from heta_lens._util.html_view import View, html_from
from heta_lens._util.presets import RECOMMENDED
from heta_lens._util.text import plain
from heta_lens._util.work import Cancelled, watcher
from heta_lens.methods.registry import METHODS
from heta_lens.model.loading import DEMO_NAMES, DEMO_STORY
from heta_lens.plots.titles_and_notes import headline, kicker
from heta_lens.web.answers import EXPECTED, Answers, Emit, Message, sentence
from heta_lens.web.history import History
from heta_lens.web.requests import ChangeTokens, Compare, Explain, FindComponents, Question, Write, read

HOST = "127.0.0.1"
LARGEST = 2_000_000  # bytes of a request
POLL = 0.25  # seconds between two checks whether the client is still connected
EXAMPLE = (
    "Tom has lived in Oslo since he was born. Julia moved to Lisbon in 2019. Their cousin Maria works in Vienna.\n"
    "Question: In which city does Julia live now?\nAnswer: Julia lives in"
)
HEADERS = [  # of every response
    (b"referrer-policy", b"no-referrer"),  # the address holds the secret
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
POLICY = (  # texts of prompts and models never run as scripts, and the page requests nothing from other servers
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this computer alone."""
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # without it, asyncio leaves Nagle's delay of 40 ms on
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise OSError(f"port {port} cannot be opened ({error.strerror}): choose another, or 0 for a free one") from None
    return listening


@dataclass(eq=False, repr=False)
class App:
    """A running app, at an ``address``."""

    answers: Answers
    history: History
    listening: socket.socket
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    active: set[Event] = field(default_factory=set[Event])  # one per response in progress, set to cancel its work

    def __post_init__(self) -> None:
        routes = [
            Route("/", self.page),
            Route("/write", self.write, methods=["POST"]),
            Route("/explain", self.explain, methods=["POST"]),
            Route("/change", self.change, methods=["POST"]),
            Route("/components", self.components, methods=["POST"]),
            Route("/compare", self.compare, methods=["POST"]),
            Route("/files/{number:int}{suffix}", self.file),
            Route("/history", self.list_history),
            Route("/history", self.clear_history, methods=["DELETE"]),
            Route("/history/{number:int}", self.read_history, methods=["POST"]),
        ]
        inner = Starlette(
            routes=[Mount(f"/{self.secret}", routes=routes)], exception_handlers=dict.fromkeys(EXPECTED, _failed)
        )
        self.address = f"http://{HOST}:{self.listening.getsockname()[1]}/{self.secret}/"
        config = uvicorn.Config(Guard(inner), log_level="warning", timeout_graceful_shutdown=2, lifespan="off")
        self.server = uvicorn.Server(config)
        self.ended = Event()  # of the thread: an interrupted `Thread.join` may report a running thread as ended
        Thread(target=self._serve, daemon=True).start()

    def __repr__(self) -> str:
        return f"heta_lens app at {self.address}"

    def _serve(self) -> None:
        try:
            self.server.run([self.listening])
        finally:
            self.ended.set()

    def wait(self) -> None:
        """Wait until Ctrl-C, and stop."""
        with suppress(KeyboardInterrupt):
            while not self.ended.wait(1):
                pass
        self.stop()

    def stop(self) -> None:
        """Cancel all work, and stop the server."""
        self.server.should_exit = True
        for cancelled in [*self.active]:
            cancelled.set()
        self.ended.wait(10)
        self.listening.close()

    # --------------------------------------------------------------------------------------------------------- requests
    async def page(self, request: Request) -> Response:  # noqa: ARG002
        nonce, model = secrets.token_urlsafe(12), self.answers.model
        adapter = self.answers.adapter
        facts = {
            "methods": methods(),
            "first": [name for name in RECOMMENDED if name != "attn_lrp"],  # which is for pairs of targets
            "example": DEMO_STORY if model.cfg.model_name in DEMO_NAMES else EXAMPLE,
            "chat": bool(getattr(model.tokenizer, "chat_template", None)),
            "hooks": [name for name in adapter.points if not name.startswith("unembed")],
            "layers": adapter.layers,
        }
        data = Markup(json.dumps(facts).replace("<", "\\u003c"))  # a name must not end the script element
        html = html_from("web/page.html", nonce=nonce, model=Path(model.cfg.model_name or "").name, facts=data)
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY.format(nonce=nonce)})

    async def write(self, request: Request) -> Response:
        given = read(Write, await request.body())
        return self._stream(request, partial(self.answers.write, given.prompt, given.tokens))

    async def explain(self, request: Request) -> Response:
        given = read(Explain, await request.body())

        def explain(emit: Emit) -> None:
            def emit_and_add(message: Message) -> None:
                try:
                    if message.get("whole"):
                        message = {**message, "entry": self._add_to_history(given.question, message)}
                finally:  # a full disk does not take the explanation
                    emit(message)

            self.answers.explain(given.question, given.methods, emit_and_add, given.patient)

        return self._stream(request, explain)

    def _add_to_history(self, question: Question, message: Message) -> int | None:
        result = self.answers.result(message["result"])
        record = {"question": asdict(question), "texts": self.answers.texts(question), "method": message["method"]}
        record |= {"model": self.answers.model_name, "seconds": message["seconds"]}
        return self.history.add(record, f"{headline(result.summed)} · {kicker(result.summed)}", result)

    async def change(self, request: Request) -> Response:
        given = read(ChangeTokens, await request.body())
        return self._stream(request, lambda emit: emit(self.answers.change(given.question, given.change)))

    async def components(self, request: Request) -> Response:
        given = read(FindComponents, await request.body())
        return self._stream(request, partial(self.answers.components, given.question, given.positions, given.patient))

    async def compare(self, request: Request) -> Response:
        given = read(Compare, await request.body())
        return self._stream(request, lambda emit: emit(self.answers.compare(given.results)))

    async def file(self, request: Request) -> Response:
        number, suffix = request.path_params["number"], request.path_params["suffix"]
        try:
            _, view = self.answers.kept(number)
            if suffix not in (".html", *view.exports):
                raise ValueError(f"an explanation has no file of kind {suffix}")
            content = view.page if suffix == ".html" else await run_in_threadpool(self._drawn, view, suffix)
        except (ValueError, ImportError) as error:
            return PlainTextResponse(sentence(error), 404)
        name = re.sub(r"[^\w.-]+", "_", view.title, flags=re.ASCII).strip("_")[:60] or "explanation"
        disposition = {"Content-Disposition": f'attachment; filename="{name}{suffix}"'}
        return Response(content, media_type=guess_type(f"view{suffix}")[0], headers=disposition)

    def _drawn(self, view: View, suffix: str) -> str | bytes:
        with self.answers.drawing:
            return view.exports[suffix]()

    def list_history(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(self.history.latest())

    def clear_history(self, request: Request) -> Response:  # noqa: ARG002
        self.history.clear()
        return JSONResponse([])

    async def read_history(self, request: Request) -> Response:
        number = request.path_params["number"]

        def read(emit: Emit) -> None:
            record, result = self.history.read(number)
            if record["model"] != self.answers.model_name:
                raise ValueError(f"this explanation is of {record['model']}: start the app with this model to continue")
            emit({**record, **self.answers.keep(result)})

        return self._stream(request, read)

    def _stream(self, request: Request, work: Callable[[Emit], None]) -> Response:
        return StreamingResponse(self._lines(request, work), media_type="application/x-ndjson")

    async def _lines(self, request: Request, work: Callable[[Emit], None]) -> AsyncIterator[str]:
        """Work in a thread, and yield each message as a line; cancel the work when the client disconnects."""
        loop, messages, cancelled = asyncio.get_running_loop(), asyncio.Queue[Message | None](), Event()

        def put(message: Message | None) -> None:
            loop.call_soon_threadsafe(messages.put_nowait, message)

        def check_cancelled(*_: Any) -> None:
            if cancelled.is_set():
                raise Cancelled

        def emit(message: Message) -> None:
            check_cancelled()
            put(message)

        def run() -> None:
            watcher.set(check_cancelled)  # in the thread's copy of the context
            try:
                work(emit)
            except Cancelled:
                pass
            except Exception as error:
                if not isinstance(error, EXPECTED):
                    traceback.print_exc(file=sys.stderr)
                put({"error": sentence(error)})
            finally:
                put(None)

        self.active.add(cancelled)
        loop.run_in_executor(None, copy_context().run, run)
        try:
            while True:
                try:
                    message = await asyncio.wait_for(messages.get(), POLL)
                except asyncio.TimeoutError:  # another class before Python 3.11
                    if self.server.should_exit or await request.is_disconnected():
                        return
                    continue
                if message is None:
                    return
                yield json.dumps(plain(message), allow_nan=False) + "\n"
        finally:
            cancelled.set()
            self.active.discard(cancelled)


def methods() -> list[tuple[str, dict[str, str]]]:
    """Return the names and summaries of the methods in groups: the recommended, and all by family."""
    groups: dict[str, dict[str, str]] = {"recommended": dict(RECOMMENDED)}
    for name, method in METHODS.items():
        groups.setdefault(method.family.replace("_", " "), {})[name] = (method.__doc__ or "").partition("\n")[0]
    return [*groups.items()]


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"error": sentence(error)}, 400)


@dataclass(frozen=True)
class Guard:
    """Refuse requests with another host (DNS rebinding), from other pages (Origin), and of unknown or large size."""

    inner: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        port = scope["server"][1]
        hosts = {f"{host}:{port}" for host in (HOST, "localhost")}
        refused = None
        if headers.get("host") not in hosts:
            refused = PlainTextResponse("the app is at 127.0.0.1", 421)
        elif (origin := headers.get("origin")) and origin.removeprefix("http://") not in hosts:
            refused = PlainTextResponse("the app only accepts requests from its own page", 403)
        elif scope["method"] == "POST" and not headers.get("content-length", "").isdigit():
            refused = JSONResponse({"error": "the request has no Content-Length"}, 411)
        elif int(headers.get("content-length") or 0) > LARGEST:
            refused = JSONResponse({"error": f"the request is longer than {LARGEST:,} bytes"}, 413)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self.inner(scope, receive, with_headers)
