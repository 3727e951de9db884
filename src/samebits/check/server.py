"""A server from outside: is a request's answer the same alone and among others?

Any endpoint with OpenAI's ``/v1/completions`` or ``/v1/chat/completions`` will do; nothing is asked
of the server but answers. Requests of several kinds (greedy, seeded, with penalties) are sent alone
first. Then others keep the server busy: lengths, options and seeds drawn at random, some with the
beginning of the same prompt, so many at a time that a small cache overflows. Meanwhile the first
requests are sent again, and every token and logarithm has to be the same, digit for digit.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from samebits.check.runner import Progress
from samebits.errors import SamebitsError

Tell = Callable[[Progress], None]

#: Requests at a time that a check goes through.
CONCURRENCY = (1, 4, 16, 64)
#: What is asked of a needle beside its length: options that every such server knows.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "top-p": {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    "penalties": {
        "temperature": 0.7, "seed": 13, "presence_penalty": 0.5, "frequency_penalty": 0.3,
    },
}  # fmt: skip
_WORDS = (
    "the a river stone light under seven green often walks never house of and bread to quiet",
    "morning which letter blue from paper open with garden by winter small glass four on road",
    "salt it was engine that north carries long after field is more than before",
)
_PROMPT_WORDS = 200  # some pages of any cache
_METRICS = {
    "preemptions": "vllm:num_preemptions_total",
    "prefix hits": "vllm:prefix_cache_hits_total",
}


class ServerError(SamebitsError):
    """The server does not answer, or not as an OpenAI-compatible one does."""


@dataclass(frozen=True)
class Answer:
    """One answer: its tokens and their logarithms where the server gives them, else its text."""

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Where an answer first leaves the one that the request had alone.

    Attributes:
        token: number of the token, from 0; of the character, where there are no tokens.
        alone, among: token and logarithm there.
    """

    token: int
    alone: tuple[str, float | None]
    among: tuple[str, float | None]


@dataclass
class Round:
    """What a kind of request went through at one concurrency."""

    kind: str
    concurrency: int
    sent: int = 0
    same: int = 0
    first: Difference | None = None


@dataclass
class ServerReport:
    """The outcome of a check.

    Attributes:
        logprobs: the server gave logarithms; else texts were compared.
        rounds: one for each kind of request and concurrency.
        others: requests that kept the server busy meanwhile.
        refused: kinds of requests that the server does not take.
        counters: what the server's own metrics counted meanwhile, where it has any.
    """

    url: str
    model: str
    logprobs: bool
    seconds: float = 0.0
    others: int = 0
    rounds: list[Round] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """0: every answer was the same; 1: one was not."""
        return int(any(r.same < r.sent for r in self.rounds))

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"exit_status": self.exit_status}, indent=2)


class Client:
    """Sends requests to one model of one server."""

    def __init__(self, url: str, model: str | None = None, timeout: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ServerError(f"{url}: give an address that starts with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        self.model = model or self._first_model()
        self._chat, self.logprobs = self._form()

    def complete(self, prompt: str, tokens: int, options: dict[str, Any]) -> Answer:
        """The answer to `prompt`, of at most `tokens` tokens.

        Raises:
            ServerError: there is none.
        """
        body = {"model": self.model, "max_tokens": tokens, **options}
        if self._chat:
            body["messages"] = [{"role": "user", "content": prompt}]
            if self.logprobs:
                body["logprobs"] = True
            return _chat(self._post("chat/completions", body))
        body["prompt"] = prompt
        if self.logprobs:
            body["logprobs"] = 1
        return _completion(self._post("completions", body))

    def _form(self) -> tuple[bool, bool]:
        """Whether answers come from the chat path, and whether they have logarithms: the first way
        in which the server answers at all.
        """
        refusals = []
        for self._chat, self.logprobs in (
            (False, True),
            (False, False),
            (True, True),
            (True, False),
        ):
            try:
                found = self.complete("one two three", 2, {"temperature": 0.0})
                return self._chat, self.logprobs and bool(found.logprobs)
            except ServerError as error:  # noqa: PERF203
                refusals.append(str(error))
        raise ServerError("; ".join(dict.fromkeys(refusals)))

    def counters(self) -> dict[str, int]:
        """What the server's metrics page counts of what a check wants to happen."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=self.timeout) as page:
                lines = page.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return {}
        found: dict[str, int] = {}
        for name, metric in _METRICS.items():
            values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(metric)]
            if values:
                found[name] = int(sum(map(float, values)))
        return found

    def _first_model(self) -> str:
        found = self._send(urllib.request.Request(f"{self.url}/v1/models"))
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ServerError(f"{self.url}/v1/models names no model") from None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._send(urllib.request.Request(f"{self.url}/v1/{path}", data, headers))

    def _send(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace")
            raise ServerError(f"{request.full_url} answers {error.code}: {said}") from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise ServerError(f"{request.full_url} does not answer: {error}") from None


def _completion(body: Any) -> Answer:
    try:
        choice = body["choices"][0]
        found = choice.get("logprobs") or {}
        return Answer(
            choice["text"], tuple(found.get("tokens") or ()),
            tuple(found.get("token_logprobs") or ()),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"not an answer of /v1/completions: {str(body)[:300]}") from None


def _chat(body: Any) -> Answer:
    try:
        choice = body["choices"][0]
        found = (choice.get("logprobs") or {}).get("content") or ()
        return Answer(
            choice["message"]["content"] or "", tuple(x["token"] for x in found),
            tuple(x["logprob"] for x in found),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"not an answer of /v1/chat/completions: {str(body)[:300]}") from None


def first_difference(alone: Answer, among: Answer) -> Difference | None:
    """The first token or logarithm in which two answers differ; None if they are the same."""
    a, b = (x.tokens or tuple(x.text) for x in (alone, among))
    for i in range(max(len(a), len(b))):
        left, right = _at(alone, a, i), _at(among, b, i)
        if left != right:
            return Difference(i, left, right)
    return None


def _at(answer: Answer, parts: Sequence[str], i: int) -> tuple[str, float | None]:
    part = parts[i] if i < len(parts) else ""
    return part, answer.logprobs[i] if answer.tokens and i < len(answer.logprobs) else None


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(rng.choice(_WORDS).split()) for _ in range(words))


class _Traffic:
    """Requests of others. Each is drawn from the generator of its sender."""

    def __init__(
        self, client: Client, prompts: Sequence[str], options: Sequence[dict[str, Any]], tokens: int
    ) -> None:
        self._client, self._prompts, self._options = client, prompts, options
        self._tokens = tokens
        self._stop = threading.Event()
        self.sent = 0
        self.errors: list[str] = []

    @contextmanager
    def of(self, senders: int, seed: int) -> Iterator[None]:
        """So many others at any time."""
        self._stop.clear()
        with ThreadPoolExecutor(max(senders, 1)) as pool:
            for i in range(senders):
                pool.submit(self._send, random.Random(f"{seed} {i}"))
            try:
                yield
            finally:
                self._stop.set()

    def _send(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            prompt = _text(rng, rng.choice((3, 20, 60, 150, 300)))
            if rng.random() < 0.3:  # behind the beginning of a needle's prompt
                start = rng.choice(self._prompts).split()
                prompt = " ".join(start[: rng.randrange(1, len(start))]) + " " + prompt[:200]
            options = dict(rng.choice(self._options))
            if "seed" in options:
                options["seed"] = rng.randrange(2**31)
            try:
                self._client.complete(prompt, rng.randrange(1, 4 * self._tokens), options)
                self.sent += 1
            except ServerError as error:
                self.errors.append(str(error))
                if len(self.errors) > 20:
                    return


def check_server(
    url: str,
    *,
    model: str | None = None,
    concurrency: Sequence[int] = CONCURRENCY,
    repeats: int = 3,
    tokens: int = 24,
    seed: int = 0,
    progress: Tell | None = None,
) -> ServerReport:
    """Sends requests alone and among others, and compares the answers.

    Args:
        url: of an OpenAI-compatible server, with or without ``/v1``.
        model: its name there; None: the first one that the server names.
        concurrency: how many requests are on their way at a time, the one in question included.
        repeats: how often each kind of request is sent at each concurrency.
        tokens: length of the answers.
        seed: of the prompts and of what others send.

    Raises:
        ServerError: the server does not answer.
    """
    tell = progress or (lambda step: None)
    client, start = Client(url, model), time.monotonic()
    rng = random.Random(seed)
    prompts = {kind: _text(rng, _PROMPT_WORDS) for kind in KINDS}
    before, report = client.counters(), ServerReport(client.url, client.model, client.logprobs)
    alone: dict[str, Answer] = {}
    for kind, options in KINDS.items():
        try:
            alone[kind] = client.complete(prompts[kind], tokens, options)
        except ServerError:  # noqa: PERF203
            if kind == "greedy":
                raise
            report.refused.append(kind)
    total, done = len(concurrency) * repeats * len(alone), 0
    traffic = _Traffic(client, list(prompts.values()), [KINDS[kind] for kind in alone], tokens)
    for count in concurrency:
        rounds = {kind: Round(kind, count) for kind in alone}
        with traffic.of(count - 1, seed + count):
            for _ in range(repeats):
                for kind, found in rounds.items():
                    tell(Progress(done, total, f"{count} at a time, {kind}"))
                    done += 1
                    time.sleep(rng.random() * 0.2 if count > 1 else 0.0)
                    answer = client.complete(prompts[kind], tokens, KINDS[kind])
                    different = first_difference(alone[kind], answer)
                    found.sent += 1
                    found.same += different is None
                    found.first = found.first or different
        report.rounds += rounds.values()
        if len(traffic.errors) > 20:
            raise ServerError(f"the server refuses what others send: {traffic.errors[0]}")
    report.others = traffic.sent
    report.counters = {
        name: value - before.get(name, 0) for name, value in client.counters().items()
    }
    report.seconds = round(time.monotonic() - start, 1)
    return report
