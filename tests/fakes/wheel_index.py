"""A package index of our own: small wheels, a folder of them, and a served simple index that lists what it is told."""

from __future__ import annotations

import functools
import http.server
import os
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PLATFORMS = {"vllm/platforms/__init__.py": "current_platform = object()\n"}


def wheel(folder: Path, name: str, version: str, needs: str = "", files: Mapping[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files or {f"{module}/__init__.py": ""}).items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        records = [*(files or {f"{module}/__init__.py": ""}), *(f"{info}/{n}" for n in ("METADATA", "WHEEL", "RECORD"))]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in records))
    return path


def package_settings(folder: Path, **settings: str) -> dict[str, str]:
    """Variables under which pip's and uv's own settings of this machine count for nothing."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull}
    return {**environ, "UV_CACHE_DIR": str(folder / "cache"), "UV_HTTP_RETRIES": "0", **settings}


class Index:
    """What `vllm` has on its page: versions, each with the attributes of its link."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.listed = folder / "simple" / "vllm", dict[str, str]()
        self.folder.mkdir(parents=True)
        self.url = ""

    def gains(self, version: str, mark: str = "", *, wheel_too: bool = True, **more: object) -> None:
        if wheel_too:
            engine = {"vllm/__init__.py": f"__version__ = {version!r}\n", **PLATFORMS}
            wheel(self.folder, "vllm", version, **{"files": engine, **more})  # type: ignore[arg-type]
        self.listed[f"vllm-{version}-py3-none-any.whl"] = mark
        page = "\n".join(f'<a href="{name}"{mark}>{name}</a>' for name, mark in self.listed.items())
        (self.folder / "index.html").write_text(page)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[Index]:
    index = Index(folder)
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        yield index
        server.shutdown()
        thread.join(10)
