"""The HTML report: whole in one file, nothing of it a door for what its texts hold."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
import two_engines as two
from two_engines import NEW

from orchestrator.kept_plan import kept_plan
from orchestrator.library import shelves
from orchestrator.report import build_report
from orchestrator.report_charts import Bar, Chart, Series
from orchestrator.report_figures import draw_png, draw_svg
from orchestrator.report_html import report_at_end, report_html, write_figures

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\n\t$x^2$ \x00\x1b[31m\U0001f600{{7*7}}"
LONG = "x" * 10_000


class Page(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPEAK_HOME", str(tmp_path))
    return tmp_path


def html(home: Path, **how: object) -> str:
    two.write(home, **how)
    return report_html(build_report(shelves("plan"), kept_plan("plan")))


def test_it_answers_first_and_asks_nothing_of_anybody(home: Path) -> None:
    text = html(home)
    page = Page(text)
    heads = [tag for tag, _ in page.tags]
    assert not {"script", "iframe", "link", "object", "form"} & set(heads)
    assert page.text.index("What to run on vllm-0.32.0") < page.text.index("Between the engines")
    for question in ("How much better", "How sure", "On what evidence", "vllm serve org/model"):
        assert question in page.text
    sources = [attrs.get("src") or attrs.get("href") for _, attrs in page.tags]
    assert all(source.startswith("data:image/svg+xml,") for source in sources if source)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")


def test_every_picture_has_words_and_is_an_svg(home: Path) -> None:
    page = Page(html(home))
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) >= 5
    for attrs in pictures:
        assert len(attrs["alt"] or "") > 20
        root = ET.fromstring(unquote((attrs["src"] or "").removeprefix("data:image/svg+xml,")))
        assert root.tag.endswith("svg")


def test_hostile_text_injects_nothing_and_breaks_nothing(home: Path) -> None:
    one = two.configuration("ngram", 8, **{"serve.chat_template": HOSTILE, "serve.served_model_name": LONG})
    nothing = {"windows": (), "estimates": {}}
    bad = [
        two.record("bpla00000000", 300, NEW, one, 210.0, role="finalist", reason=HOSTILE),
        two.record("bpla00000000", 301, NEW, one, 1.0, state="refused", reason=HOSTILE + LONG, **nothing),
    ]
    plain = Page(html(home))
    two.write(home / "other", extra=bad)
    found = build_report(shelves("plan"), None)
    stack = {**next(iter(found.stacks.values())), HOSTILE: HOSTILE}
    (home / "other" / "journals" / "plan").rename(home / "journals" / "hostile")
    found = build_report(shelves("hostile"), None)
    found = found.model_copy(update={"plan": HOSTILE, "model": HOSTILE, "stacks": {HOSTILE: stack}})
    text = report_html(found)
    page = Page(text)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in plain.tags}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "\0" not in text
    assert len(text) < len(html(home / "third")) + 200_000, "ten thousand characters are told, not repeated"


@pytest.mark.parametrize("kind", ["line", "dots", "sideways"])
def test_a_chart_of_hostile_names_is_well_formed_xml_without_a_door(kind) -> None:
    at = HOSTILE if kind == "sideways" else 1.0
    bars = (Bar(at=at, value=1.0, low=0.5, high=1.5), Bar(at=LONG if kind == "sideways" else 2.0, value=2.0))
    series = (Series(name=HOSTILE, bars=bars), Series(name=LONG, bars=bars))
    chart = Chart(title=HOSTILE, says="", kind=kind, x=HOSTILE, y=LONG, series=series)
    root = ET.fromstring(draw_svg(chart))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not names & {"script", "foreignObject", "image", "a"}
    texts = "".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert "<script>" in texts
    assert max(len(element.text or "") for element in root.iter() if element.tag.endswith("text")) < 60
    assert draw_png(chart).startswith(b"\x89PNG")


def test_a_picture_follows_light_and_dark() -> None:
    series = (Series(name="a", bars=(Bar(at=1.0, value=1.0),)),)
    chart = Chart(title="t", says="", kind="line", x="k", y="y", series=series)
    text = draw_svg(chart)
    assert "@media (prefers-color-scheme:dark)" in text
    assert "var(--v0000c1)" in text
    assert "#0000c1" not in text


def test_pictures_are_written_as_svg_and_png(home: Path) -> None:
    two.write(home)
    found = build_report(shelves("plan"), None)
    files = write_figures(found, home / "figures")
    assert len(files) == 2 * len(found.charts)
    assert {file.suffix for file in files} == {".svg", ".png"}
    assert len({file.name for file in files}) == len(files)


def test_two_hundred_trials_stay_under_three_megabytes(home: Path) -> None:
    many = [
        two.record("bpla00000000", 400 + n, NEW, two.configuration("ngram", 8, n=n), 150.0 + n / 10) for n in range(200)
    ]
    assert len(html(home, extra=many).encode()) < 3_000_000


def test_at_the_end_of_a_run_a_report_that_cannot_be_made_is_told(home: Path) -> None:
    two.write(home)
    said: list[str] = []
    report_at_end(shelves("plan"), two.plan(), home / "report.html", said.append)
    assert (home / "report.html").read_text().startswith("<!doctype html>")
    assert not said
    report_at_end([], two.plan(), home / "report.html", said.append)
    assert "repeak report plan" in said[0]
