"""The report as a page that moves while its study runs: on loopback, for who has its address, read-only."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import statistics
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.model import AutotuneError, format_ratio, log_ratio, visible
from autotune.results.pages import render
from autotune.results.report import build
from autotune.rundir import Store, is_held

HOST = "127.0.0.1"

MOST_OFTEN_S = 5.0
"""A page is built at most once in so many seconds: it takes about one of a processor that may be measuring."""

TRIED_AGAIN_S = 60.0
"""What could not be built is tried again after so many seconds though no file has changed."""

FRESH_S = 120.0
"""Raw pairs that were written within so many seconds are those of what is measured now."""


class LivePage:
    """Serves the report of one run directory on loopback until it is closed.

    Everything lies below a path that nobody can guess, and only requests for this machine's own names are answered, so
    that neither another user nor a page in the same browser (by a name that leads here) reads it. It writes nothing.

    Args:
        path: The run directory.
        port: Where to listen; 0: where there is room.

    Raises:
        RunDirectoryError: If it is none.
        AutotuneError: If the port is taken.
    """

    def __init__(self, path: Path, *, port: int = 0) -> None:
        Store.open(path)
        self._path = path
        self._token = secrets.token_urlsafe(16)
        self._nonce = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._state = ""
        self._built: str | AutotuneError = ""
        self._looked_at = self._built_at = -math.inf
        page = self

        class Handler(_Handler):
            live = page

        try:
            self._server = ThreadingHTTPServer((HOST, port), Handler)
        except OSError as error:
            raise AutotuneError(
                f"--port must be free on {HOST} but {port} is not ({error.strerror}); 0 takes one that is"
            ) from error
        self._server.daemon_threads = True
        self._is_serving = False

    @property
    def address(self) -> str:
        """Where the page is, with what lets one see it."""
        return f"http://{HOST}:{self._server.server_address[1]}/{self._token}/"

    def serve(self) -> None:
        """Answers until `close`."""
        self._is_serving = True
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Ends `serve`, from another thread, and listens no more."""
        if self._is_serving:
            self._server.shutdown()
        self._server.server_close()

    def answer(self, host: str, path: str) -> tuple[HTTPStatus, str, str]:
        """Status, kind of content and text for a request.

        Args:
            host: What the browser calls this machine.
            path: What it asks for.
        """
        token, _, name = path.removeprefix("/").partition("/")
        is_known = hmac.compare_digest(token.encode(), self._token.encode())
        if not is_known or (urlsplit(f"//{host}").hostname or "") not in (HOST, "localhost"):
            return HTTPStatus.NOT_FOUND, "text/plain", "the address must be the one that `autotune watch` printed\n"
        try:
            if name == "":
                return HTTPStatus.OK, "text/html", self._page()[1]
            if name == "state":
                return HTTPStatus.OK, "application/json", json.dumps({"page": self._page()[0]})
        except AutotuneError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{visible(str(error))}\n"
        return HTTPStatus.NOT_FOUND, "text/plain", "there is nothing by this name\n"

    def policy(self) -> str:
        """What the browser may do with the page: run the one script in it, and ask here again."""
        return (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{self._nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def _page(self) -> tuple[str, str]:
        """Which page it is, and the page; built anew where the run directory has changed since, not too often.

        What cannot be built is told again, not tried again, until the run directory is another, or for a while: a disk
        may have failed once.

        Raises:
            AutotuneError: If the run directory is damaged.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at >= MOST_OFTEN_S:
                state, self._looked_at = _state(self._path), now
                is_to_be_tried = isinstance(self._built, AutotuneError) and now - self._built_at >= TRIED_AGAIN_S
                if state != self._state or is_to_be_tried:
                    self._built, self._state, self._built_at = self._build(state), state, now
            if isinstance(self._built, AutotuneError):
                raise self._built.with_traceback(None)
            return self._state, self._built

    def _build(self, state: str) -> str | AutotuneError:
        try:
            store = Store.open(self._path)
            shown = {**build(store), "now": _under_way(store)}
        except AutotuneError as error:
            return error
        return render("live.html.j2", r=shown, nonce=self._nonce, state=state)


class _Handler(BaseHTTPRequestHandler):
    live: LivePage
    protocol_version = "HTTP/1.1"
    timeout = 30
    server_version = "autotune"
    sys_version = ""

    def do_GET(self) -> None:
        status, kind, text = self.live.answer(self.headers.get("Host", ""), self.path)
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.live.policy(),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for what matters."""


def _raw(path: Path) -> list[Path]:
    """Files of raw pairs of blocks."""
    return sorted(path.glob("*/**/pairs.jsonl"))


def _state(path: Path) -> str:
    """A text that changes when the run directory does."""
    seen = [f"{is_held(path)}"]
    for file in (path / "study.json", path / "records.jsonl", *sorted(path.glob("records/*.jsonl")), *_raw(path)):
        try:
            stat = file.stat()
        except OSError:
            continue
        seen.append(f"{file.relative_to(path)} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _under_way(store: Store) -> str:
    """What is measured now, in words; nothing if nothing is."""
    files = [(file.stat().st_mtime, file) for file in _raw(store.path) if file.exists()]
    if not files or not is_held(store.path):
        return ""
    written, newest = max(files)
    if time.time() - written > FRESH_S:  # both by this machine's calendar
        return ""
    folder = newest.parent.relative_to(store.path).as_posix()
    ratios = [log_ratio(pair) for pair in store.pairs(folder)]
    if not ratios:
        return ""
    middle = format_ratio(math.exp(statistics.median(ratios)))
    return f"{folder}: {len(ratios)} pairs of blocks so far, middle ratio of step times {middle}; no result yet"
