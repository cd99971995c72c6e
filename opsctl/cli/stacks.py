"""`opsctl stacks`: the stack and the last collective of every rank, silent and odd ranks first."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError, cannot_write
from opsctl.base.model import Job
from opsctl.base.nodesets import expand
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.node_view import NodeView
from opsctl.cli.options import Amount, list_files
from opsctl.cli.output import app_and_json, optional_train, print_result
from opsctl.diagnosis import request_stacks
from opsctl.diagnosis.flight_recorder import FlightDump, describe_dumps, find_dumps, find_problems, read_dumps
from opsctl.diagnosis.line_origin import origin_of_file
from opsctl.diagnosis.nccl_debug import MORE_OUTPUT, NcclSummary, read_nccl_debug, render_nccl
from opsctl.diagnosis.py_spy import PySpyDump, dump_stacks
from opsctl.diagnosis.request_stacks import MAX_STACKS_BYTES
from opsctl.diagnosis.stack_dumps import PY_SPY_READS, Stack, add_processes, group_stacks, render_stacks
from opsctl.diagnosis.stack_dumps import parse as parse_stacks
from opsctl.launch import train_arrays
from opsctl.settings.loader import load_train
from opsctl.state.files import open_regular
from opsctl.state.run_dir import Attempt, RunDir

rank_option = partial(dependent_option, not_with=("--from",))
"""An option for the ranks of a running task."""


@click.command()
@optional_train
@rank_option(
    "--seconds",
    type=Amount("seconds", minimum=0, maximum=600),
    default=10,
    show_default=True,
    help="Time to wait for the ranks.",
)
@rank_option("--signal", is_flag=True, help="Send USR2 as well; it ends processes that do not handle it.")
@rank_option(
    "--py-spy",
    is_flag=False,
    flag_value="py-spy",
    default="",
    metavar="[PROGRAM]",
    help="Run py-spy (or PROGRAM) on every node of the task.",
)
@dependent_option(
    "--native",
    only_with=("--py-spy",),
    is_flag=True,
    help="With --py-spy: show C and C++ frames; pauses ranks briefly.",
)
@click.option(
    "--from",
    "files",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Read saved stacks, dumps or NCCL output; repeatable.",
)
@app_and_json
def stacks(
    app: App, train: str | None, *, seconds: float, signal: bool, py_spy: str, native: bool, files: tuple[Path, ...]
) -> None:
    """Show where every rank is, silent and odd ranks first.

    Asks every rank of the running task of TRAIN for its stack and groups equal stacks. The trainer of opsctl answers
    by itself. Other trainers need --py-spy, which runs through the job, or by ssh as `remote.ways` allows. Of a silent
    rank the state of its process is shown: stopped, in the kernel, a zombie, gone. If the ranks wrote dumps of
    PyTorch's flight recorder, shows the collective that did not end and the ranks that never came.

    --from reads files, or directories with files: stacks of py-spy dump or faulthandler, dumps of the flight recorder,
    and logs written with NCCL_DEBUG=INFO, whose failed connections, collectives and late ranks are shown.

    \b
    opsctl stacks tiny-gpt
    opsctl stacks tiny-gpt --py-spy --native
    opsctl stacks --from trace-node1.out --from trace-node2.out
    opsctl stacks --from nccl-debug/
    opsctl stacks --from RUN/attempts/4211_3.0/
    """
    if bool(train) == bool(files):
        raise click.UsageError("Name a TRAIN, or files with --from, not both.")
    if files:
        _show_files(files)
        return
    run = app.find(train or "")
    job, attempt = _running(app, run)
    ranks = load_train(run.config, layout=False).world_size
    target = attempt.path / "stacks" / f"asked-{app.clock.now():%Y%m%dT%H%M%S}"
    notes = []
    try:
        request_stacks.request_by_file(attempt, target, ranks=ranks, timeout_s=seconds, clock=app.clock)
        if signal:
            logs = run.attempt_logs(attempt.name)
            problem = request_stacks.request_by_signal(
                lambda: app.slurm.signal(job.id, "USR2"), logs, target, ranks=ranks, timeout_s=seconds, clock=app.clock
            )
            notes.append(problem)
    except OSError as error:
        if not py_spy:
            raise cannot_write(target, error) from error
        notes.append(f"the ranks could not be asked: {error}")
    answers, listing = _inspect(app, job, attempt, target, ranks=ranks, py_spy=py_spy, native=native)
    is_readable = any(stack.is_silent and stack.state in PY_SPY_READS for stack in answers)
    if not py_spy and listing.may_answer and is_readable:
        notes.append(f"py-spy is installed and permitted on the nodes: opsctl stacks {run.name} --py-spy")
    notes += [*listing.problems, *([f"all of them: {target}"] if target.exists() else [])]
    _show(answers, ranks=ranks, dumps=read_dumps(attempt.path), notes=[*filter(None, notes)])


def _inspect(
    app: App, job: Job, attempt: Attempt, target: Path, *, ranks: int, py_spy: str, native: bool
) -> tuple[list[Stack], PySpyDump]:
    """Return the ranks' own answers in `target` with what is seen from outside, and that alone.

    Runs py-spy if asked for, else looks at the processes of silent ranks.
    """
    nodes, listing = expand(job.nodes), PySpyDump(text="", problems=())
    if py_spy:
        listing = dump_stacks(py_spy, attempt.name, nodes, NodeView(app).fanout(), native=native)
        with suppress(OSError):  # a run directory of another user is not written to
            listing.save(target)
    answers = request_stacks.collect_answers(target, listing.text)
    if not py_spy and (len(answers) < ranks or any(stack.is_silent for stack in answers)):
        listing = dump_stacks("", attempt.name, nodes, NodeView(app).fanout())
    processes = parse_stacks(listing.text.encode())
    return add_processes(answers, processes, ranks=ranks, is_complete=listing.is_complete), listing


def _running(app: App, run: RunDir) -> tuple[Job, Attempt]:
    snapshot = train_arrays.take_snapshot(run, app.journal(run), app.slurm.jobs())
    jobs = [job for job in snapshot.jobs if job.state.is_active]
    if not jobs:
        raise InputError(f"{run.name}: nothing runs", hint=f"opsctl why {run.name} says what ended the last task")
    return jobs[0], run.attempt(snapshot.history.newest_attempt(jobs[0].full_id))


def _show_files(files: tuple[Path, ...]) -> None:
    dumps, nccl = find_dumps(files), read_nccl_debug(_read_lines(files))
    stacks: list[Stack] = []
    for path in list_files(files):
        origin = origin_of_file(path.name if path.suffix != ".txt" else f"{path.stem}.log")
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            stacks += parse_stacks(file.read(MAX_STACKS_BYTES), origin)
    if not (dumps or stacks or nccl.lines):
        hint = f"--from reads stacks of py-spy dump or faulthandler, and output of NCCL: {MORE_OUTPUT}"
        raise OpsctlError("the files contain no stacks, no dumps and no output of NCCL", hint=hint)
    _show(stacks, dumps=dumps, nccl=nccl)


def _read_lines(files: tuple[Path, ...]) -> Iterator[bytes]:
    for path in list_files(files):
        with os.fdopen(open_regular(path, follow=True), "rb") as lines:
            yield from lines


def _describe_nccl(summary: NcclSummary) -> dict[str, object]:
    return {
        "failures": summary.failures,
        "groups": [
            {
                "name": group.name,
                "ranks": group.size,
                "absent": group.size - len(group.last),
                "calls": {str(rank): dict(calls) for rank, calls in group.calls.items()},
                "behind": {str(rank): str(call) for rank, call in group.find_behind().items()},
                "odd": {str(rank): str(call) for rank, call in group.find_odd().items()},
            }
            for group in summary.groups
        ],
        "warnings": summary.warnings,
        "origins": {text: [str(rank) for rank in ranks] for text, ranks in summary.origins.items()},
    }


def _show(
    stacks: list[Stack],
    *,
    dumps: list[FlightDump],
    ranks: int | None = None,
    notes: Sequence[str] = (),
    nccl: NcclSummary | None = None,
) -> None:
    groups = [
        {
            "place": group.spot.describe(),
            "known": group.is_known,
            "ranks": [
                {"node": stack.node, "rank": stack.rank, "pid": stack.pid, "state": stack.state}
                for stack in group.stacks
            ],
            "frames": [f"{frame.function} ({frame.file}:{frame.line})" for frame in group.stacks[0].frames],
        }
        for group in group_stacks(stacks)
    ]
    answered = sum(not stack.is_silent for stack in stacks)
    recorded = {"flight_dumps": len(dumps), "collectives": list(map(asdict, find_problems(dumps)))}
    recorded |= {"nccl": _describe_nccl(nccl)} if nccl else {}
    data = {"groups": groups, "answered": answered, "ranks": ranks, "notes": notes, **recorded}
    homes = {stack.rank: stack.node for stack in stacks if stack.rank is not None}
    lines = [*render_stacks(stacks, ranks=ranks), *describe_dumps(dumps, homes), *notes]
    print_result(data, *lines, *(render_nccl(nccl) if nccl and nccl.lines else ()))
