"""A stand-in for the Hugging Face Hub on this machine: repositories with branches and commits, in memory.

It answers what huggingface_hub asks to create a repository, to commit to it and to fetch a snapshot. Files are small,
so all are in the commit itself and none goes through Git LFS. Writing needs the token, and so does reading a private
repository.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

TOKEN = "hf_of_the_tests"

Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits by their ids, and branches, which name commits."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=lambda: {"0" * 40: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    subjects: list[str] = field(default_factory=list)

    def commit_id(self, revision: str) -> str | None:
        return self.branches.get(revision, revision if revision in self.commits else None)

    def commit(self, revision: str, lines: list[dict[str, Any]]) -> str:
        files = dict(self.commits[self.branches[revision]])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.subjects.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise ValueError(f"a line of a commit that the stand-in does not know: {line['key']}")
        commit_id = hashlib.sha1(repr(sorted(files.items())).encode() + str(len(self.commits)).encode()).hexdigest()
        self.commits[commit_id], self.branches[revision] = files, commit_id
        return commit_id


class Hub:
    """The server's repositories, its address, and the requests that it got."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.address = ""

    def files(self, name: str, revision: str = "main") -> Files:
        repository = self.repositories[name]
        return repository.commits[repository.branches[revision]]


class _Answer(Exception):
    """An answer, by status, error code of the Hub, and body."""

    def __init__(self, status: int, body: Any = None, code: str = "", **headers: str) -> None:
        self.status, self.body, self.headers = status, body, {**headers, **({"X-Error-Code": code} if code else {})}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing goes to standard error."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        try:
            self._dispatch(path, body)
        except _Answer as answer:
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    @property
    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, name: str, writing: bool = False) -> Repository:
        repository = self.hub.repositories.get(name)
        if repository is None or ((writing or repository.private) and not self._is_known):
            raise _Answer(404 if self._is_known else 401, {"error": "Repository not found"}, "RepoNotFound")
        return repository

    def _dispatch(self, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            self._create(json.loads(body))
        if path == "/api/validate-yaml":
            raise _Answer(200, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(\w+)/(.+?))?/?", path):
            name, action, revision = match.groups()
            getattr(self, f"_{action or 'revision'}")(name, revision or "main", body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+)/([^/]+)", path):
            self._resolve(*match.groups())
        raise _Answer(404, {"error": f"the stand-in has no {path}"})

    def _create(self, options: dict[str, Any]) -> None:
        name = f"{options['organization']}/{options['name']}"
        if not self._is_known:
            raise _Answer(401, {"error": "Invalid username or password."})
        url = f"{self.hub.address}/{name}"
        if name in self.hub.repositories:
            raise _Answer(409, {"error": "You already created this model repo", "url": url})
        is_private = options.get("private") or options.get("visibility") == "private"
        self.hub.repositories[name] = Repository(bool(is_private))
        raise _Answer(200, {"url": url})

    def _branch(self, name: str, branch: str, body: bytes) -> None:
        repository = self._repository(name, writing=True)
        if branch in repository.branches:
            raise _Answer(409, {"error": "the branch exists"})
        repository.branches[branch] = repository.branches["main"]
        raise _Answer(200, {})

    def _preupload(self, name: str, revision: str, body: bytes) -> None:
        self._repository(name, writing=True)
        paths = [file["path"] for file in json.loads(body)["files"]]
        raise _Answer(200, {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]})

    def _commit(self, name: str, revision: str, body: bytes) -> None:
        repository = self._repository(name, writing=True)
        is_pull_request = "create_pr=1" in self.path
        if is_pull_request:
            repository.branches["refs/pr/1"] = repository.branches[revision]
            revision = "refs/pr/1"
        commit_id = repository.commit(revision, [json.loads(line) for line in body.splitlines()])
        address = f"{self.hub.address}/{name}"
        pull_request = f"{address}/discussions/1" if is_pull_request else None
        url = f"{address}/commit/{commit_id}"
        raise _Answer(200, {"commitUrl": url, "commitOid": commit_id, "pullRequestUrl": pull_request})

    def _files(self, name: str, revision: str) -> tuple[str, Files]:
        repository = self._repository(name)
        commit_id = repository.commit_id(revision)
        if commit_id is None:
            raise _Answer(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        return commit_id, repository.commits[commit_id]

    def _revision(self, name: str, revision: str, body: bytes) -> None:
        commit_id, files = self._files(name, revision)
        siblings = [{"rfilename": path} for path in files]
        raise _Answer(200, {"id": name, "sha": commit_id, "siblings": siblings, "private": False, "tags": []})

    def _tree(self, name: str, revision: str, body: bytes) -> None:
        _, files = self._files(name, revision)
        entries = [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in files.items()
        ]
        raise _Answer(200, entries)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        commit_id, files = self._files(name, revision)
        if path not in files:
            raise _Answer(404, {"error": "Entry not found"}, "EntryNotFound")
        etag = hashlib.sha1(files[path]).hexdigest()
        raise _Answer(200, files[path], X_Repo_Commit=commit_id, ETag=f'"{etag}"')


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that listens on a port of this machine until the `with` block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def take_for_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Let huggingface_hub ask the stand-in, with an empty cache and without the token of whoever runs the tests."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
