"""`opsctl init` and `opsctl config init`: write starter settings files."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opsctl.base.errors import InputError
from opsctl.cli.output import print_text, write_file
from opsctl.launch.render import templates_dir
from opsctl.settings.loader import find_site


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write both files into this directory.",
)
@click.pass_context
def init(ctx: click.Context, directory: Path | None) -> None:
    """Write a starter train.toml and site.toml.

    Writes train.toml into the working directory, and site.toml where opsctl reads it: the file of --site or
    $OPSCTL_SITE, else ~/.config/opsctl/site.toml. An existing site.toml is left as it is. With --dir, both files go
    into that directory. Files with other contents are never overwritten.

    \b
    opsctl init
    opsctl init --dir my-run
    """
    if directory:
        train, site = directory / "train.toml", directory / "site.toml"
    else:
        train, site = Path("train.toml"), _site_in_use(ctx.find_root().params.get("site"))
    keeps_site = not directory and site.exists()
    starters = {train: _starter("train.toml")}
    if not keeps_site:
        starters[site] = _starter("site.toml")
    for path, starter in starters.items():
        if _has_other_contents(path, starter):
            raise InputError(f"{path} already exists", hint="move the file, or choose a directory with --dir")
    for path, starter in starters.items():
        write_file(path, starter, with_parents=True)
        print_text(f"wrote {path}")
    if keeps_site:
        print_text(f"{site} already exists and is left as it is")
    _print_next_steps(train, site, is_read=not directory)


def _site_in_use(option: Path | None) -> Path:
    """Return the site file that opsctl reads, or would read once the file exists."""
    config_dir = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return option or find_site() or config_dir / "opsctl" / "site.toml"


def _starter(name: str) -> bytes:
    return (templates_dir() / "config" / name).read_bytes()


def _has_other_contents(path: Path, starter: bytes) -> bool:
    """Return whether writing the starter would destroy a file. An interrupted call may have left the starter itself."""
    try:
        return path.read_bytes() != starter
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _print_next_steps(train: Path, site: Path, *, is_read: bool) -> None:
    print_text("next:")
    if not is_read:
        print_text(f"  export OPSCTL_SITE={site.absolute()}")
    print_text(f"  edit {train} and {site}")
    print_text(f"  opsctl config check {train} {site}")
    print_text("  opsctl doctor")
    print_text(f"  opsctl launch {train} --dry-run")
