"""Publishing to a git remote and by a command, with real git and a real shell; kills at any point and repetition."""

import os
import random
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Completed
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.publish import git_push
from opsctl.publish.git_push import NotPushed
from opsctl.publish.publisher import NotShipped, Publisher
from opsctl.publish.staging import DeadlinePassed
from opsctl.settings.publish import PublishTable
from tests.support.cases import read_cases
from tests.unit.publish.conftest import Site, contents, git


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    return Site(tmp_path)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    git("init", "--quiet", "--bare", tmp_path / "hub.git")
    return tmp_path / "hub.git"


COPY = "mkdir -p {to}/{{train}} && cp -r {{source}}/. {to}/{{train}}/"


def to_git(remote: Path, **more: object) -> dict[str, object]:
    return {"to": "git", "remote": str(remote), **more}


def files(remote: Path, branch: str = "main") -> dict[str, bytes]:
    """Return the files of the branch."""
    work = remote.with_name("clone")
    shutil.rmtree(work, ignore_errors=True)
    git("clone", "--quiet", "--branch", branch, remote, work)
    return {name: data for name, data in contents(work).items() if not name.startswith(".git/")}


def commits(remote: Path, branch: str = "main") -> int:
    return int(git(f"--git-dir={remote}", "rev-list", "--count", branch))


def test_branch_holds_the_published_files(site: Site, remote: Path) -> None:
    site.publish()
    done = site.publish(**to_git(remote))
    assert files(remote) == {f"gpt/{name}": data for name, data in site.out().items()}
    assert done.detail == git(f"--git-dir={remote}", "rev-parse", "main")[:12]


def test_no_commit_without_a_change(site: Site, remote: Path) -> None:
    site.publish(**to_git(remote))
    again = site.publish(**to_git(remote))
    assert (again.shipped, again.detail, commits(remote)) == (False, "", 1)
    site.write("logs/pulse.log", "changed\n")
    assert site.publish(**to_git(remote)).shipped
    assert (commits(remote), files(remote)["gpt/logs/pulse.log"]) == (2, b"changed\n")


def test_files_of_others_in_the_branch_stay(site: Site, remote: Path, tmp_path: Path) -> None:
    work = tmp_path / "theirs"
    git("init", "--quiet", "-b", "main", work)
    (work / "README").write_text("theirs\n")
    (work / "gpt").mkdir()
    (work / "gpt" / "notes").write_text("about gpt\n")
    git("-C", work, "add", "-A")
    git("-C", work, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")
    git("-C", work, "push", "-q", remote, "main")
    site.publish(**to_git(remote))
    assert {"README", "gpt/notes", "gpt/logs/main_log.txt"} <= set(files(remote))
    site.write("logs/pulse.log", "more\n")
    site.publish(**to_git(remote))
    assert (commits(remote), files(remote)["README"]) == (3, b"theirs\n")


def test_concurrent_push_loses_nothing(site: Site, remote: Path) -> None:
    site.publish(**to_git(remote))

    class Racing(SystemRunner):
        raced = 0

        def run(self, argv: Sequence[str], **more: object) -> Completed:
            if "push" in argv and not Racing.raced:
                Racing.raced = 1
                other = Site(site.path / "other")
                other.run.path.rename(other.run.path.with_name("gpt2"))
                other.run = type(other.run)(other.run.path.with_name("gpt2"))
                other.publish(**to_git(remote))
            return super().run(argv, **more)  # type: ignore[arg-type]  # arguments of run

    site.runner = Racing()
    site.write("logs/pulse.log", "changed\n")
    assert site.publish(**to_git(remote)).shipped
    contents_by_name = files(remote)
    assert (contents_by_name["gpt/logs/pulse.log"], "gpt2/logs/pulse.log" in contents_by_name, commits(remote)) == (
        b"changed\n",
        True,
        3,
    )


def test_leftovers_of_a_killed_git_do_no_harm(site: Site, remote: Path) -> None:
    site.publish(**to_git(remote))
    home = site.run.path / "publish" / "repo.git"
    for name in ("shallow.lock", "refs/opsctl/there.lock", "packed-refs.lock", "opsctl-index.lock", "opsctl-index"):
        (home / name).write_text("")
    site.write("logs/pulse.log", "changed\n")
    site.publish(**to_git(remote))
    assert files(remote)["gpt/logs/pulse.log"] == b"changed\n"


def test_repository_forgets_what_the_remote_has(site: Site, remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_push, "MAX_HOME_BYTES", 1 << 20)
    home = site.run.path / "publish" / "repo.git"
    for turn in range(1, 7):
        site.write("logs/pulse.log", random.Random(turn).randbytes(300_000).hex("\n", 40) + "\n")
        assert site.publish(**to_git(remote)).shipped
        assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 3 << 19
    assert commits(remote) == 6
    git(f"--git-dir={remote}", "fsck", "--strict")


def test_file_refused_later_leaves_the_branch(site: Site, remote: Path) -> None:
    site.publish(**to_git(remote))
    name = "metrics/tensorboard/events.out.tfevents.1"
    site.write(name, b"\0open sesame\0")
    site.publish(**to_git(remote))
    assert f"gpt/{name}" not in files(remote)


def test_git_settings_of_the_user_change_nothing(
    site: Site, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ignore").write_text("*.log\n*.txt\n")
    config = f"[core]\n\texcludesFile = {tmp_path / 'ignore'}\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n"
    (tmp_path / "gitconfig").write_text(config)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    site.write("logs/pulse.log", "with a return\r\n")
    site.publish(**to_git(remote, branch="runs/2026"))
    assert files(remote, "runs/2026")["gpt/logs/pulse.log"] == b"with a return\r\n"


def test_missing_remote_is_reported_without_secrets(site: Site) -> None:
    site.known = frozenset({b"hidden-name"})
    with pytest.raises(NotPushed, match=r"git ls-remote failed with exit code 128: .*\*\*\*") as caught:
        site.publish(**to_git(site.path / "hidden-name.git"))
    assert "hidden-name" not in caught.value.message


def test_no_password_is_ever_an_argument(site: Site, remote: Path) -> None:
    class RecordingRunner(SystemRunner):
        words: tuple[str, ...] = ()

        def run(self, argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **more: object) -> Completed:
            RecordingRunner.words += (*argv, *((value or "") for value in (env or {}).values()))
            return super().run(argv, env=env, **more)  # type: ignore[arg-type]  # arguments of run

    site.runner = RecordingRunner()
    site.publish(**to_git(remote))
    assert not [word for word in RecordingRunner.words if "sesame" in word]
    for url in ("https://me:pw@host/x.git", "https://token@host/x.git", "https://host/x?token=1", "-x", "a b", "x.git"):
        with pytest.raises(ValidationError):
            PublishTable(to="git", remote=url)
    for url in ("git@host:team/x.git", "ssh://git@host/x.git", "https://host/x.git", "/srv/x.git"):
        assert PublishTable(to="git", remote=url).remote == url


class StillClock(SystemClock):
    """A clock on which no time passes, so that each program gets the whole time limit."""

    def monotonic(self) -> float:
        return 0.0


def test_hanging_git_is_ended(site: Site) -> None:
    site.clock = StillClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/x.git"
        with pytest.raises(
            DeadlinePassed, match=r"git ls-remote did not finish within the time limit of 2 s"
        ) as caught:
            site.publisher(seconds=2, **to_git(url), files=()).publish()
    assert caught.value.exit_code == 75


def copy_command(site: Site) -> str:
    return COPY.format(to=site.path / "copied")


def test_command_gets_a_directory_with_all_files(site: Site) -> None:
    site.publish()
    assert site.publish(to="command", command=copy_command(site)).shipped
    assert contents(site.path / "copied" / "gpt") == site.out()


def test_command_runs_again_only_after_change_or_failure(site: Site) -> None:
    counting = f"echo {{source}} >> {site.path}/count; test -e {site.path}/ready"
    with pytest.raises(NotShipped, match="the command failed with exit code 1"):
        site.publish(to="command", command=counting)
    (site.path / "ready").write_text("")
    assert site.publish(to="command", command=counting).shipped
    assert not site.publish(to="command", command=counting).shipped
    assert len((site.path / "count").read_text().splitlines()) == 2


def test_output_of_a_command_is_reported_without_secrets(site: Site) -> None:
    with pytest.raises(NotShipped, match=r"failed with exit code 3: no, \*\*\*$"):
        site.publish(to="command", command="echo no, open sesame >&2; : {source}; exit 3")
    assert site.publish(to="command", command="echo took {train} {source}; echo open sesame").detail == "***"


def test_hanging_command_is_ended(site: Site) -> None:
    site.clock = StillClock()
    with pytest.raises(DeadlinePassed, match=r"the command did not finish within the time limit of 0\.7 s"):
        site.publisher(seconds=0.7, to="command", command="sleep 60; : {source}").publish()


def test_values_are_quoted_for_the_shell(tmp_path: Path) -> None:
    site = Site(tmp_path / "a b';touch hacked;'$(touch hacked)")
    out = tmp_path / "words"
    site.publish(to="command", command=f"printf '%s\\n' {{source}} {{train}} > {out}")
    assert out.read_text().splitlines() == [str(site.run.path / "publish/tree/gpt"), "gpt"]
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.parametrize(*read_cases(__file__, "command_with_quoted_placeholder_is_refused"))
def test_command_with_quoted_placeholder_is_refused(command: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        PublishTable(to="command", command=command)


class DyingClock(SystemClock):
    """A clock that kills this process at the n-th reading."""

    def __init__(self, n: int) -> None:
        self.left = n

    def monotonic(self) -> float:
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().monotonic()


def is_killed(publisher: Publisher) -> bool:
    """Publish in a child process and return whether the child was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            publisher.publish()
            code = 0
        except OpsctlError:
            code = 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("way", ["path", "git", "command"])
def test_publish_killed_at_any_point_can_be_repeated(site: Site, remote: Path, way: str) -> None:
    table = {"path": {}, "git": to_git(remote), "command": {"to": "command", "command": copy_command(site)}}[way]
    site.known = frozenset()
    n = 0
    killed = True
    while killed:
        n += 3
        site.write("logs/main_log.txt", f"iteration {n}/ 99 |\n")  # a change to publish in every round
        site.clock = DyingClock(n)
        killed = is_killed(site.publisher(**table))
    assert n > 8
    site.clock = SystemClock()
    assert not site.publish(**table).shipped
    site.publish()
    copies = {
        "path": site.out,
        "git": lambda: {name.removeprefix("gpt/"): data for name, data in files(remote).items()},
        "command": lambda: contents(site.path / "copied" / "gpt"),
    }
    assert copies[way]() == site.out()
    assert site.out()["logs/main_log.txt"] == f"iteration {n}/ 99 |\n".encode()
    assert [path.name for path in site.path.rglob(".main_log*")] == []
