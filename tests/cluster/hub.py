"""A hub of models on this machine, for pods: what of the hub's protocol a download needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Iterator
from urllib.parse import urlsplit

import layout

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHUNK = 200_000
# Of large files, as much as comes while the rest is held back.
SHARE = 1 / 2
WEIGHTS = ".safetensors"


class Hub(ThreadingHTTPServer):
    """Serves folders as repositories, by `owner/name`."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__((layout.HOST_ADDRESS, 0), Answer)
        self.repositories = repositories
        self.flows = threading.Event()
        self.flows.set()

    @contextlib.contextmanager
    def holding_back(self) -> Iterator[None]:
        """Large files come in part, and whole afterwards, so that somebody can look on."""
        self.flows.clear()
        try:
            yield
        finally:
            self.flows.set()

    @property
    def url(self) -> str:
        return f"http://{layout.HOST_ADDRESS}:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Hub

    def log_message(self, *_: object) -> None:
        """Says nothing: the tests' output is for their results."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        match urlsplit(self.path).path.strip("/").split("/"):
            case ["api", "models", owner, name, "revision", _] if self.folder(owner, name):
                self.tell({"id": f"{owner}/{name}", "sha": COMMIT})
            case ["api", "models", owner, name, "tree", _] if folder := self.folder(owner, name):
                self.tell([entry(file) for file in sorted(folder.iterdir())])
            case [owner, name, "resolve", _, file] if (folder := self.folder(owner, name)) and (folder / file).is_file():
                self.give(folder / file)
            case _:
                self.send_error(404)

    def folder(self, owner: str, name: str) -> Path | None:
        return self.server.repositories.get(f"{owner}/{name}")

    def tell(self, what: object) -> None:
        content = json.dumps(what).encode()
        self.head(200, len(content), {"Content-Type": "application/json"})
        self.wfile.write(content)

    def give(self, file: Path) -> None:
        content = file.read_bytes()
        headers = {"ETag": f'"{digest(file)}"', "X-Repo-Commit": COMMIT}
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.head(206 if "Range" in self.headers else 200, len(content) - begin, headers)
        if self.command == "HEAD":
            return
        with contextlib.suppress(ConnectionError):
            for start in range(begin, len(content), CHUNK):
                if file.suffix == WEIGHTS and start >= SHARE * len(content):
                    self.server.flows.wait()
                self.wfile.write(content[start : start + CHUNK])

    def head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(name, value)
        self.end_headers()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def entry(file: Path) -> dict:
    """A file as the hub lists it; of large ones the digest is told."""
    size = file.stat().st_size
    large = {"lfs": {"oid": digest(file), "size": size, "pointerSize": 130}} if file.suffix == WEIGHTS else {}
    return {"type": "file", "path": file.name, "size": size, "oid": digest(file)[:40], **large}


@contextlib.contextmanager
def serving(repositories: dict[str, Path]) -> Iterator[Hub]:
    """A hub that pods reach, as long as it is needed."""
    with Hub(repositories) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
