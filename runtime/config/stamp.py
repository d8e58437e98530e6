"""Lane values after the auto-arm: written once, read only afterwards."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import OmegaConf, read_write

from mtrun.runtime.config.compose import Composed, explicit_lanes
from mtrun.runtime.config.provenance import Origin, Provenance
from mtrun.runtime.config.schema import LANE_NAMES, RunConfig
from mtrun.runtime.errors import ConfigurationError, StampError


def is_stamped(composed: Composed) -> bool:
    """Whether the auto-arm has written its decisions."""
    return not any(OmegaConf.is_missing(composed.config.stamp, name) for name in LANE_NAMES)


def stamp(composed: Composed, values: Mapping[str, bool], reasons: Mapping[str, str] | None = None) -> None:
    """Write the auto-arm's decision for every lane of the catalogue, once.

    reasons: lane -> sentence, kept as provenance of the lanes that nothing else decided.
    Raises StampError: a second stamp, a lane left out, a name that is no lane, a value that is no bool.
    """
    if is_stamped(composed):
        raise StampError("the lanes are stamped already: compose again for another decision")
    missing = [name for name in LANE_NAMES if name not in values]
    unknown = [name for name in values if name not in LANE_NAMES]
    if missing or unknown:
        raise StampError(f"a stamp decides every lane once: missing {missing or 'none'}, unknown {unknown or 'none'}")
    if not all(isinstance(value, bool) for value in values.values()):
        raise StampError("a stamp holds true or false for every lane: pass bools")
    explicit = explicit_lanes(composed)
    with read_write(composed.config):
        for name in LANE_NAMES:
            composed.config.stamp[name] = values[name]
    for name in LANE_NAMES:
        if name not in explicit:
            composed.provenance[f"lanes.{name}"] = Provenance(Origin.AUTO_ARM, (reasons or {}).get(name, ""))


def lane_value(composed: Composed, name: str) -> bool:
    """What was decided for a lane. Raises StampError before the stamp, ConfigurationError for an unknown name."""
    _known(name)
    explicit = explicit_lanes(composed)
    if name in explicit:
        return explicit[name]
    if not is_stamped(composed):
        raise StampError(f"lanes.{name} was read before the auto-arm decided it: call stamp() first")
    return bool(composed.config.stamp[name])


def lane_decided_by(composed: Composed, name: str) -> Provenance:
    """Who decided a lane: an explicit value wins over the stamp. Raises as `lane_value` does."""
    lane_value(composed, name)
    return composed.provenance[f"lanes.{name}"]


def _known(name: str) -> None:
    if name not in LANE_NAMES:
        raise ConfigurationError(f"there is no lane {name!r}: lanes are {', '.join(LANE_NAMES)}")


def freeze(composed: Composed) -> None:
    """Make everything read-only, the stamps too. Raises StampError before the stamp."""
    if not is_stamped(composed):
        raise StampError("the configuration was frozen before the auto-arm decided the lanes: call stamp() first")
    OmegaConf.set_readonly(composed.config, True)


def resolved(composed: Composed) -> RunConfig:
    """The typed, frozen tree with every lane decided. Raises StampError before the stamp."""
    for name in LANE_NAMES:
        lane_value(composed, name)
    if not is_stamped(composed):
        raise StampError("the configuration was read whole before the auto-arm decided the lanes: call stamp() first")
    config = OmegaConf.to_object(composed.config)
    assert isinstance(config, RunConfig)
    return config
