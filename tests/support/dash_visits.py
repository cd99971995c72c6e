"""Visits of a browser to the pages of opsctl dash, and what it measures there."""

import json
from pathlib import Path

from opsctl.dash.page_access import Role
from tests.support.chromium import Browser
from tests.support.dash_site import Visitor

SIZES = {"phone": (390, 844), "desk": (1440, 900), "wall": (1920, 1080)}
LOW_CONTRAST = Path(__file__).with_name("low_contrast.js").read_text()
"""Texts whose contrast is below the 4.5 of WCAG AA."""


def enter(chromium: Browser, visitor: Visitor, role: Role, path: str = "/", **look: str) -> None:
    """Open a page as a person does: by the link with the token, in a browser without a cookie."""
    chromium.call("Network.clearBrowserCookies")
    link = f"http://localhost:{visitor.port}{path}#token={visitor.server.access.token(role)}"
    chromium.open(link, size=SIZES[look.get("size", "phone")], scheme=look.get("scheme", "light"))
    chromium.wait_for("document.querySelector('.train, .tile, .head')")


def find_problems(chromium: Browser) -> list[str]:
    """Return what the console shows, except that the page asked for the token first."""
    texts = [json.dumps(event["params"]) for event in chromium.read_console()]
    return [text for text in texts if "status of 401" not in text]
