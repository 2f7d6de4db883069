"""The estimate for people: text, HTML, JSON, and the page."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

import bpsearch as bps

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "br", "img", "hr", "input"}


@pytest.fixture(scope="module")
def result():
    return bps.evaluate("gridworld-early", bps.envs.gridworld(), 600, "bpg", seed=0)


@pytest.fixture(scope="module")
def page(result, tmp_path_factory):
    return result.report(tmp_path_factory.mktemp("report") / "deep" / "report.html")


class Structure(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_without_network(page, result):
    text = page.read_text()
    structure = Structure()
    structure.feed(text)
    assert not structure.open
    assert structure.seen.count("svg") == 5
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert not re.search(r"(src|href)=\"(?!#)", without_names)
    assert "http" not in re.sub(r"<metadata>.*?</metadata>", "", without_names, flags=re.S)
    assert f"{result.value:.6g}" in text
    for part in ("95% interval", "prefers-color-scheme: dark", "@media print", "bps.evaluate(", "jax", "method"):
        assert part in text
    assert page.stat().st_size < 400_000


def test_names_in_the_page_are_escaped(result, tmp_path):
    import dataclasses

    evil = dataclasses.replace(result, settings=result.settings | {"policy": "<script>alert(1)</script>"})
    assert "<script>" not in evil.report(tmp_path / "evil.html").read_text()


def test_short_and_degenerate_studies_have_a_page(tmp_path):
    for episodes in (1, 2, 101):
        few = bps.evaluate("gridworld-early", bps.envs.gridworld(), episodes, "mc")
        assert few.report(tmp_path / f"{episodes}.html").exists()
    one = bps.evaluate("gridworld-early", bps.envs.gridworld(), 1)
    assert one.interval() is None
    assert "interval unknown" in str(one)
    assert json.loads(json.dumps(one.to_json()))["interval"] is None


def test_text_html_and_json(result):
    assert "95% interval" in str(result)
    assert "as good as" in str(result)
    assert result._repr_html_().startswith("<table>")
    read = json.loads(json.dumps(result.to_json()))
    assert read["value"] == result.value
    assert read["interval_kind"] == result.interval_kind
    assert read["diagnostics"]["effective_sample_size"] > 500
    assert read["settings"]["method"] == "bpg"


def test_where_actions_make_no_variance_the_estimate_says_so():
    transitions, rewards = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    transitions[0, :, 1:] = 0.5
    rewards[0, :, 1] = 1.0
    coin = bps.TabularMDP(transitions, rewards, [1.0, 0, 0], [False, True, True], horizon=1)
    result = bps.evaluate(bps.SoftmaxTable.uniform(3, 2), coin, 500)
    assert "behavior search cannot help here, because the policy's action noise" in str(result)
    assert result.explained < 0.03


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_in_a_browser(page, tmp_path, width):
    """It renders, and nothing is wider than the window."""
    probe = tmp_path / "probe.html"
    script = (
        "<script>addEventListener('load', () => { document.title = "
        "[document.documentElement.scrollWidth <= innerWidth, document.querySelectorAll('figure svg').length,"
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 100)].join(' ');"
        "});</script></head>"
    )
    probe.write_text(page.read_text().replace("</head>", script))
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=2000 --dump-dom"
    )
    done = subprocess.run(
        [
            CHROMIUM,
            *flags.split(),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},2000",
            str(probe),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert re.search("<title>(.*?)</title>", done.stdout).group(1) == "true 5 true"
