"""The app's server: who is answered, what is ended, and what outlives it."""

import json
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import heta_lens
from heta_lens._util import python
from heta_lens.cli.web import run_app
from heta_lens.web import app
from heta_lens.web.answers import Answers
from heta_lens.web.history import History
from heta_lens.web.server import LARGEST, App

PATIENCE = 300  # seconds until something counts as hung


def lines(running: App, path: str, asked: Any) -> list[Any]:
    """What comes back, but for the progress, which a fast machine sends none of."""
    with httpx.stream("POST", running.address + path, json=asked, timeout=PATIENCE) as response:
        return [line for line in map(json.loads, response.iter_lines()) if "runs" not in line]


def asking(story: str, *methods: str) -> Any:
    return {"question": {"prompt": story, "at": 0}, "methods": methods or ["fast"]}


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def hooked(model: Any) -> bool:
    return any(point.fwd_hooks or point.bwd_hooks for point in model.hook_dict.values())


def test_the_page_is_for_whoever_knows_the_address(running: App) -> None:
    page = httpx.get(running.address)
    assert page.status_code == 200 and "<h1>heta_lens</h1>" in page.text
    root = running.address.removesuffix(running.secret + "/")
    assert [httpx.get(root + path).status_code for path in ("", "explain", "x" * len(running.secret) + "/")] == [
        404
    ] * 3


def test_other_hosts_and_other_pages_are_refused(running: App, story: str) -> None:
    port = running.address.split(":")[2].partition("/")[0]
    asked = {"json": asking(story), "timeout": PATIENCE}
    path = running.address + "explain"
    assert httpx.post(path, headers={"Host": f"evil.example:{port}"}, **asked).status_code == 421
    assert httpx.post(path, headers={"Origin": "http://evil.example"}, **asked).status_code == 403
    assert httpx.post(path, headers={"Origin": "null"}, **asked).status_code == 403
    assert httpx.post(path, headers={"Origin": f"http://127.0.0.1:{port}"}, **asked).status_code == 200
    assert httpx.post(path, content=b" " * (LARGEST + 1)).status_code == 413
    assert httpx.post(path, content=iter([b"{}"])).status_code == 411
    assert httpx.post(path, content=b"no JSON").json().keys() == {"error"}


def test_no_path_leads_out_of_the_page(running: App) -> None:
    port = running.listening.getsockname()[1]
    paths = ["../", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "files/../server.py", "files/1/../../page.js"]
    paths += ["files/..%2f..%2fetc%2fpasswd", "files/1.html/../../../etc/passwd", "history/../../etc/passwd"]
    for path in paths:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)  # sends the path as it is
        connection.request("GET", f"/{running.secret}/{path}")
        assert connection.getresponse().status == 404, path
        connection.close()


def test_many_requests_at_a_time_are_answered(running: App) -> None:
    asked = {"question": {"prompt": "Alba kept the pan in the", "at": 0}, "methods": ["recency"]}
    with ThreadPoolExecutor(20) as pool:
        found = [*pool.map(lambda _: lines(running, "explain", asked), range(100))]
    assert all(line.get("whole") for (line,) in found), found
    assert len({line["html"] for (line,) in found}) == 1 and len({line["result"] for (line,) in found}) == 100
    assert until(lambda: not running.active)


def test_no_text_of_the_page_may_run_and_nothing_else_is_asked(running: App) -> None:
    first, second = (httpx.get(running.address) for _ in range(2))
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "'unsafe-inline'" not in policy.partition("script-src")[2].split(";")[0]
    assert policy != second.headers["content-security-policy"]
    assert first.headers["referrer-policy"] == "no-referrer"


def test_the_server_listens_on_this_computer_alone(running: App) -> None:
    connections = psutil.Process().net_connections("inet")
    own = [each.laddr.ip for each in connections if each.laddr.port == running.listening.getsockname()[1]]
    assert {*own} == {"127.0.0.1"}


def test_a_message_is_sent_at_once(running: App) -> None:
    with httpx.Client() as client:
        assert client.get(running.address).status_code == 200
        (connection,) = running.server.server_state.connections
        opened: Any = connection
        assert opened.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_explanations_come_as_they_are_there(running: App, story: str) -> None:
    found = [line for line in lines(running, "explain", asking(story, "fast", "heta")) if "html" in line]
    assert [(line["method"], line["whole"]) for line in found] == [("fast", True), ("heta", False), ("heta", True)]
    _, view = running.answers.kept(found[0]["result"])
    saved = httpx.get(f"{running.address}files/{found[0]['result']}.csv")
    assert saved.content == view.exports[".csv"]().encode() and "attachment" in saved.headers["content-disposition"]
    assert httpx.get(f"{running.address}files/{found[0]['result']}.html").text == view.page
    assert httpx.get(f"{running.address}files/{found[0]['result']}.exe").status_code == 404
    assert (
        httpx.get(f"{running.address}files/999.html").text
        == "this explanation is no longer kept: explain the token again"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prompt": "zebra"}, "this model has no token for 'zebra'"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "Anna .", "written": [10**9]}, "written=1000000000 is not a token id of this model"),
        ({"prompt": "Anna .", "target": {"hook": "blocks.99", "index": 1}}, "this model has no such hook point"),
        ({"prompt": [{"role": "user", "content": "Anna"}]}, "chat template"),
    ],
)
def test_errors_are_sentences_and_the_server_lives(running: App, story: str, asked: Any, message: str) -> None:
    (line,) = lines(running, "explain", {"question": {"at": 0, **asked}, "methods": ["fast"]})
    assert message in line["error"]
    assert lines(running, "explain", asking(story))[-1]["whole"]


def test_a_full_memory_is_a_sentence(running: App, story: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: out of memory")

    monkeypatch.setattr(Answers, "explain", full)
    (line,) = lines(running, "explain", asking(story))
    assert line == {"error": "the memory is full: take a shorter prompt, or another method"}


def test_whoever_leaves_ends_the_work(running: App, story: str) -> None:
    begun = asking(story, "fast", *["heta"] * 50)
    with httpx.stream("POST", running.address + "explain", json=begun, timeout=PATIENCE) as response:
        told = response.iter_lines()
        next(told)
        assert len(running.active) == 1
    assert until(lambda: not running.active) and until(lambda: not hooked(running.answers.model))
    assert lines(running, "explain", asking(story))[-1]["whole"]


def test_whoever_waits_for_the_model_can_leave_too(running: App, story: str) -> None:
    with heta_lens.model.lock.holding(running.answers.model):
        with httpx.stream("POST", running.address + "explain", json=asking(story), timeout=PATIENCE) as response:
            told = response.iter_lines()
            assert json.loads(next(told))["waiting"]
        assert until(lambda: not running.active)
        threads = [each for each in threading.enumerate() if each.name.startswith("asyncio")]
        assert until(lambda: not any("explain" in frames(each) for each in threads))


def frames(thread: threading.Thread) -> set[str]:
    frame, names = sys._current_frames().get(thread.ident or 0), set[str]()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_two_tabs_do_not_disturb_each_other(running: App, story: str) -> None:
    other = story.replace("Answer:", "Answer :")
    found: dict[str, list[Any]] = {}
    threads = [
        threading.Thread(target=lambda text=text: found.update({text: lines(running, "explain", asking(text, "heta"))}))
        for text in (story, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for text in (story, other):
        result = running.answers.result(found[text][-1]["result"]).summed
        ids = running.answers.model.to_tokens(text)
        cache = running.answers.model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]
        assert result.scores.equal(heta_lens.attribute(cache, tokens=ids).scores)


def test_stopping_ends_work_and_leaves_no_hook(demo: Any, story: str) -> None:
    running = app(demo, browser=False)
    told: list[Any] = []

    def ask() -> None:
        with httpx.stream(
            "POST", running.address + "explain", json=asking(story, *["heta"] * 50), timeout=PATIENCE
        ) as reply:
            told.extend(reply.iter_lines())

    thread = threading.Thread(target=ask)
    thread.start()
    assert until(lambda: bool(running.active))
    running.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive() and until(running.ended.is_set)
    assert sum('"whole": true' in line for line in told) < 50
    assert until(lambda: not hooked(demo))
    with pytest.raises(httpx.ConnectError):
        httpx.get(running.address)


def test_history_outlives_the_server(demo: Any, story: str, tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    first = app(demo, browser=False, state=state)
    explained = lines(first, "explain", asking(story))[-1]
    span = {"question": {"prompt": story, "written": [222, 4], "at": None}, "methods": ["fast"]}
    lines(first, "explain", span)
    first.stop()
    second = app(demo, browser=False, state=state)
    try:
        listed = httpx.get(second.address + "history").json()
        assert listed[1]["title"].startswith("Why “jar”? · fast") and listed[1]["prompt"] == f"…{story[-69:]}"
        assert explained["whole"] and len(listed) == 2
        (restored,) = lines(second, f"history/{listed[1]['number']}", {})
        assert restored["html"] == explained["html"] and restored["question"]["prompt"] == story
        assert restored["method"] == "fast"
        (restored,) = lines(second, f"history/{listed[0]['number']}", {})
        assert restored["texts"] == [" jar", "."] and isinstance(
            second.answers.result(restored["result"]), heta_lens.SpanAttribution
        )
        assert lines(second, "history/99", {}) == [{"error": "explanation 99 is not in the history"}]
        httpx.delete(second.address + "history")
        assert httpx.get(second.address + "history").json() == []
    finally:
        second.stop()


def test_an_explanation_of_another_model_is_not_gone_on_with(demo: Any, story: str, tmp_path: Path) -> None:
    running = app(demo, browser=False, state=tmp_path / "state.db")
    lines(running, "explain", asking(story))
    weights = demo.unembed.W_U.data
    weights += 1
    try:
        (line,) = lines(running, "history/1", {})
        assert line["error"].startswith("this explanation is of ")
    finally:
        weights -= 1
        running.stop()


def test_a_full_history_does_not_take_the_explanation(demo: Any, story: str, tmp_path: Path) -> None:
    running = app(demo, browser=False, state=tmp_path / "state.db")
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("DROP TABLE explanations")
    explained, failed = lines(running, "explain", asking(story))
    running.stop()
    assert explained["whole"] and "no such table" in failed["error"]


def test_whoever_waits_is_told(running: App, story: str) -> None:
    with ExitStack() as lock:
        lock.enter_context(heta_lens.model.lock.holding(running.answers.model))
        with httpx.stream("POST", running.address + "explain", json=asking(story), timeout=PATIENCE) as response:
            told = map(json.loads, response.iter_lines())
            assert next(told)["waiting"]
            lock.close()
            assert [*told][-1]["whole"]


def test_without_a_file_the_history_ends_with_the_app(running: App, story: str) -> None:
    explained = lines(running, "explain", asking(story))[-1]
    assert httpx.get(running.address + "history").json()[0]["number"] == explained["entry"]
    (restored,) = lines(running, f"history/{explained['entry']}", {})
    assert restored["html"] == explained["html"]
    httpx.delete(running.address + "history")
    assert lines(running, f"history/{explained['entry']}", {}) == [
        {"error": f"explanation {explained['entry']} is not in the history"}
    ]
    again = lines(running, "explain", asking(story))[-1]
    assert again["entry"] > explained["entry"], "a number that a page remembers never means another explanation"


def test_a_history_is_for_its_owner_alone(tmp_path: Path) -> None:
    new, existing = tmp_path / "new.db", tmp_path / "existing.db"
    existing.touch(mode=0o644)
    existing.chmod(0o644)
    for path in (new, existing):
        History(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


def test_no_number_is_too_large_for_the_history(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(10**30)):
        History(tmp_path / "state.db").read(10**30)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a text of some length " * 50)
    path.chmod(0o644)
    with pytest.raises(ValueError, match=r"notes\.txt cannot hold the history"):
        History(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_text().startswith("not a database")


def test_a_port_in_use_is_refused(demo: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be opened"):
            app(demo, port=port, browser=False)


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match="TransformerLens"):
        app("gpt2", browser=False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("of", [app, run_app])
def test_a_package_that_is_missing_is_named_with_its_command(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install '\.\[app\]'"):
        of(model="no such model", **({"loading": None} if of is run_app else {}))


@pytest.mark.slow
def test_the_command_prints_an_address_and_ctrl_c_ends_it(story: str) -> None:
    command = [sys.executable, "-m", "heta_lens", "app", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert httpx.get(address).status_code == 200
        with httpx.stream("POST", address + "explain", json=asking(story, *["heta"] * 50), timeout=PATIENCE) as reply:
            told = reply.iter_lines()
            next(told)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0 and output == ""
    assert "Traceback" not in errors


INJECTED = [
    *("<script>document.title = 'hurt'</script>", "</script><img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "${1+1}"),
    *("\u202eright to left", "👩\u200d👩\u200d👧", "a\x00b", "x" * 10_000, "'; DROP TABLE explanations; --", "\ud800"),
    *("\n\n\n", "&lt;b&gt;", "]]>", "<!-- ", "%s %d", "\\u003cscript\\u003e", "‮", "\x1b[31m", "javascript:alert(1)"),
]


@pytest.mark.parametrize("text", INJECTED, ids=range(len(INJECTED)))
def test_a_prompt_is_only_text(running: App, text: str) -> None:
    content = json.dumps({"prompt": text, "tokens": 1})
    with httpx.stream("POST", running.address + "write", content=content, timeout=PATIENCE) as response:
        told = [json.loads(line) for line in response.iter_lines()]
    assert told and all(set(line) <= {"token", "text", "error"} for line in told)
    assert httpx.get(running.address).status_code == 200


def injected(where: str, text: str, story: str) -> tuple[str, Any]:
    """A request with a text in one of its places."""
    question: Any = {"prompt": story, "at": 0}
    change: Any = {"positions": [3], "how": "replace", "text": text}
    match where:
        case "target":
            question["target"] = {"text": text}
        case "against":
            question["target"] = {"text": " jar", "against": text}
        case "hook":
            question["target"] = {"hook": text, "index": 0}
        case "role":
            question["prompt"] = [{"role": text, "content": story}]
        case "replacement":
            return "change", {"question": question, "change": change}
        case "counterfactual":
            return "change", {"question": question, "change": {**change, "how": "patch", "counterfactual": text}}
    return "explain", {"question": question, "methods": [text if where == "method" else "recency"]}


@pytest.mark.parametrize("where", ["target", "against", "hook", "role", "replacement", "counterfactual", "method"])
def test_any_text_in_any_place_is_a_sentence_or_an_answer(running: App, story: str, where: str) -> None:
    for text in INJECTED:
        path, asked = injected(where, text, story)
        with httpx.stream("POST", running.address + path, content=json.dumps(asked), timeout=PATIENCE) as response:
            told = [json.loads(line) for line in response.iter_lines()]
        assert told and {"error", "result", "drop"} & told[-1].keys(), (where, text)  # progress may come before
    assert not hooked(running.answers.model)


@pytest.mark.thorough
def test_memory_is_flat_over_many_questions(running: App, story: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("jaxtyping_packages"):
        pytest.skip("type checks keep a compiled copy of every inner function that a question defines")
    process, sizes = psutil.Process(), list[int]()
    for number in range(500):
        lines(running, "explain", asking(story.replace("Answer:", "Answer : " * (number % 7)), "fast"))
        if number % 100 == 99:
            sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[1] < 30_000_000, sizes
