"""The files of the console, as text: nothing from elsewhere, nothing that the policy refuses."""

from __future__ import annotations

import re
from pathlib import Path

import headrace

STATIC = Path(headrace.__path__[0]) / "console" / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
MOST_LINES = 2_500


def test_nothing_comes_from_another_server() -> None:
    addresses = {
        f"{file.name}: {each}"
        for file in STATIC.iterdir()
        for each in re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z.]+[^\s\"'`]*", file.read_text())
    }
    # The name of a format, not an address that is loaded.
    assert {each for each in addresses if "//www.w3.org/2000/svg" not in each} == set()


def test_no_text_becomes_markup_or_code() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    found = [
        f"{file.name}: {hit}" for file in SCRIPTS for hit in re.findall(forbidden, file.read_text())
    ]
    assert found == []
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<style|style=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page) == []


def test_every_file_that_is_named_is_there() -> None:
    named = {
        each
        for file in (*SCRIPTS, STATIC / "index.html")
        for each in re.findall(r"(?:from \"\.|(?:src|href)=\")/([a-z.]+)\"", file.read_text())
    }
    there = {file.name for file in STATIC.iterdir()}
    assert named == there - {"index.html"}


def test_the_console_stays_small() -> None:
    lines = sum(len(file.read_text().splitlines()) for file in SCRIPTS)
    assert lines <= MOST_LINES, lines


def test_a_style_names_no_color_outside_its_properties() -> None:
    rules = (STATIC / "console.css").read_text().partition("\n}\n")[2]
    colors = re.findall(r"#[0-9a-f]{3,8}\b", rules)
    # White on what is filled, in both themes.
    assert set(colors) <= {"#fff"}
