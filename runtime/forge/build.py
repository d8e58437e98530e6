"""A run made into a head that packs carry: quantised weights, the draft vocabulary, and a card with the run's figures.

Nothing in the card is typed by hand: it is read from the run's checkpoint, record and log.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtrun.runtime.errors import ConfigurationError, PackError
from mtrun.runtime.forge import checkpoint, features, record
from mtrun.runtime.forge.checkpoint import Checkpoint
from mtrun.runtime.forge.opened import Opened
from mtrun.runtime.packs.head import MtpHead
from mtrun.runtime.packs.heads import CARD, attach, committed_head
from mtrun.runtime.packs.identity import file_entries, sha256_file
from mtrun.runtime.packs.manifest import HeadWiring, Manifest
from mtrun.runtime.packs.members import HEAD, MANIFEST
from mtrun.runtime.packs.reader import DRAFT_IDS, describe

GROUPS = (64, 32)  # inputs that share a scale: the first that divides the width
_LOSS_STEPS = 100  # the card's final loss is the mean over so many steps
_PACK_FILES = ("*.json", "*.safetensors", "*.jinja", "LICENSE*", "NOTICE*")


@dataclass(frozen=True)
class BuildConfig:
    """How a run becomes files."""

    bits: int = 8
    group_size: int = GROUPS[0]
    licence: str | None = None  # None = the pack's own
    replace: bool = False  # an earlier build at the same place is replaced
    draft_vocab: int | None = None  # ids to draft over, ranked on `features`; None = those of the run
    features: Path | None = None  # shards that rank them
    start_card: Path | None = None  # head.yaml of the head that the run started from


def quantise(weights: dict[str, mx.array], bits: int, group_size: int = GROUPS[0]) -> dict[str, mx.array]:
    """Matrices as affine triples with float16 scales and biases, vectors as float32.

    A matrix whose width no group divides stays dense float16.
    """
    tensors: dict[str, mx.array] = {}
    for name, value in weights.items():
        if value.ndim != 2:
            tensors[name] = value.astype(mx.float32)
            continue
        group = next((size for size in (group_size, *GROUPS) if value.shape[-1] % size == 0), None)
        if group is None:
            tensors[name] = value.astype(mx.float16)
            continue
        module = name.removesuffix(".weight")
        packed, scales, biases = mx.quantize(value, group_size=group, bits=bits)
        tensors[name] = packed
        tensors[f"{module}.scales"], tensors[f"{module}.biases"] = scales.astype(mx.float16), biases.astype(mx.float16)
    return tensors


def build_head(opened: Opened, run: Path, out: Path, config: BuildConfig) -> Path:
    """Writes the head's folder `out` (`mtp.safetensors`, `head.yaml`), whole or not. Raises ConfigurationError."""
    with _staged(out, config.replace) as work:
        _write_head(opened, run, work, config)
    return out


def build_pack(opened: Opened, run: Path, out: Path, config: BuildConfig) -> Path:
    """Writes a whole pack at `out`: the trunk's files with the head of `run` attached. Raises ConfigurationError."""
    with _staged(out, config.replace) as work:
        head, pack = work.parent / "head", work
        head.mkdir()
        _write_head(opened, run, head, config)
        for name, path in _trunk_files(opened).items():
            target = pack / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        attach(pack, _plain_manifest(opened, pack, config), opened.source_sha256, committed_head(head))
        fits = describe(pack).head
        if not fits.ok:
            raise PackError(f"the head of {run} does not fit {opened.pack.name}: {fits.reason}")
    return out


def card(opened: Opened, run: Path, found: Checkpoint, config: BuildConfig) -> dict[str, Any]:
    """The card: data, recipe, time and figures, as recorded. What the run did not record is null."""
    kept = record.read_run(run)
    losses = found.cursor.losses
    measured = [entry for entry in record.read_log(run) if entry.get("overlap")]
    return {
        "summary": f"recursive MTP head for {opened.pack.name}, trained with mtrun forge",
        "trunk": opened.pack.name,
        "data": kept.get("data"),
        "held_out": kept.get("held"),
        "recipe": _recipe(found),
        "started_from": _start_card(found, config.start_card),
        "steps": found.cursor.step,
        "epochs": found.cursor.epoch,
        "training_seconds": round(found.cursor.seconds, 1),
        "figures": {
            "loss": sum(losses[-_LOSS_STEPS:]) / len(losses[-_LOSS_STEPS:]) if losses else None,
            "held_out": kept.get("figures"),
            "last_logged": {key: measured[-1][key] for key in ("step", "overlap")} if measured else None,
        },
        "storage": {"bits": config.bits, "group_size": config.group_size},
        "made_with": kept.get("made_with"),
    }


def _start_card(found: Checkpoint, path: Path | None) -> dict[str, Any] | None:
    """The card of the head that the run started from, None where it is not given. Raises ConfigurationError."""
    from mtrun.runtime.packs.fields import Fields, read_yaml

    if path is None:
        return None
    fields = Fields.of(read_yaml(path), path.name)
    if fields.text("sha256") != found.config.start:
        raise ConfigurationError(f"the run did not start from the head of {path}: give the card of the one it did.")
    return dict(fields.mapping("card").data)


def _recipe(found: Checkpoint) -> dict[str, Any]:
    """The recipe as given: a run that ends by time has no number of steps of its own."""
    timed = found.config.minutes is not None
    return {name: value for name, value in asdict(found.config).items() if not (timed and name == "steps")}


def _write_head(opened: Opened, run: Path, folder: Path, config: BuildConfig) -> None:
    import yaml

    found = checkpoint.required(run)
    _check_trunk(opened, run)
    licence = config.licence or (opened.pack.manifest.licence if opened.pack.manifest else None)
    if licence is None:
        raise ConfigurationError(f"{opened.pack.name} does not say its licence: give the head's with --licence NAME.")
    tensors = quantise(found.head, config.bits, config.group_size)
    tensors[DRAFT_IDS] = ids = _draft_ids(opened, found, config)
    mx.save_safetensors(str(folder / HEAD), tensors)
    fields = {
        **asdict(HeadWiring(max_depth=MtpHead.max_depth)),
        "draft_vocab_size": int(ids.shape[0]),
        "sha256": sha256_file(folder / HEAD),
        "licence": licence,
        "trunk_source_sha256": opened.source_sha256,
        "trunk_identity": opened.trunk_identity,
        "card": card(opened, run, found, config),
    }
    (folder / CARD).write_text(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _draft_ids(opened: Opened, found: Checkpoint, config: BuildConfig) -> mx.array:
    """[V'] int32 ascending. A head predicts a state, so it can draft over any part of the vocabulary."""
    if config.draft_vocab is None:
        return found.draft_ids.astype(mx.int32)
    if config.features is None:
        raise ConfigurationError("--draft-vocab ranks ids by the trunk's mass: give --features, the shards to rank on.")
    size = min(config.draft_vocab, opened.pack.vocab_size)
    paths = features.shard_paths(config.features)
    return mx.array(features.rank_vocabulary(paths, opened.pack.vocab_size, size, opened.pack.eos_ids))


def _check_trunk(opened: Opened, run: Path) -> None:
    theirs = (record.read_run(run).get("pack") or {}).get("trunk_identity")
    if theirs is not None and theirs != opened.trunk_identity:
        raise ConfigurationError(f"the head of {run} was trained for another trunk, {theirs[:12]}: give that pack.")


def _trunk_files(opened: Opened) -> dict[str, Path]:
    """The pack's own files by name, its head left out; links of a hub cache are followed."""
    folder, manifest = opened.pack.folder, opened.pack.manifest
    names = list(manifest.files) if manifest else [path.name for one in _PACK_FILES for path in folder.glob(one)]
    return {name: (folder / name).resolve() for name in names if name not in (HEAD, CARD, MANIFEST)}


def _plain_manifest(opened: Opened, pack: Path, config: BuildConfig) -> Manifest:
    known = opened.pack.manifest
    name = re.sub(r"[^A-Za-z0-9._-]", "-", opened.pack.name)[:64].lstrip("._-") or "pack"
    return Manifest(
        name=name,
        family=opened.pack.family,
        trunk_identity=opened.trunk_identity,
        licence=known.licence if known else config.licence or "unknown",
        files=file_entries(pack),
        sampler=opened.pack.sampler,
        provenance={**known.provenance} if known else {"source": opened.pack.name},
    )


@contextmanager
def _staged(out: Path, replace: bool) -> Iterator[Path]:
    """An empty folder beside `out` that takes its place when the block ends well."""
    if out.exists() and not (replace and _ours(out)):
        raise ConfigurationError(
            f"{out} exists already: give another --out, or --replace where it is an earlier build."
        )
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.absolute().parent) as temporary:
            work = Path(temporary) / "built"
            work.mkdir()
            yield work
            if out.exists():
                out.rename(Path(temporary) / "before")
            work.rename(out)
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(f"{out} cannot be written ({error}): free space, or choose another --out.") from error


def _ours(folder: Path) -> bool:
    """Whether `folder` is a build: a pack, or nothing but a head."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    return MANIFEST in names or names <= {HEAD, CARD}
