"""How fast the site's nodes are against their partners, by the stored step times."""

from opsctl.app import App
from opsctl.nodes.slow_nodes import NodeSpeed, judge_speed


def find_speeds(app: App, train: str = "") -> dict[str, NodeSpeed]:
    """Return the speed of each node with step times; with `train`, of the nodes that this train has run on.

    A speed covers the attempts of all trains in the last health.lemon_days.
    """
    now, days = app.clock.now(), app.site.health.lemon_days
    speeds = {}
    for record in app.history.all():
        is_chosen = not train or any(attempt.startswith(f"{train}/") for attempt in record.step_times)
        speed = judge_speed(record.step_times.values(), now, days) if is_chosen else None
        if speed:
            speeds[record.node] = speed
    return speeds
