"""Render the pages: autoescaped templates with their style and scripts inside, which a hash in the policy allows."""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from opsctl.app import App
from opsctl.base.nodesets import fold
from opsctl.dash.alert_groups import count_alerts
from opsctl.dash.collect_site import SiteView, SlurmAnswer, collect_site, collect_train
from opsctl.dash.log_search import LogExcerpt
from opsctl.dash.show_times import format_age, format_ago, format_clock, format_moment
from opsctl.dash.steering import VERBS
from opsctl.dash.train_card import TrainCard
from opsctl.dash.train_detail import TrainDetail, try_detail
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.log_lines import plain

PACKAGE = Path(__file__).parent
STYLES = ("dash.css", "uplot.css")
SCRIPTS = ("uplot.js", "dash.js", "curves.js", "login.js")
ICONS = defaultdict(lambda: "○", RUNNING="▶", QUEUED="◷", HELD="■", ENDED="■", FINISHED="✓", UNKNOWN="?")
"""By the word of the state."""
BADGES: Mapping[str, str] = {
    "red": "needs you now",
    "amber": "▲ needs a decision",
    "blue": "◷ due later",
    "unknown": "",
    "green": "",
    "quiet": "",
}
STALE_S = 60.0
"""A view that is older than this is shown as stale, unless refreshes come less often."""
REFRESH_S = 30.0
"""A refresh takes no longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """What a page knows of its surroundings."""

    base: str = ""
    """The path prefix of the server, without a slash at its end."""
    role: str = "view"
    """`act` shows the buttons."""
    is_static: bool = False
    """A file without a server: no live updates, no log, no buttons."""
    is_alone: bool = False
    """A file without other pages beside it."""
    version: int = 0
    """Of the view on the page, so that the page knows whether a newer view exists."""
    every_s: float = 30.0
    problem: str = ""

    @property
    def stale_after_s(self) -> float:
        return max(STALE_S, self.every_s + REFRESH_S)

    @property
    def acts(self) -> bool:
        return self.role == "act" and not self.is_static

    def home(self) -> str:
        return "index.html" if self.is_static else f"{self.base}/"

    def wall(self) -> str:
        return "wall.html" if self.is_static else f"{self.base}/?wall"

    def train(self, name: str) -> str:
        return f"train-{quote(name, safe='')}.html" if self.is_static else f"{self.base}/train/{quote(name, safe='')}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([PACKAGE / "templates", PACKAGE / "assets"]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # what a browser shows as it is
    )
    environment.filters["age"] = format_age
    environment.filters["json_data"] = _to_json
    environment.filters["moment"] = lambda at, now: format_moment(now, at) if at else ""
    environment.filters["exact"] = lambda at: f"{at:%H:%M:%S %Z}"
    environment.filters["ago"] = lambda at, now: format_ago(now, at)
    environment.filters["clock"] = lambda at, now: format_clock(now, at)
    environment.filters["since"] = lambda at, now: format_clock(now, datetime.fromisoformat(at))
    environment.filters["fold"] = lambda names: fold(list(names))
    environment.globals |= {"verbs": VERBS, "icons": ICONS, "count_alerts": count_alerts, "badges": BADGES}
    return environment


def _to_json(data: object) -> Markup:
    """Return JSON that is harmless inside a script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, default=str)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (no character of markup is left)


@cache
def read_asset(name: str) -> str:
    environment = _environment()
    assert environment.loader
    return environment.loader.get_source(environment, name)[0].strip()


@cache
def _styles() -> str:
    return "\n".join(map(read_asset, STYLES))


@cache
def content_policy(*, is_static: bool) -> str:
    """Return the Content-Security-Policy: only the styles and scripts of this package, nothing from elsewhere."""
    scripts = " ".join(_hash(read_asset(name)) for name in SCRIPTS)
    parts = [
        "default-src 'none'",
        f"style-src {_hash(_styles())}",
        f"script-src {scripts}",
        "img-src data:",
        "base-uri 'none'",
        f"form-action {'none' if is_static else 'self'!r}",
    ]
    if not is_static:  # a meta element cannot forbid frames, and a file connects to nothing
        parts += ["connect-src 'self'", "frame-ancestors 'none'"]
    return "; ".join(parts)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _render(template: str, context: PageContext, **values: object) -> str:
    values |= {
        "context": context,
        "style": Markup(_styles()),  # noqa: S704 (a file of this package)
        "script": Markup(read_asset("dash.js")),  # noqa: S704 (as above)
        "login": Markup(read_asset("login.js")),  # noqa: S704 (as above)
        "policy": content_policy(is_static=True) if context.is_static else "",
    }
    return _environment().get_template(template).render(values)


def render_overview(view: SiteView, context: PageContext) -> str:
    """Return the first page: the trains, then nodes, alerts, cron and disks."""
    return _render("overview.html.j2", context, view=view, title=f"{view.summary} · {view.site}")


def render_wall(view: SiteView, context: PageContext) -> str:
    """Return the page of tiles that are readable from afar."""
    return _render("wall.html.j2", context, view=view, title=f"{view.summary} · {view.site}")


def render_train(view: SiteView, card: TrainCard, detail: TrainDetail | str | None, context: PageContext) -> str:
    """Return the page of one train. `detail` is None while it is read, and a text if it cannot be read."""
    values: Mapping[str, object] = {
        "view": view,
        "card": card,
        "detail": detail if isinstance(detail, TrainDetail) else None,
        "missing": detail if isinstance(detail, str) else "",
        "nodes": [tile for tile in view.nodes or () if tile.name in (card.nodes or card.last_nodes)],
        "title": f"{card.name} {card.headline.word} · {view.site}",
        "others": [other.name for other in view.trains if other is not card and not context.is_static],
        "uplot": Markup(read_asset("uplot.js")),  # noqa: S704 (a file of this package)
        "curves": Markup(read_asset("curves.js")),  # noqa: S704 (as above)
    }
    return _render("train.html.j2", context, **values)


def render_log(excerpt: LogExcerpt) -> str:
    """Return the lines of a log as a fragment of a page."""
    return _environment().get_template("log.html.j2").render(excerpt=excerpt)


def render_login(context: PageContext, message: str) -> str:
    """Return the page that exchanges the token in the address for a cookie."""
    return _render("login.html.j2", context, title="opsctl", message=message)


def render_files(app: App) -> Mapping[str, str]:
    """Return every page by file name: `index.html`, `wall.html` and `train-NAME.html`, for sites without ports."""
    view, context = collect_site(app), PageContext(is_static=True)
    pages = {"index.html": render_overview(view, context), "wall.html": render_wall(view, context)}
    for card in view.trains:
        detail = try_detail(app, RunDir(app.root / card.name))
        pages[f"train-{quote(card.name, safe='')}.html"] = render_train(view, card, detail, context)
    return pages


def render_train_file(app: App, run: RunDir, slurm: SlurmAnswer) -> str:
    """Return the page of one train as a file that links to no other."""
    view = collect_train(app, run, slurm)
    return render_train(view, view.trains[0], try_detail(app, run), PageContext(is_static=True, is_alone=True))
