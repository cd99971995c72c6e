"""The pages as files, for sites without ports: no server, no live updates, no actions, no log."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from opsctl.app import App
from opsctl.dash.collect_site import SlurmAnswer, collect_site, collect_train
from opsctl.dash.pages import PageContext, render_overview, render_train, render_wall
from opsctl.dash.train_detail import try_detail
from opsctl.state.run_dir import RunDir


def render_files(app: App) -> Mapping[str, str]:
    """Return every page by file name: `index.html`, `wall.html` and `train-NAME.html`."""
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
