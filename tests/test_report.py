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


def titles(estimate, path):
    return re.findall("<h3>(.*?)</h3>", estimate.report(path).read_text())


def test_the_page_shows_what_the_method_has_to_show(result, tmp_path):
    """Weights that are all 1, and variances that differ by luck alone, have no figure."""
    settled, batches = "The estimate as it settled", "Variance, batch by batch"
    env = bps.envs.gridworld()
    auto = bps.evaluate("gridworld-early", env, 300)
    assert titles(auto, tmp_path / "auto.html") == [settled, batches, "Returns, and what is left of them"]
    assert "effective sample size" not in (tmp_path / "auto.html").read_text()
    assert "importance weighting" not in (tmp_path / "auto.html").read_text()
    assert "unknown: unknown" not in (tmp_path / "auto.html").read_text()
    monte_carlo = bps.evaluate("gridworld-early", env, 300, "mc")
    assert titles(monte_carlo, tmp_path / "mc.html") == [settled, "Returns"]
    differs = "How the behavior differs from the policy"
    assert titles(result, tmp_path / "bpg.html") == [settled, batches, "Importance weights", "Returns", differs]
    assert "effective sample size" in (tmp_path / "bpg.html").read_text()
    failure = bps.evaluate("gridworld-early", env, 300, "mc", failure="return < -80")
    assert titles(failure, tmp_path / "failure.html") == [settled]
    assert '<p class="sentence">Probability of return &lt; -80: ' in (tmp_path / "failure.html").read_text()


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


def chromium(directory, *arguments):
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=2000"
    )
    done = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={directory / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout


def probed(page, directory, expression, *arguments):
    """What a script finds in the page as the browser shows it."""
    probe = directory / "probe.html"
    script = (
        f"<script>addEventListener('load', () => {{ document.title = [{expression}].join(' '); }});</script></head>"
    )
    probe.write_text(page.replace("</head>", script))
    return re.search("<title>(.*?)</title>", chromium(directory, *arguments, "--dump-dom", str(probe))).group(1)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_in_a_browser(page, tmp_path, width):
    """It renders, and nothing is wider than the window."""
    found = (
        "document.documentElement.scrollWidth <= innerWidth, document.querySelectorAll('figure svg').length,"
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 100)"
    )
    assert probed(page.read_text(), tmp_path, found, f"--window-size={width},2000") == "true 5 true"


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_is_dark_on_a_dark_screen_and_light_in_print(page, tmp_path):
    colors = "getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color"
    assert probed(page.read_text(), tmp_path, colors, DARK) == "rgb(15, 20, 25) rgb(230, 237, 243)"
    as_printed = page.read_text().replace("@media print", "@media all")
    assert probed(as_printed, tmp_path, colors, DARK) == "rgb(255, 255, 255) rgb(0, 0, 0)"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_in_print(page, tmp_path):
    """A few sheets of paper, none of them for a few lines that something unbreakable has pushed over."""
    chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer", str(page))
    assert len(re.findall(rb"/Type */Page\b", (tmp_path / "page.pdf").read_bytes())) in (2, 3)
