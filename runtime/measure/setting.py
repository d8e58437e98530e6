"""The setting of a measurement: everything that was in force, as one JSON object with a digest of its own.

{schema, overrides, config, config_sha256, sampler, law, provenance, warnings, pack, audit, code, law_code_sha256,
lanes_code_sha256{lane: digest}, native_sha256, native_sources_sha256, versions, machine}
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.machine import machine, versions
from mtrun.runtime.measure.provenance import lane_code, law_code, native_code, native_sources
from mtrun.runtime.verdicts import State

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.packs.reader import PackDescription
    from mtrun.runtime.preparation import Preparation
    from mtrun.runtime.requests import Sampling

SCHEMA = "mtrun.setting/1"


def setting_of(generator: MtpGenerator, overrides: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The setting of a loaded generator that was composed from `overrides`, before it serves."""
    return {
        "schema": SCHEMA,
        "overrides": list(overrides),
        **configuration(generator.prepared),
        "law": law_of(generator),
        "pack": pack_identity(generator.prepared.pack),
        "audit": audit(generator),
        "code": code_identity(),
        **code_in_force(generator),
        "versions": versions(),
        "machine": machine(),
    }


def code_in_force(generator: MtpGenerator) -> dict[str, Any]:
    """Digests of the law that decides, of the lanes that are in place, and of the native library where one is built."""
    lanes = [one.lane for one in generator.registry.verdicts() if one.state is not State.DECLINED]
    return {
        "law_code_sha256": law_code(law_of(generator)["law"]),
        "lanes_code_sha256": {lane: lane_code(lane) for lane in lanes},
        "native_sha256": native_code(),
        "native_sources_sha256": native_sources(),
    }


def configuration(run: Preparation) -> dict[str, Any]:
    """What was composed, without secrets: values, their hash, the sampler in force, who decided each value."""
    from omegaconf import OmegaConf

    from mtrun.runtime.config.why import without_secrets

    config = OmegaConf.to_container(without_secrets(run.composed.config), resolve=True, enum_to_str=True)
    return {
        "config": config,
        "config_sha256": sha256_of(config),
        "sampler": asdict(sampling_of(run, 0)) | {"seed": None},
        "provenance": {key: [found.source, found.text] for key, found in sorted(run.composed.provenance.items())},
        "warnings": list(run.composed.warnings),
    }


def sampling_of(run: Preparation, seed: int | None) -> Sampling:
    """The sampler in force: the configuration's values over the pack's over the library's."""
    from mtrun.runtime.requests import Sampling

    found: dict[str, Any] = {}
    for name in (item.name for item in fields(Sampling)):
        for source in (run.pack.sampler, run.config.sampler):
            value = getattr(source, name, None)
            found |= {} if value is None else {name: value}
    return replace(Sampling(**found), seed=seed)


def law_of(generator: MtpGenerator) -> dict[str, Any]:
    """The law in force with its knobs."""
    assert generator.decoder is not None
    law = generator.decoder.parts.law
    return {
        "law": law.name,
        "rule": law.rule,
        "parameters": dict(law.parameters),
        "distribution_exact": law.distribution_exact,
    }


def audit(generator: MtpGenerator) -> dict[str, Any]:
    """The audit object with the law in force."""
    return generator.registry.to_json(generator.prepared.evidence, law_of(generator))


def pack_identity(pack: PackDescription) -> dict[str, Any]:
    """What was measured: names and checksums of the pack's manifest; nulls for a folder that has none."""
    manifest = pack.manifest
    return {
        "name": pack.name,
        "family": pack.family,
        "trunk_identity": manifest and manifest.trunk_identity,
        "provenance": manifest and dict(manifest.provenance),
        "head": {"ok": pack.head.ok, "reason": pack.head.reason, "draft_vocab_size": pack.draft_vocab_size},
        "sha256": manifest and {name: entry.sha256 for name, entry in sorted(manifest.files.items())},
    }
