"""Options that would have no effect are refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from opsctl.base.errors import InputError
from opsctl.cli import cli
from opsctl.cli.dependent_option import DependentOption
from opsctl.state.run_dir import RunDir

WITHOUT = [
    ("status --every 5s", "--every has no effect without --watch."),
    ("stacks t --native", "--native has no effect without --py-spy."),
    ("--host-command x status", "--host-command has no effect without --host."),
    ("plan throughput --train t --gpus 8", "--gpus has no effect without --model or --layers."),
    ("plan throughput --model bloom --wait 3", "--wait has no effect without --train or --log."),
    ("plan simulate --nodes 4 --lemon-factor 3", "--lemon-factor has no effect without --lemons."),
    ("plan bloom --gpus 8 --gpu H100 --currency EUR", "--currency has no effect without --price."),
]
TOGETHER = [
    ("dash --static x --actions", "--actions and --static"),
    ("dash --static x --port 0", "--port and --static"),
    ("logs t -n 3 --all", "--lines and --all"),
    ("metrics --json --listen 127.0.0.1:0", "--listen and --json"),
    ("metrics --json --textfile x.prom", "--textfile and --json"),
    ("metrics --listen 127.0.0.1:0 --textfile x.prom", "--textfile and --listen"),
    ("metrics t --list", "--list and TRAIN"),
    ("why --log . --task 3", "--task and --log"),
    ("stacks --from . --signal", "--signal and --from"),
    ("stacks --py-spy --from .", "--py-spy and --from"),
    ("health node1 --partition gpu", "--partition and NODES"),
    ("health --train t --all", "--train and --all"),
    ("health --node-local --all", "--all and --node-local"),
    ("health --node-local --dcgm 1", "--dcgm and --node-local"),
    ("drain-bad-nodes node1 --all", "--all and NODES"),
    ("test-nodes node1 --train t", "--train and NODES"),
    ("test-nodes --train t --partition p", "--train and --partition"),
    ("alerts silence k --end --for 3h", "--for and --end"),
    ("alerts silence k --end --at 2100-01-01", "--at and --end"),
    ("checkpoint offload t --to x --sums y", "--sums and --to"),
    ("checkpoint offload t --to x --timeout 3h", "--timeout and --to"),
    ("checkpoint offload t --to x --copy-only --keep-local 3", "--keep-local and --copy-only"),
    ("plan checkpoint --model bloom --billions 3 --save 1", "--billions and --model"),
    ("plan checkpoint --model bloom --save 1 --mtbf 3 --nodes 4", "--mtbf and --nodes"),
    ("plan network --billions 8 --gpus 8 --batch 8 --gb-s 1 --gpu H100 --tflops 3", "--tflops and --gpu"),
    ("plan llama-3-8b --gpus 8 --gpu H100 --layers 3", "--layers and MODEL"),
    ("plan topology --all --show 3", "--show and --all"),
    ("-v --log-level info status", "--verbose and --log-level"),
]


def refuse(text: str) -> str:
    """Return the usage error of a command line."""
    with pytest.raises(click.UsageError) as refused:
        cli.main(text.split(), prog_name="opsctl", standalone_mode=False)
    return refused.value.message


@pytest.mark.parametrize(("text", "message"), WITHOUT)
def test_option_without_its_partner_is_refused(text: str, message: str) -> None:
    assert refuse(text) == message


@pytest.mark.parametrize(("text", "names"), TOGETHER)
def test_options_that_exclude_each_other_are_refused(text: str, names: str) -> None:
    assert refuse(text) == f"{names} exclude each other."


@pytest.mark.parametrize("text", ["drain-bad-nodes --max some", "nodes reboot node1 --max 3%%"])
def test_limit_of_nodes_is_read_before_nodes_are(text: str) -> None:
    with pytest.raises(InputError, match="is neither a number nor a percentage"):
        cli.main(text.split(), prog_name="opsctl", standalone_mode=False)


@pytest.mark.parametrize("words", [["exec", "-w", "", "--", "true"], ["nodes", "reboot", " "]])
def test_empty_node_list_selects_no_node(words: list[str]) -> None:
    with pytest.raises(InputError, match="no node is named"):
        cli.main(words, prog_name="opsctl", standalone_mode=False)


def test_default_of_an_option_is_no_use_of_it() -> None:
    with pytest.raises(click.UsageError, match="Name a TRAIN"):
        cli.main(["logs", "--all"], prog_name="opsctl", standalone_mode=False)


def test_half_typed_line_is_not_refused() -> None:
    context = cli.make_context("opsctl", ["status", "--every", "5s"], resilient_parsing=True)
    command = cli.get_command(context, "status")
    assert command is not None
    command.make_context("status", ["--every", "5s"], parent=context, resilient_parsing=True)


def list_commands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from list_commands(found)


def spell(params: Sequence[click.Parameter]) -> set[str]:
    """Return the words of parameters in the help."""
    words = {param.human_readable_name.strip("[].") for param in params if isinstance(param, click.Argument)}
    for param in params:
        words.update(param.opts)
    return words


def test_every_partner_is_a_word_of_the_command() -> None:
    missing: dict[tuple[str, str], bool] = defaultdict(lambda: True)
    for command in list_commands(cli):
        for param in command.params:
            if isinstance(param, DependentOption):
                for word in (*param.only_with, *param.not_with):
                    missing[param.opts[-1], word] &= word not in spell(command.params)
    assert [pair for pair, is_missing in missing.items() if is_missing] == []


def test_queued_only_of_one_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    monkeypatch.setenv("OPSCTL_SITE", str(tmp_path / "site.toml"))
    run = RunDir(tmp_path / "trains/tr11")
    run.create()
    run.config.write_text("")
    with pytest.raises(InputError, match="tr11_3: --queued-only cancels all queued tasks of a train, not one task"):
        cli.main(["cancel", "tr11_3", "--queued-only"], prog_name="opsctl", standalone_mode=False)
