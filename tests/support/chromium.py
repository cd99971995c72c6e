"""A real browser, driven over a pipe by its own protocol (DevTools): no library, no port, nothing left behind."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


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
        assert "error" not in answer, (method, answer)
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
        """Open a page; returns when all of it is there."""
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.next())

    def ask(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def complaints(self) -> list[dict[str, Any]]:
        """All that its console would show."""
        self.ask("0")
        spoken = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}
        return [event for event in self.events if event.get("method") in spoken]

    def requests(self) -> list[str]:
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def picture(self, path: Path) -> bytes:
        """All of the page, as PNG."""
        height = self.ask("document.documentElement.scrollHeight")
        width = self.ask("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        data = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])
        path.write_bytes(data)
        return data


@contextmanager
def browser(program: str, home: Path) -> Iterator[Browser]:
    """Ends with all of its processes."""
    (read, to), (back, write) = os.pipe(), os.pipe()
    # Its protocol wants descriptors 3 and 4.
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
        found = Browser(to, back)
        yield found
        found.session = None
        found.call("Browser.close")
    finally:
        os.close(to)
        os.close(back)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
