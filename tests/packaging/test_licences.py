"""docs/reference/licences.md lists what pyproject.toml names, under licences that allow distribution with opsctl."""

import re

import pytest

from tests.packaging import licences
from tests.packaging.licences import PAGE, list_requirements, read_licence, read_rows, render_page

NOT_FOR_DISTRIBUTION = {"pyslurm"}
"""Only the extra of this name installs the package, where a user asks for it."""
FREE = re.compile(r"MIT|BSD|Apache|LGPL|PSF|Python Software Foundation|MPL", re.IGNORECASE)


def test_page_lists_every_package():
    assert set(read_rows(PAGE.read_text())) == {package for package, _ in list_requirements()}


def test_every_licence_is_free():
    rows = read_rows(PAGE.read_text())
    installed = {package: read_licence(package) for package in rows}
    stated = {package: installed[package] or rows[package] for package in rows if package not in NOT_FOR_DISTRIBUTION}
    assert {package: text for package, text in stated.items() if not FREE.search(text)} == {}


def test_package_that_is_not_installed_keeps_its_row(monkeypatch):
    earlier = PAGE.read_text()
    monkeypatch.setattr(licences, "read_licence", lambda _: None)
    assert render_page(earlier) == earlier


def test_package_of_unknown_licence_is_refused(monkeypatch):
    monkeypatch.setattr(licences, "list_requirements", lambda: [("nosuch-package", "the core")])
    with pytest.raises(SystemExit, match="nosuch-package: not installed, and no row of the page has its licence"):
        render_page("")
