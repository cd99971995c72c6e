"""docs/reference/licences.md lists what pyproject.toml names, under licences that allow distribution with opsctl."""

import re

from tests.packaging.licences import PAGE, list_requirements, read_licence

FREE = re.compile(r"MIT|BSD|Apache|LGPL|PSF|Python Software Foundation|MPL", re.IGNORECASE)


def test_page_lists_the_installed_packages():
    rows = dict(re.findall(r"^\| (\S+) \| .* \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    rows.pop("package", None)
    expected = {package for package, _ in list_requirements() if read_licence(package) is not None}
    assert expected <= set(rows)
    assert set(rows) <= {package for package, _ in list_requirements()}


def test_every_licence_is_free():
    licences = {package: read_licence(package) for package, _ in list_requirements()}
    assert {package: text for package, text in licences.items() if text and not FREE.search(text)} == {}
