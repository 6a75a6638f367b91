"""Requests that do not end while something fails, and what became of each."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Iterable

PATIENCE = 120.0


class CutError(OSError):
    """An answer that is streamed ended before it was whole."""


def complete(url: str, body: dict, timeout: float = PATIENCE, key: str = "") -> dict:
    """What a server answers to a chat or a completion; one that is streamed is put together to what it would be else."""
    path = "chat/completions" if "messages" in body else "completions"
    streamed = {"stream_options": {"include_usage": True}} if body.get("stream") else {}
    content = json.dumps({"model": "story-10m", **body, **streamed}).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"{url}/v1/{path}", content, headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return together(answer) if streamed else json.load(answer)


def drafted(url: str, body: dict) -> int:
    """Tokens that drafts guess for a request that wants them to; else targets decide whether it pays at the moment."""
    return complete(url, {**body, "foretoken": {"lookahead": 4}})["usage"]["foretoken"]["drafted"]


def together(lines: Iterable[bytes]) -> dict:
    """The parts of an answer as they come, as one."""
    said, message, reason, usage, done = "", {}, None, None, False
    for line in lines:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            done = True
            break
        part = json.loads(line.removeprefix(b"data: "))
        if "error" in part:
            raise CutError(f"an error amid a stream: {part['error']}")
        usage = part.get("usage") or usage
        for choice in part.get("choices", []):
            said += choice.get("text", "")
            for key, value in choice.get("delta", {}).items():
                message[key] = message.get(key, "") + value if key == "content" else value
            reason = choice.get("finish_reason") or reason
    if not done or reason is None or usage is None:
        raise CutError(f"a stream ended after {said or message!r}")
    choice = {"message": message} if message else {"text": said}
    return {"choices": [{**choice, "finish_reason": reason}], "usage": usage}


def said(answer: dict) -> tuple:
    """What of an answer may never depend on who gave it."""
    choice = answer["choices"][0]
    return choice.get("text"), choice.get("message"), choice["finish_reason"]


@dataclass
class Stream:
    """Clients that ask one request after the other until they are told to stop."""

    urls: list[str]
    bodies: list[dict]
    # What is said to each body; empty: whatever it is.
    expected: list[tuple]
    # Requests at a time to each address: what is in flight when something fails.
    each: int = 2
    # How often a request is made again whose connection broke: as OpenAI's client libraries do.
    again: int = 0
    done: int = 0
    drafted: int = 0
    broken: int = 0
    failures: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def __enter__(self) -> Stream:
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.turns = itertools.count()
        self.clients = [threading.Thread(target=self.client, args=(url,)) for url in self.urls for _ in range(self.each)]
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for client in self.clients:
            client.join()

    def client(self, url: str) -> None:
        """Asks until told to stop; what is in flight then is waited for."""
        while not self.stopping.is_set():
            which = next(self.turns) % len(self.bodies)
            begin = time.monotonic()
            try:
                answer = self.ask(url, self.bodies[which])
            except (OSError, ValueError, http.client.HTTPException) as error:
                detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
                with self.lock:
                    self.failures.append(f"{url} after {time.monotonic() - begin:.2f} s: {error} {detail}")
                # Whoever is refused at once would else ask a thousand times.
                self.stopping.wait(0.2)
                continue
            with self.lock:
                self.done += 1
                self.drafted += answer["usage"]["foretoken"]["drafted"]
                if self.expected and said(answer) != self.expected[which]:
                    self.changes.append(f"{url} {self.bodies[which]}: {said(answer)} instead of {self.expected[which]}")

    def ask(self, url: str, body: dict) -> dict:
        for attempt in range(self.again + 1):
            try:
                return complete(url, body)
            except urllib.error.HTTPError:
                raise
            except (OSError, http.client.HTTPException):
                if attempt == self.again:
                    raise
                with self.lock:
                    self.broken += 1
                self.stopping.wait(0.5 * 2**attempt)
        raise AssertionError("there is an answer or an error")

    def more(self, count: int) -> None:
        """Waits for so many more answers."""
        until, enough = time.monotonic() + PATIENCE, self.done + count
        while self.done < enough and time.monotonic() < until:
            time.sleep(0.01)
