"""The HTTP server of the metrics: who gets them, and what strangers cannot do."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from memtide._capi import admin
from memtide._metrics import server as metrics_server
from memtide._metrics.__main__ import main
from memtide._metrics.server import MetricsServer
from memtide.errors import Unavailable

TOKEN = "0123456789abcdef0123456789abcdef"


@contextmanager
def _serving(host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    with MetricsServer((host, 0), TOKEN, Path("/nowhere")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield host, server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(admin, "get_metrics", lambda where: f"memtide_chunks 3 # {where}\n")
    with _serving() as address:
        yield address


def _get(
    address: tuple[str, int], authorization: str | None, path: str = "/metrics"
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=30)
    headers = {} if authorization is None else {"Authorization": authorization}
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_the_token_opens_the_metrics_and_nothing_else_does(address: tuple[str, int]) -> None:
    expected = (200, "memtide_chunks 3 # /nowhere\n")
    assert _get(address, f"Bearer {TOKEN}") == expected
    for wrong in (
        None,
        "",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
    ):
        status, text = _get(address, wrong)
        assert (status, "memtide_chunks" in text) == (401, False), wrong
    assert _get(address, f"Bearer {TOKEN}", "/")[0] == 404
    assert _get(address, None, "/")[0] == 401


def test_it_listens_on_an_address_of_ip_version_6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        with _serving("::1") as address:
            assert _get(address, None)[0] == 401
    except OSError:
        pytest.skip("this machine has no address ::1")


def test_a_daemon_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]
) -> None:
    def fail(_where: Path) -> str:
        raise Unavailable("no memtide daemon at /nowhere")

    monkeypatch.setattr(admin, "get_metrics", fail)
    status, text = _get(address, f"Bearer {TOKEN}")
    assert status == 503
    assert "no memtide daemon at /nowhere" in text


def test_silent_connections_end_and_leave_room(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], address: tuple[str, int]
) -> None:
    most = metrics_server._MOST_CONNECTIONS
    monkeypatch.setattr(metrics_server, "_PATIENCE_S", 0.5)
    silent = [socket.create_connection(address, timeout=30) for _ in range(most + 1)]
    for connection in silent:
        # One is too many, and the others are hung up on.
        assert connection.recv(1) == b""
        connection.close()
    monkeypatch.setattr(metrics_server, "_PATIENCE_S", 30.0)
    assert _get(address, f"Bearer {TOKEN}")[0] == 200
    assert capfd.readouterr().err == "", "strangers write nothing to the log"


@pytest.mark.parametrize(
    ("flags", "token", "message"),
    [
        ([], "short", "token has 5 characters; at least 32 are needed"),
        ([], None, "--token-file cannot be read"),
        (["--address=9464"], TOKEN, "it must be HOST:PORT"),
        (["--address=127.0.0.1:65536"], TOKEN, "it must be HOST:PORT"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(
    flags: list[str],
    token: str | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token + "\n", encoding="ascii")
    assert main([f"--token-file={file}", *flags]) == 2
    assert message in capsys.readouterr().err
