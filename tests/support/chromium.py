"""A real browser, driven over a pipe by its DevTools protocol, without a library or a port."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cases import read_table

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS: list[str] = read_table(__file__, "flags")


class ProtocolError(Exception):
    """The browser refused a call, or could not end it: an expression ends with the page that it ran on."""


class Browser:
    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, back
        self.number = 0
        self.buffer = b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session: str | None = None

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        fields = {"id": self.number, "method": method, "params": params}
        os.write(self.to, json.dumps(fields | ({"sessionId": self.session} if self.session else {})).encode() + b"\0")
        while (answer := self.next()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise ProtocolError(f"{method}: {answer['error']}")
        return answer["result"]

    def next(self) -> dict[str, Any]:
        deadline = time.monotonic() + 200
        while b"\0" not in self.buffer:
            assert select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))[0], "the browser is silent"
            data = os.read(self.back, 1 << 16)
            assert data, "the browser is gone"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def show(self, page: Path, *, width: int, scheme: str) -> None:
        """Open a page and wait until it is loaded."""
        self.open(page.as_uri(), size=(width, 900), scheme=scheme)

    def open(self, url: str, *, size: tuple[int, int], scheme: str = "light") -> None:
        """Open an address in a window of this size and wait until the page is loaded."""
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # An address that differs from the page's in its fragment alone would load nothing.
        self._load("about:blank")
        self._load(url)

    def _load(self, url: str) -> None:
        self.events = []
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"]
        return result.get("value")

    def wait_for(self, expression: str, *, seconds: float = 60) -> None:
        """Wait until an expression has a true value on the page."""
        until = time.monotonic() + seconds
        while not self._is_true(expression):
            assert time.monotonic() < until, f"not on the page: {expression}"
            time.sleep(0.1)

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except ProtocolError:
            return False  # the page is just loaded anew

    def read_console(self) -> list[dict[str, Any]]:
        """Return the events that the browser's console would show."""
        self.evaluate("0")
        methods = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
        return [event for event in self.events if event.get("method") in methods]

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def take_screenshot(self, path: Path, *, max_height: int = 20_000) -> bytes:
        """Write the page to `path` as PNG or WebP, by its suffix, and return the data."""
        height = min(max_height, self.evaluate("document.documentElement.scrollHeight"))
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        form = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip, **form)
        data = base64.b64decode(answer["data"])
        path.write_bytes(data)
        return data


@contextmanager
def browser(program: str, home: Path) -> Iterator[Browser]:
    """Run a browser; all its processes end with the block."""
    (read, to), (back, write) = os.pipe(), os.pipe()
    # The protocol uses descriptors 3 and 4.
    script = f'exec "$@" 3<&{read} 4>&{write}'
    argv = ["bash", "-c", script, "bash", program, *FLAGS, f"--user-data-dir={home}"]
    env = {**os.environ, "HOME": str(home)}
    with (home / "stderr.txt").open("wb") as err:
        process = subprocess.Popen(
            argv, pass_fds=(read, write), stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=env
        )
    os.close(read)
    os.close(write)
    try:
        driver = Browser(to, back)
        yield driver
        driver.session = None
        driver.call("Browser.close")
    finally:
        os.close(to)
        os.close(back)
        try:
            process.wait(250)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
