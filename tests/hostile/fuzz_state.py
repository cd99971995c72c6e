"""Every file format below the shared root, by name. The names continue those of fuzz_targets.py."""

from pathlib import Path

from opsctl.alerts import ledger_files, outbox
from opsctl.alerts.ledger_files import LedgerFiles
from opsctl.base import nodesets
from opsctl.checkpoints import catalog
from opsctl.cron import cron_dir
from opsctl.cron.cron_dir import CronDir
from opsctl.guard import attempt_record, finalize, stop_request
from opsctl.host.system import SystemClock
from opsctl.launch import revisions
from opsctl.nodes import exclusions, history
from opsctl.preflight import recipe
from opsctl.publish import staging
from opsctl.settings import loader
from opsctl.state import files, lease, requests, switches
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.logs import growing_file
from opsctl.telemetry.progress import iteration_lines, read_log, run_progress
from opsctl.trainer import contract, manifest
from opsctl.watchdogs import context as watchdog_context
from tests.hostile.fuzz import FuzzTarget
from tests.hostile.fuzz_targets import ITEM, JSON, LEDGER, LOGS, TRAIN, VALUES, file, make_place, site, text
from tests.support.cases import read_table

EXAMPLES = {name: tuple(map(str.encode, texts)) for name, texts in read_table(__file__, "examples").items()}
STEP_TIMES = (b'{"node": "n", "rank": 1, "local_rank": 1, "steps": 99, "compute_s": 0.5, "work": ""}', *JSON)


def run() -> RunDir:
    return RunDir(make_place() / "tr11")


def attempt() -> Attempt:
    return run().attempt("12_1.0")


def read_journal(_: Path) -> object:
    events = Journal(run(), SystemClock()).events()
    return replay(events), [event.when for event in events]


def read_requests(_: Path) -> object:
    return [request.path.unlink() for request in requests.read_requests(run())[0]]


def read_stage(path: Path) -> object:
    stage = staging.Stage(
        directory=path.parent, state=path, rules="", secrets="", deadline=staging.TimeLimit(SystemClock(), 1, 1)
    )
    stage.open()
    return stage.is_current("a", "b")


def load_train(path: Path) -> object:
    train = loader.load_train(path)
    return recipe.read_recipe(train)


STATE_TARGETS: dict[str, FuzzTarget] = {
    "train.toml": file(load_train, "preflight/*.toml", examples=TRAIN, name="train.toml"),
    "site.toml": file(loader.load_site, examples=EXAMPLES["site"], name="site.toml"),
    "journal": file(read_journal, name="tr11/journal/h-1.jsonl", examples=(*EXAMPLES["events"], *JSON)),
    "heartbeat": file(contract.read_heartbeat, examples=(*EXAMPLES["heartbeat"], *JSON)),
    "stop reason": file(contract.read_stop_reason, examples=(b'{"reason": "finished", "step": 7, "at": 5.5}', *JSON)),
    "step times": file(contract.read_step_times, examples=STEP_TIMES),
    "deadline": file(contract.read_time, examples=(b"1795333309.5",)),
    "start of an attempt": file(
        lambda _: attempt_record.read_start(attempt()),
        name="tr11/attempts/12_1.0/start.json",
        examples=(*EXAMPLES["start"], *JSON),
    ),
    "end of an attempt": file(
        lambda _: finalize.read_end(attempt()), name="tr11/attempts/12_1.0/end.json", examples=(*EXAMPLES["end"], *JSON)
    ),
    "stop request": file(
        lambda _: stop_request.read_stop_request(attempt()),
        name="tr11/attempts/12_1.0/stop-request",
        examples=(b'{"reason": "kill", "why": "x"}', *JSON),
    ),
    "exit code of the body": file(files.read_number, examples=(b"7",)),
    "lease": file(lease._read, name="tr11/.lease", examples=(*EXAMPLES["holder"], *JSON)),
    "request": file(
        read_requests, name="tr11/requests/release-0123456789ab.json", examples=(*EXAMPLES["request"], *JSON)
    ),
    "switch": file(
        lambda _: switches.read(run(), switches.Switch.SAVE),
        name="tr11/switches/save",
        examples=(*EXAMPLES["switch"], *JSON),
    ),
    "next save": file(
        lambda _: run_progress.read_checkpoint_table(run()),
        name="tr11/trainer.json",
        examples=(b'{"checkpoint": {"every": 5}}', *JSON),
    ),
    "node list": text(nodesets.nodeset, examples=(b"node[001-004,007]", b"a,b[1-2]c[3-4]")),
    "node history": file(
        lambda _: (
            history.NodeHistory(site=site(), clock=SystemClock()).read("n1"),
            history.NodeHistory(site=site(), clock=SystemClock()).all(),
        ),
        name=".site/nodes/node/n1.json",
        examples=(*EXAMPLES["incidents"], *JSON),
    ),
    "card history": file(
        lambda _: history.NodeHistory(site=site(), clock=SystemClock()).cards(),
        name=".site/nodes/card/x.json",
        examples=(*EXAMPLES["incidents"], *JSON),
    ),
    "exclusions": file(
        lambda _: exclusions.Exclusions(site=site(), clock=SystemClock()).now(),
        name=".site/nodes/exclusions.json",
        examples=(b'[{"node": "n1", "reason": "x", "until": 9e9}]', *JSON),
    ),
    "ledger of cron": file(
        lambda _: cron_dir.read_ledger(CronDir(site())),
        name=".site/cron/ledger.json",
        examples=(*EXAMPLES["cron_ledger"], *JSON),
    ),
    "driver of cron": file(
        lambda _: cron_dir.read_selected(CronDir(site())),
        name=".site/cron/driver.json",
        errors=VALUES,
        examples=(b'{"driver": "daemon", "since": "2026-11-22T00:00:00+00:00", "by": "me"}', *JSON),
    ),
    "last tick": file(lambda _: CronDir(site()).last_tick(), name=".site/cron/last-tick", examples=(b"1795333309.5",)),
    "open alerts": file(
        lambda _: ledger_files.open_alerts(LedgerFiles(site()), SystemClock().now()),
        name=".site/alerts/ledger.json",
        examples=(*LEDGER, *JSON),
    ),
    "outbox": file(
        lambda path: outbox._items(path.parent),
        name=".site/alerts/outbox/team/0000000001-abc.json",
        examples=(*ITEM, *JSON),
    ),
    "revision": file(lambda path: revisions.read_files(RunDir(path.parent)), name="tr11/train.toml", examples=TRAIN),
    "memory of a watchdog": file(watchdog_context._read, examples=JSON),
    "state of a publication": file(
        read_stage,
        examples=(
            b'{"copies": {"a": {"mark": "b", "size": 5, "sha256": "c"}}, "rules": "", "secrets": "", "shipped": ""}',
            *JSON,
        ),
    ),
    "manifest": file(
        lambda path: manifest.read_manifest(path.parent),
        name="ck/step-0000007/manifest.json",
        errors=VALUES,
        examples=(*EXAMPLES["manifest"], *JSON),
    ),
    "catalog of checkpoints": file(
        lambda path: catalog.list_checkpoints(path.parents[1]),
        name="ck/step-0000007/manifest.json",
        examples=(*EXAMPLES["manifest"], *JSON),
    ),
    "offloaded copies": file(
        lambda path: catalog.offloaded_to(path.parent),
        name="ck/step-0000007/OFFLOADED",
        examples=(b'{"to": "s3://x", "at": "2026"}\n', *JSON),
    ),
    "newest iterations": file(lambda path: (iteration_lines.tail(path, 50), iteration_lines.sampled(path)), *LOGS),
    "log summary": file(read_log.read_summary, *LOGS, "progress/*.jsonl"),
    "end of a log": file(
        lambda path: [list(growing_file.backwards(path)), growing_file.at_tail(path, 5).rest()], *LOGS
    ),
}
