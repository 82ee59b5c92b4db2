"""What a plan says of upgrades: which versions to follow, what is kept, what counts as a regression, who is told."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, Field

from .plan_forms import Seconds, Share
from .plan_sources import PlanPart
from .serve_line import is_secret

__all__ = ["Upgrades", "private_url"]

_WORDS = ("stable", "minor", "pre-releases")


def _followed(text: str) -> str:
    try:
        known = text in _WORDS or bool(list(SpecifierSet(text)))
    except InvalidSpecifier:
        known = False
    if not known:
        raise ValueError(f"must be {', '.join(_WORDS)}, or a range such as '>=0.27,<0.33'")
    return text


def _address(url: str | None) -> str | None:
    if url is not None and urlsplit(url).scheme not in ("http", "https", "file"):
        raise ValueError("must be an address, such as https://host/path")
    if is_secret("", url) or "@" in urlsplit(url or "").netloc:
        raise ValueError("carries credentials; keep them in the environment, or in pip's configuration")
    return url


class Upgrades(PlanPart):
    """How `check` and `retune --if-moved` follow the engine."""

    follow: Annotated[str, AfterValidator(_followed)] = Field(
        "stable",
        description="stable, minor (only fixes of the same minor version), pre-releases, or a range of versions.",
        examples=["stable", ">=0.27,<0.33"],
    )
    index: Annotated[str | None, AfterValidator(_address)] = Field(
        None, description="A further package index, such as one of nightly builds; pre-releases count then."
    )
    keep: int = Field(0, ge=0, description="Latest environments that clean leaves, beside those under a peak.")
    look_back: Seconds | None = Field(None, description="Peaks found longer ago are left alone, such as 90d.")
    regression: Share = Field(0.03, description="The loss from which an upgrade is advised against.")
    webhook: Annotated[str | None, AfterValidator(_address)] = Field(
        None, description="Sent each outcome as JSON; an address that is a secret belongs in REPEAK_WEBHOOK."
    )
    command: tuple[str, ...] = Field((), description="Run with each outcome as JSON on its standard input.")

    @property
    def pre(self) -> bool:
        return self.follow == "pre-releases" or self.index is not None

    def within(self, installed: str) -> str:
        """The specifier that a version above the installed one must meet; empty where any will do."""
        if self.follow == "minor":
            return "=={}.{}.*".format(*(*Version(installed).release, 0)[:2])
        return "" if self.follow in _WORDS else self.follow


def private_url(url: str) -> str:
    """An address as it may be shown: a webhook's path and query are its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}/***"
