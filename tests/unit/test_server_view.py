"""What a server says of itself, and what is told where it says nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest
from truth_server import serving

from orchestrator.errors import MeasurementFailed
from orchestrator.server_view import ask, local_engine, read_page, view_server


def test_a_server_is_known_by_its_model_length_and_version() -> None:
    with serving() as url:
        seen = view_server(f"{url}/v1")
        page = read_page(url)
    assert (seen.model, seen.max_model_len, seen.version) == ("m", 2048, "0.32.0")
    assert page is not None
    assert page.has("vllm:request_success")


def test_a_model_it_does_not_serve_is_told_with_those_it_does() -> None:
    with (
        serving() as url,
        pytest.raises(MeasurementFailed, match=r"does not serve other: it has m"),
    ):
        view_server(url, "other")


def test_a_refused_key_is_told_and_a_good_one_is_used() -> None:
    with serving(api_key="k3y") as url:
        with pytest.raises(MeasurementFailed, match="http_401") as told:
            view_server(url, api_key="wrong")
        assert "wrong" not in str(told.value)
        assert view_server(url, api_key="k3y").model == "m"


def test_where_nobody_listens_and_where_it_is_no_url_an_error_says_so() -> None:
    with pytest.raises(MeasurementFailed, match="unreachable"):
        view_server("http://127.0.0.1:9")
    with pytest.raises(MeasurementFailed, match="not the URL of a server"):
        view_server("localhost:8000")


def test_a_plain_server_asked_over_tls_is_a_tls_error() -> None:
    with serving() as url, pytest.raises(MeasurementFailed, match="tls"):
        view_server(url.replace("http", "https"), timeout_s=2)


def test_a_server_that_accepts_and_stays_silent_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        said = ask(f"http://127.0.0.1:{deaf.getsockname()[1]}", "/v1/models", api_key=None, timeout_s=0.3)
    assert said.error == "stalled"


def test_a_server_that_drips_forever_is_given_up_in_time() -> None:
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")
            while not stop.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        said = ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "/metrics", api_key=None, timeout_s=0.4)
        stop.set()
        thread.join(5)
    assert said.error == "stalled"


def test_the_command_the_log_and_the_pool_of_an_engine_of_this_host_are_seen(tmp_path) -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    log = tmp_path / "engine.log"
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_API_KEY": "s3cret"}
    with log.open("wb") as out:
        command = [sys.executable, "-c", code, "vllm", "serve", "org/m", "--dtype", "half"]
        engine = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=out)
    try:
        waiter = threading.Event()
        for _ in range(500):
            if log.read_text().strip():
                break
            waiter.wait(0.02)
        found = local_engine(f"http://127.0.0.1:{int(log.read_text())}")
    finally:
        engine.communicate(timeout=10)
    assert found is not None
    assert found.argv[-4:] == ("serve", "org/m", "--dtype", "half")
    assert found.env == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert found.log == log
    assert local_engine("http://example.org:8000") is None
    assert local_engine("http://127.0.0.1:9") is None
