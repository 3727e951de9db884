"""`check_server` against small servers that keep their promise, break it, or speak less."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from samebits.check.server import Answer, Difference, ServerError, check_server, first_difference
from samebits.cli import app


class Small(ThreadingHTTPServer):
    """Answers with a function of the request, and as told with one of the company too."""

    request_queue_size = 256

    def __init__(self, follows_company: bool, paths: tuple[str, ...], logprobs: bool, takes: Any):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.follows_company, self.paths, self.logprobs, self.takes = (
            follows_company, paths, logprobs, takes,
        )  # fmt: skip
        self.busy = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: Small

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, body: Any, code: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            data = b'vllm:num_preemptions_total{model="m"} 3.0\n'
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data)
        else:
            self.reply({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.removeprefix("/v1/")
        if path not in self.server.paths:
            self.reply({}, 404)
        elif not self.server.logprobs and "logprobs" in body:
            self.reply({"error": "logprobs are not supported"}, 422)
        elif not self.server.takes(body):
            self.reply({"error": "unsupported option"}, 400)
        else:
            self.answer(path, body)

    def answer(self, path: str, body: dict[str, Any]) -> None:
        with self.server.lock:
            self.server.busy += 1
            company = self.server.busy
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        seed = f"{prompt} {body.get('seed')} {body['temperature']}"
        tokens = [f"t{hash((seed, i)) % 97}" for i in range(body["max_tokens"])]
        values = [-0.25 * (hash((seed, -i)) % 9) for i in range(len(tokens))]
        threading.Event().wait(0.002)
        if self.server.follows_company and company > 2:
            values[3:] = [x - 1e-6 for x in values[3:]]
        with self.server.lock:
            self.server.busy -= 1
        text = "".join(tokens)
        if path == "completions":
            found = {"tokens": tokens, "token_logprobs": values}
            choice: dict[str, Any] = {"text": text, "logprobs": found}
        else:
            pairs = [{"token": t, "logprob": x} for t, x in zip(tokens, values, strict=True)]
            choice = {"message": {"content": text}, "logprobs": {"content": pairs}}
        if "logprobs" not in body:
            choice["logprobs"] = None
        self.reply({"choices": [choice]})


@contextmanager
def serving(
    *,
    follows_company: bool = False,
    paths: tuple[str, ...] = ("completions", "chat/completions"),
    logprobs: bool = True,
    takes: Any = lambda body: True,
) -> Iterator[str]:
    server = Small(follows_company, paths, logprobs, takes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_answers_alike_passes() -> None:
    with serving() as url:
        report = check_server(url, concurrency=(1, 6), repeats=2, tokens=8)
    assert report.exit_status == 0 and report.logprobs and report.model == "m"
    assert [(r.sent, r.same) for r in report.rounds] == [(2, 2)] * 8
    assert report.others > 0 and report.counters == {"preemptions": 0}
    assert json.loads(report.to_json())["exit_status"] == 0


def test_a_logarithm_that_follows_the_company_is_found() -> None:
    with serving(follows_company=True) as url:
        report = check_server(url, concurrency=(1, 12), repeats=4, tokens=8)
    assert report.exit_status == 1
    assert all(r.same == r.sent for r in report.rounds if r.concurrency == 1)
    found = [r.first for r in report.rounds if r.first is not None]
    assert found and {d.token for d in found} == {3}
    assert all(d.alone[0] == d.among[0] and d.alone[1] != d.among[1] for d in found)


@pytest.mark.parametrize("logprobs", [True, False])
def test_a_server_with_chat_only(logprobs: bool) -> None:
    with serving(paths=("chat/completions",), logprobs=logprobs) as url:
        report = check_server(url, concurrency=(3,), repeats=1, tokens=5)
    assert report.exit_status == 0 and report.logprobs is logprobs


def test_options_that_a_server_does_not_take_are_named() -> None:
    with serving(takes=lambda body: "presence_penalty" not in body) as url:
        report = check_server(url, concurrency=(2,), repeats=1, tokens=5)
    assert report.refused == ["penalties"] and report.exit_status == 0


def test_what_is_no_such_server_is_said() -> None:
    with serving(paths=()) as url, pytest.raises(ServerError, match="404") as refused:
        check_server(url)
    assert str(refused.value).count("answers 404") == 2  # a refusal a path, each said once
    with pytest.raises(ServerError, match="starts with http"):
        check_server("localhost:8000")
    with pytest.raises(ServerError, match="does not answer"):
        check_server("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("among", "found"),
    [
        (Answer("ab", ("a", "b"), (-1.0, -2.0)), None),
        (Answer("ab", ("a", "b"), (-1.0, -2.5)), Difference(1, ("b", -2.0), ("b", -2.5))),
        (Answer("ac", ("a", "c"), (-1.0, -2.0)), Difference(1, ("b", -2.0), ("c", -2.0))),
        (Answer("a", ("a",), (-1.0,)), Difference(1, ("b", -2.0), ("", None))),
    ],
)
def test_the_first_difference(among: Answer, found: Difference | None) -> None:
    assert first_difference(Answer("ab", ("a", "b"), (-1.0, -2.0)), among) == found


def test_texts_are_compared_where_there_are_no_tokens() -> None:
    assert first_difference(Answer("abc"), Answer("abd")) == Difference(2, ("c", None), ("d", None))


def test_the_command_says_what_it_found() -> None:
    with serving(follows_company=True) as url:
        run = CliRunner().invoke(app, ["check", "--server", url])
    assert run.exit_code == 1
    assert "the first difference is at token 3" in run.output and "preemptions" in run.output
    run = CliRunner().invoke(app, ["check", "--server", "http://127.0.0.1:9"])
    assert run.exit_code == 2 and "does not answer" in run.output
