"""The site is built without a warning, holds what it should, and asks nothing of the network."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedhet
from fedhet.config.registry import METHODS

pytest.importorskip("material", reason="mkdocs-material is not installed")
ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


class Loads(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag, attrs):
        if (name := LOADED.get(tag)) and (value := dict(attrs).get(name)):
            self.found.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(place)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def text(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_nothing_is_fetched_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.found
        assert not {one for one in loads.found if re.match(r"(\w+:)?//", one)}, page
    for style in site.rglob("*.css"):
        assert not re.search(
            r"(url\(|@import)\s*[\"']?(\w+:)?//", style.read_text(encoding="utf-8")
        )


def test_the_reference_is_that_of_the_sources(site):
    python = text(site / "reference" / "python.html")
    assert all(name in python for name in fedhet.__all__)
    hooks = text(site / "reference" / "clients.html")
    assert "expect_download" in hooks and "_go_back_to" not in hooks and ":meth:" not in hooks
    assert "aggregate" in text(site / "reference" / "strategies.html")
    for name, method in METHODS.items():
        page = text(site / "reference" / "methods" / f"{name}.html")
        assert all(key.replace("_", "-") in page for key in method.params.model_fields)
    assert "max-update-ratio" in text(site / "reference" / "keys.html")


def test_the_front_page_is_the_readme_and_its_links_lead_somewhere(site):
    assert "Hospitals, phones or factories" in text(site / "index.html")
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        links = re.findall(r'<a [^>]*href="([^"#?:]+)(?:#[^"]*)?"', page.read_text("utf-8"))
        for link in links:
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_not_in_the_site_is_what_is_no_page(site):
    assert not (site / "data").exists() and not list(site.rglob("*.py"))
