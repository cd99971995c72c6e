"""Write docs/reference/licences.md from the metadata of installed packages: `python -m tests.packaging.licences`."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "licences.md"
INTRO = Path(__file__).with_suffix(".txt").read_text()
NOT_USED = {"docs", "dev", "all", "race"}
"""Extras that users do not install."""
NOT_IN_METADATA = {"torch": "BSD-3-Clause", "pyslurm": "GPLv2"}
"""By the LICENSE file or setup.py of the package."""
ROW = re.compile(r"^\| (\S+) \| (?:the core|extra .*) \| (.*) \|$", re.MULTILINE)


def list_requirements() -> Iterator[tuple[str, str]]:
    """Yield each package with what needs it: the core, or an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        yield _name(requirement), "the core"
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NOT_USED:
            yield from ((_name(requirement), f"extra `{extra}`") for requirement in requirements)


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0]


def read_licence(package: str) -> str | None:
    """Return the licence in the package's metadata; None if the package is not installed."""
    try:
        fields = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return None
    classifiers = [
        text.rpartition(" :: ")[2] for text in fields.get_all("Classifier", []) if text.startswith("License")
    ]
    stated = (fields.get("License") or "").strip().splitlines()
    short = stated[0] if stated and len(stated[0]) < 40 else ""
    return fields.get("License-Expression") or short or ", ".join(classifiers) or NOT_IN_METADATA.get(package)


def read_rows(page: str) -> dict[str, str]:
    """Return the licences on the page, by package."""
    return dict(ROW.findall(page))


def render_page(earlier: str) -> str:
    """Return the page; the licence of a package that is not installed comes from the earlier page.

    Raises SystemExit for a package whose licence is not known.
    """
    known, rows = NOT_IN_METADATA | read_rows(earlier), []
    for package, purpose in list_requirements():
        licence = read_licence(package) or known.get(package)
        if licence is None:
            raise SystemExit(f"{package}: not installed, and no row of the page has its licence; pip install {package}")
        rows.append(f"| {package} | {purpose} | {licence} |\n")
    return INTRO + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text()))
