"""The page is well-formed, asks nobody for anything, and can be read without seeing it."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Every element, with a complaint about each that is not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def text(written: Path) -> str:
    return (written / "report/index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    found = Page()
    found.feed(text)
    found.close()
    return found


def test_every_element_is_closed_in_order(page: Page) -> None:
    assert page.wrong == []
    assert page.open == []


def test_nothing_is_asked_of_anyone(page: Page, text: str) -> None:
    assert re.findall(r"[a-z]+://|url\((?!#)|@import|fetch\(|XMLHttp", text) == []
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "base", "form"}
        for name in ("src", "href", "action", "data", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)


def test_ids_are_unique_and_every_reference_has_its_target(page: Page, text: str) -> None:
    ids = Counter(attributes["id"] for _, attributes in page.elements if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    references = {attributes["href"] for _, attributes in page.elements if attributes.get("href")}
    references |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", text)}
    assert {reference for reference in references if reference and reference[1:] not in ids} == set()
    assert len(references) > 50


def test_pictures_have_words_and_tables_can_be_sorted(page: Page, text: str) -> None:
    pictures = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(pictures) == len(list(re.finditer("<figure ", text))) > 10
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"] or "") > 80
    labels = " ".join(attributes["aria-label"] or "" for attributes in pictures)
    assert "cascade opt: 0.25: " in labels
    assert "0: missing" in labels
    tags = Counter(tag for tag, _ in page.elements)
    assert tags["button"] == tags["th"] > 50
    assert "prefers-color-scheme: dark" in text


def test_figure_files_are_svg_without_a_date(written: Path) -> None:
    files = list((written / "report/figures").glob("*.svg"))
    assert len(files) > 10
    for path in files:
        assert ElementTree.fromstring(path.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<metadata" not in path.read_bytes()
