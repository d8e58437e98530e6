"""`mtrun profiles`: what can be chosen with profile=NAME, one line each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from mtrun.runtime.config.hydra_private import Library


@dataclass(frozen=True)
class Profile:
    """One profile. `source` is `shipped` or the user's file."""

    name: str
    summary: str
    source: str


def list_profiles(library: Library) -> list[Profile]:
    """Shipped profiles first, then the user's, each by name; a user file with a shipped name cannot be chosen."""
    shipped = _folder(library.shipped / "profile", "shipped")
    names = {profile.name for profile in shipped}
    own = _folder(library.user / "profile", None) if library.user is not None else []
    return [*shipped, *(profile for profile in own if profile.name not in names)]


def _folder(folder: Path, source: str | None) -> list[Profile]:
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    return [Profile(file.stem, summary(file), source or str(file)) for file in files]


def summary(file: Path) -> str:
    """The first comment line that is no `# @package` header, or a hint where the file has none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return f"(cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'})"
    for line in lines:
        text = line.strip().lstrip("#").strip()
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if text and not text.startswith("@"):
            return text
    return "(no summary: write one as a comment under the first line)"


@click.command("profiles", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--config-dir", type=click.Path(path_type=Path), help="A folder with profiles of your own.")
def profiles(as_json: bool, config_dir: Path | None) -> int:
    """List the profiles with one-line summaries."""
    from mtrun.runtime.config.compose import open_library

    found = list_profiles(open_library(config_dir))
    if as_json:
        click.echo(json.dumps([asdict(profile) for profile in found], indent=2))
        return 0
    width = max(len(profile.name) for profile in found)
    for profile in found:
        where = "" if profile.source == "shipped" else f"  [{profile.source}]"
        click.echo(f"{profile.name:<{width}}  {profile.summary}{where}")
    return 0
