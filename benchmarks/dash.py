"""The pages of opsctl dash under load: python -P benchmarks/dash.py

Fifty trains with logs of 2,000 steps, twenty viewers with live events in another process, who load their page at every
change, within 1.5 s as the page's script does. Slurm answers at once and is counted. Takes about two minutes.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from opsctl.dash.collect_site import collect_site
from opsctl.dash.page_access import Role
from opsctl.dash.pages import PageContext, render_overview, render_wall
from tests.support.dash_site import LINE, DashSite, make_site, serving

TRAINS, VIEWERS, EVERY_S, LASTING_S = 50, 20, 30.0, 100.0
PATHS = ("/", "/?wall", "/train/t07")


def view(port: int, cookie: str, path: str, until: float, times: list[float]) -> None:
    """Follow the events like a page, and load the page at every new version."""
    headers = {"Host": "localhost", "Cookie": cookie}
    events = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    events.request("GET", "/events", headers=headers)
    stream = events.getresponse()
    version = None
    while time.monotonic() < until:
        line = stream.fp.readline()
        if not line.startswith(b"data: ") or json.loads(line[6:])["version"] == version:
            continue
        version = json.loads(line[6:])["version"]
        time.sleep(1.5 * random.random())
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        began = time.perf_counter()
        page.request("GET", path, headers=headers)
        answer = page.getresponse()
        answer.read()
        times.append(1000 * (time.perf_counter() - began))
        assert answer.status == 200
        page.close()
    events.close()


def follow(port: int, cookie: str, seconds: float, results: multiprocessing.Queue) -> None:
    """Run all viewers; put their times by page."""
    until = time.monotonic() + seconds
    times: dict[str, list[float]] = {path: [] for path in PATHS}
    threads = [
        threading.Thread(target=view, args=(port, cookie, PATHS[n % 3], until, times[PATHS[n % 3]]))
        for n in range(VIEWERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(times)


def write_steps(site: DashSite, stop: threading.Event) -> None:
    """Append to every log, as trainers do."""
    step = 300
    while not stop.wait(2.0):
        step += 1
        for number in range(TRAINS):
            with site.run(f"t{number:02}").main_log.open("a") as log:
                log.write(LINE.format(step, 2.0))


def measure(render: Callable[[], str]) -> float:
    """Return the milliseconds of CPU time of the second rendering."""
    render()
    began = time.process_time()
    render()
    return 1000 * (time.process_time() - began)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="opsctl-bench-") as name:
        os.environ["XDG_STATE_HOME"] = name
        site = make_site(Path(name), tuple(f"t{number:02}" for number in range(TRAINS)), steps=2000)
        collect_site(site.app)  # imports
        began = time.process_time()
        view_now = collect_site(site.app)
        collect_ms = 1000 * (time.process_time() - began)
        rendered = {
            "/": measure(lambda: render_overview(view_now, PageContext(role="act"))),
            "/?wall": measure(lambda: render_wall(view_now, PageContext())),
        }
        site.slurm.calls.clear()
        results: multiprocessing.Queue = multiprocessing.get_context("spawn").Queue()
        stop = threading.Event()
        with serving(site, every_s=EVERY_S) as visitor:
            visitor.enter(Role.VIEW)
            visitor.ask("/")
            port, cookie = visitor.port, visitor.cookie
            viewers = multiprocessing.get_context("spawn").Process(
                target=follow, args=(port, cookie, LASTING_S, results)
            )
            threading.Thread(target=write_steps, args=(site, stop), daemon=True).start()
            began = time.monotonic()
            viewers.start()
            times = results.get(timeout=LASTING_S + 60)
            lasted_s = time.monotonic() - began
            viewers.join()
            versions = visitor.server.refresher.version
            stop.set()
        squeue, sinfo = site.slurm.calls.count("squeue"), site.slurm.calls.count("sinfo")
    print(f"one refresh of {TRAINS} trains, without Slurm's answer: {collect_ms:.0f} ms of CPU time")
    print(f"CPU time of one rendering: {', '.join(f'{path} {cpu_ms:.1f} ms' for path, cpu_ms in rendered.items())}")
    print(f"{VIEWERS} viewers, {lasted_s:.0f} s, a refresh every {EVERY_S:g} s: {squeue} squeue, {sinfo} sinfo")
    print(f"versions: {versions}")
    for path, page_ms in times.items():
        ordered = sorted(page_ms)
        print(
            f"{path:12} {len(ordered):4} loads, median {statistics.median(ordered):.0f} ms,"
            f" 95 % {ordered[int(0.95 * len(ordered))]:.0f} ms, worst {ordered[-1]:.0f} ms"
        )


if __name__ == "__main__":
    main()
