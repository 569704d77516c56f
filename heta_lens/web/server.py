"""The web server of the app: answers on this computer alone, to whoever knows the address with its secret.

An answer is a stream of JSON lines. Whoever closes the connection, by another question or another page, ends the work.
"""

import asyncio
import json
import re
import secrets
import socket
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import uvicorn
from markupsafe import Markup
from safetensors import SafetensorError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from heta_lens._util.html_view import View, html_from
from heta_lens._util.presets import PRESETS
from heta_lens._util.text import plain
from heta_lens._util.work import Cancelled, watched
from heta_lens.methods.registry import METHODS
from heta_lens.plots.attribution_text import headline, kicker
from heta_lens.web.answers import Answers, Question, Tell, WhatIf
from heta_lens.web.history import History

HOST = "127.0.0.1"
LARGEST = 2_000_000  # bytes of a request
LOOK = 0.25  # seconds between two looks whether anybody waits for the answer
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".pdf": "application/pdf",
    ".tex": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}
EXPECTED = (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError, SafetensorError, sqlite3.Error)
HEADERS = [  # of every answer
    (b"referrer-policy", b"no-referrer"),  # the address holds the secret
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
POLICY = (  # no text of a prompt or model may run, and nothing is asked of another server
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this computer alone."""
    listening = socket.socket()
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
    history: History | None
    listening: socket.socket
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    running: set[Event] = field(default_factory=set[Event])  # set to end the work of an answer
    drawing: Lock = field(default_factory=Lock)  # matplotlib's settings are those of the whole process

    def __post_init__(self) -> None:
        routes = [
            Route("/", self.page),
            Route("/write", self.write, methods=["POST"]),
            Route("/explain", self.explain, methods=["POST"]),
            Route("/what-if", self.what_if, methods=["POST"]),
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
        self.ended = Event()  # a thread whose `join` is interrupted may pass for ended
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
        try:
            while not self.ended.wait(1):
                pass
        except KeyboardInterrupt:
            pass
        finally:
            self.stop()

    def stop(self) -> None:
        """End all work, and the server."""
        self.server.should_exit = True
        for ended in [*self.running]:
            ended.set()
        self.ended.wait(10)
        self.listening.close()

    # --------------------------------------------------------------------------------------------------------- requests
    async def page(self, request: Request) -> Response:  # noqa: ARG002
        nonce, model = secrets.token_urlsafe(12), self.answers.model
        adapter = self.answers.adapter
        facts = {
            "methods": methods(),
            "chat": bool(getattr(model.tokenizer, "chat_template", None)),
            "hooks": [name for name in adapter.points if not name.startswith("unembed")],
            "layers": adapter.layers,
            "history": self.history is not None,
        }
        data = Markup(json.dumps(facts).replace("<", "\\u003c"))  # no name may end the script element
        html = html_from("web/page.html", nonce=nonce, model=Path(model.cfg.model_name or "").name, facts=data)
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY.format(nonce=nonce)})

    async def write(self, request: Request) -> Response:
        asked = await request.json()
        question, tokens = Question(asked["prompt"]), int(asked["tokens"])
        return self._stream(request, lambda tell: self.answers.write(question, tokens, tell))

    async def explain(self, request: Request) -> Response:
        asked = await request.json()
        question = Question(**asked["question"])

        def explain(tell: Tell) -> None:
            def keep(line: Any) -> None:
                tell(line)
                if line.get("whole") and self.history and asked.get("remember", True):
                    result = self.answers.result(line["result"])
                    title = f"{headline(result.summed)} · {kicker(result.summed)}"
                    known = {"question": asked["question"], "texts": self.answers.texts(question)}
                    known |= {"method": line["method"], "model": self.answers.model_name}
                    self.history.add(known, title, result)

            self.answers.explain(question, asked["methods"], keep)

        return self._stream(request, explain)

    async def what_if(self, request: Request) -> Response:
        asked = await request.json()
        question, change = Question(**asked["question"]), WhatIf(**asked["change"])
        return self._stream(request, lambda tell: tell(self.answers.what_if(question, change)))

    async def compare(self, request: Request) -> Response:
        asked = await request.json()
        return self._stream(request, lambda tell: tell(self.answers.compared(asked["results"])))

    async def file(self, request: Request) -> Response:
        number, suffix = request.path_params["number"], request.path_params["suffix"]
        try:
            view = self.answers.view(number)
            if suffix not in (".html", *view.exports):
                raise ValueError(f"an explanation has no file of kind {suffix}")
            content = view.page if suffix == ".html" else await run_in_threadpool(self._drawn, view, suffix)
        except (ValueError, ImportError) as error:
            return PlainTextResponse(_sentence(error), 404)
        name = re.sub(r"[^\w.-]+", "_", view.title, flags=re.ASCII).strip("_")[:60] or "explanation"
        disposition = {"Content-Disposition": f'attachment; filename="{name}{suffix}"'}
        return Response(content, media_type=KINDS[suffix], headers=disposition)

    def _drawn(self, view: View, suffix: str) -> str | bytes:
        with self.drawing:
            return view.exports[suffix]()

    def list_history(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(self.history.latest() if self.history else [])

    def clear_history(self, request: Request) -> Response:  # noqa: ARG002
        if self.history:
            self.history.clear()
        return JSONResponse([])

    async def read_history(self, request: Request) -> Response:
        number = request.path_params["number"]

        def read(tell: Tell) -> None:
            if self.history is None:
                raise ValueError("the app was started without --state FILE, and keeps no history")
            known, result = self.history.read(number)
            if known["model"] != self.answers.model_name:
                raise ValueError(f"this explanation is of {known['model']}: start the app with that model to go on")
            tell({**known, **self.answers.shown(result)})

        return self._stream(request, read)

    def _stream(self, request: Request, work: Callable[[Tell], None]) -> Response:
        return StreamingResponse(self._lines(request, work), media_type="application/x-ndjson")

    async def _lines(self, request: Request, work: Callable[[Tell], None]) -> AsyncIterator[str]:
        """Do the work in a thread, and yield what it tells; end it when nobody waits any more."""
        loop, told, ended = asyncio.get_running_loop(), asyncio.Queue[Any](), Event()

        def tell(line: Any) -> None:
            if ended.is_set():
                raise Cancelled
            loop.call_soon_threadsafe(told.put_nowait, line)

        def watch(kind: str, rows: int) -> None:  # noqa: ARG001
            if ended.is_set():
                raise Cancelled

        def run() -> None:
            watched.set(watch)  # of this thread's own context
            try:
                work(tell)
            except Cancelled:
                return
            except Exception as error:
                if not isinstance(error, EXPECTED):
                    traceback.print_exc(file=sys.stderr)
                loop.call_soon_threadsafe(told.put_nowait, {"error": _sentence(error)})
            finally:
                loop.call_soon_threadsafe(told.put_nowait, None)

        self.running.add(ended)
        loop.run_in_executor(None, copy_context().run, run)
        try:
            while True:
                try:
                    line = await asyncio.wait_for(told.get(), LOOK)
                except asyncio.TimeoutError:  # another class before Python 3.11
                    if self.server.should_exit or await request.is_disconnected():
                        return
                    continue
                if line is None:
                    return
                yield json.dumps(plain(line), ensure_ascii=True, allow_nan=False) + "\n"
        finally:
            ended.set()
            self.running.discard(ended)


def methods() -> list[tuple[str, dict[str, str]]]:
    """Return the methods with what they are, in groups: the recommended ones, and the others by family."""
    groups: dict[str, dict[str, str]] = {"recommended": {name: preset.when for name, preset in PRESETS.items()}}
    for name, method in METHODS.items():
        groups.setdefault(method.family.replace("_", " "), {})[name] = (method.__doc__ or "").partition("\n")[0]
    return [*groups.items()]


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError) or "out of memory" in str(error):
        return "the memory is full: take a shorter prompt, or another method"
    return str(error) if isinstance(error, EXPECTED) and str(error) else f"{type(error).__name__}: {error}"


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"error": _sentence(error)}, 400)


@dataclass(frozen=True)
class Guard:
    """Refuse requests for another host (a page may give this address a name of its own) and from other pages."""

    inner: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        port = scope["server"][1]
        hosts = {f"{host}:{port}" for host in (HOST, "localhost")}
        refused = None
        if headers.get("host") not in hosts:
            refused = PlainTextResponse("the app answers at 127.0.0.1 alone", 421)
        elif (origin := headers.get("origin")) and origin.removeprefix("http://") not in hosts:
            refused = PlainTextResponse("the app answers its own page alone", 403)
        elif scope["method"] == "POST" and not headers.get("content-length", "").isdigit():
            refused = JSONResponse({"error": "a request says how long it is"}, 411)
        elif int(headers.get("content-length") or 0) > LARGEST:
            refused = JSONResponse({"error": f"this is longer than {LARGEST:,} bytes"}, 413)
        if refused is not None:
            await refused(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self.inner(scope, receive, with_headers)
