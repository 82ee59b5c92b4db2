"""What pip would use on this machine (its variables and files), told to uv, which reads neither."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .errors import PlanError

__all__ = ["UvSettings", "pip_configuration", "redact", "uv_settings"]

# Read for every key: pip's own order of sections, the later one winning.
_SECTIONS = ("global", "install")
_FOREIGN = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
_TRUE = {"1", "true", "yes", "on", "y", "t"}


class UvSettings(NamedTuple):
    """How uv is told: the whole environment of its process, and arguments for what has no variable.

    Addresses, which may carry credentials, are in `environ` only: an argument list is readable by anybody.
    """

    environ: dict[str, str]
    arguments: tuple[str, ...]


def redact(text: str) -> str:
    """The text with the user part of every address blotted out, fit for a log or a message."""
    return re.sub(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]*(?:@[^/\s@'\"]*)*@", r"\1***@", text)


def pip_configuration(environ: Mapping[str, str], *, prefix: Path | None = None) -> dict[str, str]:
    """Pip's options by long name (`index-url`), from its files in its own precedence, then `PIP_*`.

    Args:
        environ: The variables pip would see.
        prefix: The virtual environment whose `pip.conf` counts; ours when left out.

    Raises:
        PlanError: One of the files cannot be read as a pip configuration.
    """
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for file in _files(environ, prefix or Path(sys.prefix)):
        for section, values in _read(file).items():
            sections.get(section, {}).update(values)
    variables = {_option(name[4:]): value for name, value in environ.items() if name.startswith("PIP_")}
    return {name: value for values in (*sections.values(), variables) for name, value in values.items() if value}


def _files(environ: Mapping[str, str], prefix: Path) -> list[Path]:
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    user = Path(environ.get("HOME") or Path.home())
    shared = [Path(d) / "pip" for d in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep) if d]
    own = [user / ".pip", Path(environ.get("XDG_CONFIG_HOME") or user / ".config") / "pip"]
    if chosen and Path(chosen).exists():
        own = []
    files = [folder / "pip.conf" for folder in [*shared, Path("/etc"), *own, prefix]]
    return [file for file in [*files, *([Path(chosen)] if chosen else [])] if file.is_file()]


def _read(file: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error) as error:
        what = f"{file} cannot be read as pip's configuration: {redact(str(error))}"
        raise PlanError(what, "Mend or remove the file.") from error
    return {name: {_option(key): value for key, value in parser[name].items()} for name in parser.sections()}


def _option(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def uv_settings(environ: Mapping[str, str], *, prefix: Path | None = None) -> UvSettings:
    """The settings with which uv finds what pip would find here; a `UV_*` of the user's own wins.

    Local paths come out absolute, since uv is run elsewhere.
    """
    options = pip_configuration(environ, prefix=prefix)
    kept = {n: value for n, value in environ.items() if n not in _FOREIGN and not n.startswith("PIP_")}
    if "UV_FIND_LINKS" in kept:
        kept["UV_FIND_LINKS"] = ",".join(map(_absolute, kept["UV_FIND_LINKS"].split(",")))
    translated = _translate(options, kept)
    arguments = ("--no-index",) if options.get("no-index", "").lower() in _TRUE else ()
    # A download of an interpreter is never what a build here means, so this is not the user's to widen.
    return UvSettings({**translated, **kept, "UV_PYTHON_DOWNLOADS": "never"}, arguments)


def _translate(options: Mapping[str, str], kept: Mapping[str, str]) -> dict[str, str]:
    extra = [link for link in options.get("extra-index-url", "").split() if _present(link)]
    found = {
        "SSL_CERT_FILE": options.get("cert"),
        "SSL_CLIENT_CERT": options.get("client-cert"),
        "ALL_PROXY": options.get("proxy"),
        "UV_HTTP_TIMEOUT": options.get("timeout") or options.get("default-timeout"),
        "UV_INSECURE_HOST": options.get("trusted-host"),
        "UV_CONSTRAINT": " ".join(map(_absolute, options.get("constraint", "").split())),
        "UV_FIND_LINKS": ",".join(map(_absolute, filter(_present, options.get("find-links", "").split()))),
        # Set by the user under either name, an index of theirs is the index.
        "UV_DEFAULT_INDEX": None if "UV_INDEX_URL" in kept else options.get("index-url"),
        "UV_INDEX": None if "UV_EXTRA_INDEX_URL" in kept else " ".join(extra),
        # pip takes the best version of all indexes; uv by default stops at the first that has the name.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if extra else None,
    }
    return {name: " ".join(value.split()) for name, value in found.items() if value}


def _present(link: str) -> bool:
    """Whether a link may be passed on: uv fails on a local directory that is not there, pip only warns."""
    parts = urlsplit(link)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path)).exists()
    return bool(parts.scheme) or Path(link).expanduser().exists()


def _absolute(link: str) -> str:
    return link if urlsplit(link).scheme else str(Path(link).expanduser().absolute())
