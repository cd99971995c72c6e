"""What the pages may claim: tiers of need, age of data, figures of held trains, progress, nodes and alerts."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from opsctl.base.findings import Severity
from opsctl.base.model import JobState, Node
from opsctl.base.statements import state
from opsctl.dash.alert_groups import group_alerts
from opsctl.dash.collect_site import WatchAge, collect_site, is_worth_showing
from opsctl.dash.node_tiles import describe_lost_nodes, describe_state, list_node_tiles
from opsctl.dash.pages import PageContext, render_overview, render_wall
from opsctl.dash.queue_end import QueueEnd
from opsctl.dash.show_times import format_ago, format_day_time
from opsctl.dash.train_card import describe_progress, format_progress
from opsctl.dash.train_figures import Figure, list_figures
from opsctl.dash.train_headline import Outlook, Tone, write_headline
from opsctl.dash.train_reasons import explain
from opsctl.diagnosis.blame import may_exclude
from opsctl.diagnosis.causes import Cause, causes
from opsctl.diagnosis.excerpt import find_matched_line, find_place
from opsctl.monitor.status import Running, TrainStatus
from opsctl.state.journal import TrainHistory
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.telemetry.progress.run_progress import Progress
from opsctl.watchdogs.held_cause import advise_still
from tests.support.cases import read_cases
from tests.support.dash_site import DashSite
from tests.unit.dash.test_headline import AT, alert, crashes, last, status

RUNNING = Running(job="1_2", state="RUNNING", nodes="node[004-006]", since=AT, ends=None)
LOST = alert(
    "warning",
    key="failures/tr11/1_1.0",
    kind="failures.continues_without",
    node="node002",
    summary="tr11 continues without node002: 1_1.0: node: Slurm lost it",
)
PAGES = (render_overview, render_wall)
SHORT = QueueEnd(queued=44, needed=156, at=AT + timedelta(hours=15), command="opsctl launch train.toml --tasks 112")


def progress(**fields: Any) -> Progress:
    known = {"step": 130, "last_step": 4000, "loss": 2.486, "tflops": 152.0, "step_s": 23.9, "phase": ""}
    known |= {"checkpoint_step": 100, "checkpoint_at": AT, "next_save_s": 480.0, "left": None}
    return Progress(**{**known, "at": AT + timedelta(minutes=1), **fields})


def running(**fields: Any) -> TrainStatus:
    return status("running", running=(RUNNING,), progress=progress(), **fields)


def headline(train: TrainStatus, **outlook: Any):
    return write_headline(train, TrainHistory(), Outlook(now=AT + timedelta(minutes=5), **outlook))


# --- tiers


def test_recovered_train_needs_nobody() -> None:
    found = headline(running(alerts=(LOST,)))
    assert (found.tone, found.text) == (Tone.GREEN, "Recovered 03:00:00 UTC: restarted without node002")


def test_recovery_is_claimed_only_after_a_step() -> None:
    train = replace(running(alerts=(LOST,)), progress=progress(at=AT - timedelta(minutes=1)))
    assert headline(train).text == "Restarting without node002"


def test_short_queue_ranks_above_a_recovery() -> None:
    found = headline(running(alerts=(LOST,)), queue_end=SHORT)
    text = "Queued tasks run out about 18:00 UTC (44 of 156 needed are queued)"
    assert (found.tone, found.text, found.short) == (Tone.BLUE, text, "Queued tasks run out")
    soon = replace(SHORT, at=AT + timedelta(minutes=50))
    assert headline(running(), queue_end=soon).tone is Tone.AMBER
    assert headline(running(), queue_end=replace(SHORT, at=None)).tone is Tone.BLUE


def test_running_on_an_excluded_node_is_amber() -> None:
    found = headline(running(), excluded={"node004": AT})
    assert (found.tone, found.text) == (Tone.AMBER, "Runs on node004, excluded for new attempts since 03:00:00 UTC")


def test_finished_train_is_never_red() -> None:
    hang, lost = alert("critical"), replace(LOST, severity=Severity.CRITICAL)
    assert headline(status("finished", alerts=(lost,))).tone is Tone.GREEN
    assert headline(status("finished", alerts=(hang,))).tone is Tone.AMBER


def test_kept_faulty_node_asks_for_a_decision() -> None:
    summary = "tr11 continues with node002, too few other nodes: 1_1.0: gpu: fell off"
    kept = replace(LOST, severity=Severity.CRITICAL, kind="failures.continues_with", summary=summary)
    found = headline(running(alerts=(kept,)))
    assert (found.tone, found.text) == (Tone.AMBER, "Continues with node002, for lack of other nodes")


def test_summary_names_the_train_and_the_rest(site: DashSite) -> None:
    view = collect_site(site.app)
    assert view.summary == "1 needs you now: tr11, running 5 min"
    assert view.rest == "1 running"


def test_summary_without_needs_is_calm(site: DashSite) -> None:
    view = collect_site(site.app)
    well = [replace(card, headline=replace(card.headline, tone=Tone.GREEN)) for card in view.trains]
    calm = replace(view, trains=tuple(well))
    assert (calm.summary, calm.rest) == ("Nothing needs you now", "2 running")
    late = replace(calm, watch=WatchAge(last=AT, now=AT + timedelta(hours=3)))
    assert late.summary == "Nothing is watched: last watch cycle 3 h ago"
    amber = replace(well[0], headline=replace(well[0].headline, tone=Tone.AMBER, short="queue runs dry"))
    assert replace(view, trains=(amber, well[1])).rest == "1 needs a decision (tr11: queue runs dry) · 1 running"


# --- age


@pytest.mark.parametrize(("every_s", "stale_s"), [(5, 60), (30, 60), (300, 330)])
def test_page_is_stale_after_a_minute(every_s: float, stale_s: float) -> None:
    assert PageContext(every_s=every_s).stale_after_s == stale_s


def test_fresh_page_does_not_vouch_for_the_watch(site: DashSite) -> None:
    (site.app.site_dir.alerts / "ledger.json").unlink()
    text = render_overview(collect_site(site.app), PageContext())
    assert '<span class="watch late" id="watch" data-live> · no watch cycle yet</span>' in text
    assert "Alerts may be missing: no watch cycle yet." in text


def test_late_watch_is_late() -> None:
    assert WatchAge(last=AT, now=AT + timedelta(minutes=5)).is_late is False
    late = WatchAge(last=AT, now=AT + timedelta(hours=3))
    assert (late.is_late, late.text) == (True, "last watch cycle 3 h ago")


def test_times_have_a_zone() -> None:
    now = AT + timedelta(minutes=4)
    assert format_ago(now, AT) == "4 min ago (03:00:00 UTC)"
    assert format_day_time(AT, AT + timedelta(days=1)) == "Mon 03:00 UTC"


# --- figures


def figures(train: TrainStatus, queue_end: QueueEnd | None = None) -> dict[str, tuple[str, str]]:
    now: datetime = AT + timedelta(minutes=6)
    line = SimpleNamespace(step=130, loss=2.486, step_s=23.9, global_batch=2048)
    found = list_figures(train, crashes("node003"), [line], queue_end, now)  # type: ignore[list-item]
    return {figure.name: (figure.value.replace("\u00a0", " "), figure.detail) for figure in found}


def test_held_train_has_no_present_figures() -> None:
    found = figures(status("held", progress=progress(), last_attempt=last("crashed", "hold-queued")))
    assert found["Throughput"] == ("last 85.7 samples/s", "5 min ago (03:01:00 UTC)")
    assert found["Loss"][0] == "last 2.486"
    assert found["Checkpoint"] == ("step 100", "6 min ago (03:00:00 UTC) · no checkpoint while held")
    assert found["Ends"] == ("No ETA: held", "held by opsctl")


def test_end_says_what_it_assumes() -> None:
    left = SimpleNamespace(likely=3600.0, early=3600.0, late=3600.0, attempts=156)
    train = replace(running(), progress=progress(left=left))
    assert figures(train, SHORT)["Ends"] == ("04:06 UTC", "if 112 more tasks are queued")


def test_end_is_never_empty() -> None:
    assert figures(running())["Ends"][0] == "No ETA yet"
    assert figures(status("ended", progress=progress()))["Ends"][0] == "No ETA: ended"


@pytest.mark.parametrize(*read_cases(__file__, "progress_is_rounded_down"))
def test_progress_is_rounded_down(share: float, text: str, *, is_finished: bool) -> None:
    assert format_progress(share, is_finished=is_finished) == text


def test_progress_of_a_held_train_is_what_is_saved() -> None:
    stopped, goes_on = status("held", progress=progress()), running()
    assert describe_progress(goes_on) == (130 / 4000, "step 130 of 4,000")
    assert describe_progress(stopped) == (100 / 4000, "step 100 of 4,000 saved, 30 steps lost")
    unsaved = replace(stopped, progress=progress(checkpoint_step=None))
    assert describe_progress(unsaved) == (130 / 4000, "step 130 of 4,000, no checkpoint known")
    assert describe_progress(status("finished", progress=progress())) == (130 / 4000, "step 130 of 4,000")


def test_state_has_one_glyph_on_every_page(site: DashSite) -> None:
    view = collect_site(site.app)
    glyphs = {re.findall(r'<i aria-hidden="true">(.)</i> RUNNING', render(view, PageContext()))[0] for render in PAGES}
    assert len(glyphs) == 1


# --- reasons


def test_hold_has_one_count_and_no_log_text() -> None:
    why = "the body exited with 1; 5 attempts in a row made no progress beyond step 130: 7_2.0 crashed"
    end = replace(last("crashed", "hold-queued"), attempt="7_6.0", why=why)
    train = status("held", last_attempt=end, progress=progress())
    reason = Reason(kind=ReasonKind.STANDSTILL, step=130, count=5)
    found = explain(train, crashes(*["node003"] * 6, reason=reason), {"node003"})
    assert found.why == "None of the 6 attempts got beyond step 130; newest checkpoint: step 100"
    assert found.steps[0].text.endswith(". Power-cycle the node; check the power, cooling and seating of the card.")


@pytest.mark.parametrize(*read_cases(__file__, "fix_comes_before_the_release"))
def test_fix_comes_before_the_release(needed: str, text: str, command: str) -> None:
    history = crashes("", reason=Reason(kind=ReasonKind.CRASH_LOOP, change=needed))
    steps = explain(status("held", last_attempt=last("crashed", "hold-queued")), history, {}).steps
    assert [(step.text, step.command) for step in steps] == [
        (text, command),
        ("Then release the train.", "opsctl release tr11"),
    ]


def test_hold_by_a_person_needs_only_a_release() -> None:
    train = status("held", last_attempt=last("finished"))
    assert [step.command for step in explain(train, TrainHistory(), {}).steps] == ["opsctl release tr11"]


@pytest.mark.parametrize(
    "cause", [cause for cause in causes() if may_exclude(cause.kind)], ids=lambda cause: cause.name
)
def test_advice_never_asks_for_an_exclusion_that_is_done(cause: Cause) -> None:
    diagnosed = replace(crashes("node003").diagnosed["7_1.0"], cause=cause.name, advice=cause.advice)
    assert "exclude" not in advise_still(diagnosed, {"node003"}).lower()


def test_advice_keeps_an_exclusion_that_is_due() -> None:
    diagnosed = crashes("node003").diagnosed["7_1.0"]
    assert advise_still(diagnosed, {}) == diagnosed.advice
    assert advise_still(diagnosed, {"node003"}).startswith("Power-cycle the node; ")
    assert advise_still(replace(diagnosed, cause="of-a-newer-version"), {"node003"}) == diagnosed.advice


def test_head_of_a_traceback_is_no_evidence() -> None:
    xid = "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."
    head = "Traceback (most recent call last):"
    assert find_matched_line("gpu-off-the-bus", ["step 129", xid, head]) == xid
    assert find_matched_line("other", ["step 129", head]) == "step 129"
    assert find_matched_line("other", [head]) == ""
    assert find_place(['  File "/w/data.py", line 88, in read', "KeyError: 1"]) == "data.py, line 88, in read"


def test_page_offers_the_rollback_of_an_alert() -> None:
    train = running(alerts=(alert("critical", key="loss/tr11", rollback_step=900),))
    step = explain(train, TrainHistory(), {}).steps[-1]
    assert (step.command, step.verb, step.number) == ("opsctl rollback tr11 --to 900", "rollback", 900)


def test_attempt_that_waits_for_space_is_red() -> None:
    train = status("running", running=(replace(RUNNING, full_disk="/save"),), progress=progress())
    assert (headline(train).tone, headline(train).text) == (Tone.RED, "Waits for space on the disk of /save")
    assert explain(train, TrainHistory(), {}).steps[0].command == "opsctl checkpoint list tr11"


# --- nodes, disks, alerts


def test_node_facts_stay_apart(site: DashSite) -> None:
    site.app.exclusions.add([("node001", "opsctl: gpu-off-the-bus")], hours=1)
    nodes = [Node(name="node001", state="IDLE", address="node001")]
    idle = next(list_node_tiles(site.app, nodes, {}, {}))
    assert (idle.tone, idle.state_tone, idle.why_excluded) == ("quiet", "quiet", "opsctl: gpu-off-the-bus")
    assert idle.excluded_since
    assert next(list_node_tiles(site.app, nodes, {"node001": ["tr11"]}, {})).tone == "amber"


def test_silent_node_has_a_star() -> None:
    assert [describe_state(state) for state in ("DOWN+NOT_RESPONDING", "IDLE*", "MIXED")] == ["DOWN*", "IDLE*", "MIXED"]


def test_train_on_an_excluded_node_is_found(site: DashSite) -> None:
    site.app.exclusions.add([("node002", "fell off")], hours=1)
    card = collect_site(site.app).find("tr12")
    assert card
    assert card.headline.text.startswith("Runs on node002, excluded for new attempts since")


def test_ack_stands_beside_its_alert(site: DashSite) -> None:
    """The headline is about the queue; the alert about something else has its own text beside its buttons."""
    view = collect_site(site.app)
    card = next(card for card in view.trains if card.name == "tr11")
    dry = replace(card, headline=replace(card.headline, alert="", text="Queue runs dry about 18:00 UTC"))
    text = render_overview(replace(view, trains=(dry,)), PageContext(role="act"))
    (row,) = re.findall(r'<div class="alert">.*?</div>', text.partition('id="alerts"')[0], re.DOTALL)
    assert re.search(r"<p>.+</p>", row)
    assert 'data-verb="ack" data-train="tr11" data-keys="hang/tr11"' in row
    assert 'data-verb="ack"' not in text.partition('id="alerts"')[0].replace(row, "")


def test_page_does_not_read_its_own_words(site: DashSite) -> None:
    view = collect_site(site.app)
    card = next(card for card in view.trains if card.name == "tr11")
    other = replace(
        card, headline=replace(card.headline, text="It hangs"), figures=(Figure(name="Ends", value="Never"),)
    )
    view = replace(view, trains=(other,))
    row = render_overview(view, PageContext(role="act")).partition('<div class="alert">')[2].partition("</div>")[0]
    assert "<p>" not in row
    assert "<span>Never</span>" in render_wall(view, PageContext())


def test_calm_train_keeps_its_alerts_folded(site: DashSite) -> None:
    view = collect_site(site.app)
    card = next(card for card in view.trains if card.name == "tr11")
    calm = replace(card, headline=replace(card.headline, tone=Tone.GREEN))
    text = render_overview(replace(view, trains=(calm,)), PageContext(role="act"))
    assert 'class="alert"' not in text.partition("<details")[0]
    assert 'class="alert"' in text.partition("<details")[2].partition("</details>")[0]


def test_count_of_alerts_is_a_phrase(site: DashSite) -> None:
    other = replace(
        LOST, train="llama", key="failures/llama/5_1.0", summary="llama continues without node002: 5_1.0: x"
    )
    view = replace(collect_site(site.app), alerts=(LOST, other))
    assert "<small>1 cause, 2 alerts</small>" in render_overview(view, PageContext())


def test_lost_node_names_the_held_train(site: DashSite) -> None:
    site.app.exclusions.add([("node003", "lost")], hours=1)
    nodes = [Node(name="node003", state="DOWN+NOT_RESPONDING", address="node003")]
    tile = next(list_node_tiles(site.app, nodes, {}, {"node003": ["tr11"]}))
    assert tile.ended == ("tr11",)
    text = "node003, a node of the last attempt, is DOWN* and excluded for new attempts"
    assert describe_lost_nodes(("node003", "node004"), [tile]) == (text,)
    assert describe_lost_nodes(("node004",), [tile]) == ()


def test_lost_node_and_held_train_name_each_other(site: DashSite) -> None:
    rows = [row for row in site.slurm.rows if row.name == "tr12" and row.state is JobState.PENDING]
    site.slurm.rows = [replace(row, reason="JobHeldUser") for row in rows]
    site.slurm.tiles = [Node(name="node001", state="DOWN+NOT_RESPONDING", address="node001")]
    view = collect_site(site.app)
    card = view.find("tr12")
    assert card
    assert card.state == "held"
    assert card.marks == ("node001, a node of the last attempt, is DOWN*",)
    assert view.nodes
    assert "tr12" in view.nodes[0].ended


def test_cron_without_a_driver_has_no_next_run(site: DashSite) -> None:
    view = collect_site(site.app)
    assert view.cron
    assert view.cron.entries
    text = render_overview(view, PageContext())
    assert "No driver runs these entries" in text
    assert "<th>next</th>" not in text
    driven = replace(view, cron=replace(view.cron, driver="the daemon with pid 12"))
    assert "<th>next</th>" in render_overview(driven, PageContext())


def test_one_lost_node_is_one_row() -> None:
    other = replace(
        LOST, train="llama", key="failures/llama/5_1.0", summary="llama continues without node002: 5_1.0: x"
    )
    (group,) = group_alerts([LOST, other])
    assert group.title == "tr11, llama: continues without node002"
    assert group.open_keys == ("failures/tr11/1_1.0", "failures/llama/5_1.0")


@pytest.mark.parametrize(*read_cases(__file__, "far_and_unmeasured_horizons_are_hidden"))
def test_far_and_unmeasured_horizons_are_hidden(kind: str, facts: dict[str, Any], *, is_shown: bool) -> None:
    assert is_worth_showing(state(kind, **facts)) is is_shown


def test_page_says_what_was_found_instead_of_a_checkpoint() -> None:
    found = {"checkpoint_note": "43 found", "checkpoint_doubt": "none is complete, common.pt is missing"}
    train = status("running", running=(RUNNING,), progress=progress(checkpoint_step=None, **found))
    assert figures(train)["Checkpoint"] == tuple(found.values())
    snapshot = progress(checkpoint_step=None, checkpoint_note="snapshot.pt")
    value, detail = figures(status("running", running=(RUNNING,), progress=snapshot))["Checkpoint"]
    assert (value, detail.replace("\u00a0", " ")) == ("snapshot.pt", "6 min ago (03:00:00 UTC)")
    assert figures(status("running", progress=progress(checkpoint_step=None)))["Checkpoint"] == ("none yet", "")


def test_page_shows_epochs_where_no_step_is_known() -> None:
    train = status("running", running=(RUNNING,), progress=progress(step=0, is_step_known=False, epoch=0.52))
    assert describe_progress(train) == (None, "epoch 0.52")
    assert headline(train).text == "Training at epoch 0.52"


def test_headline_names_spares_and_restarts_in_place() -> None:
    running = replace(RUNNING, restarts=2, spares=("node007",))
    train = status("running", running=(running,), progress=progress(step=1200))
    text = write_headline(train, TrainHistory(), Outlook(now=AT)).text
    assert text == "Training at step 1,200, spare: node007, restarted in place 2 times"
