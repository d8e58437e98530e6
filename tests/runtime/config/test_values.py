from __future__ import annotations

import pytest

from mtrun.runtime.config.checks import is_loopback
from mtrun.runtime.config.compose import compose
from mtrun.runtime.config.interval import interval
from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.nearest import nearest
from mtrun.runtime.config.size import parse_bytes
from mtrun.runtime.config.stamp import stamp
from mtrun.runtime.config.why import why_table


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500MB", 500 * 10**6), ("1.5 GB", 1_500_000_000), ("1024", 1024), ("1kib", 1024), ("7b", 7)],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "0.1", "8GG", "1e9", "nan", "8 G B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the schema's business
        parse_bytes(text)


def test_an_interval_holds_its_closed_ends_and_no_infinity() -> None:
    half_open = interval("[0, 1)")
    assert [half_open.holds(x) for x in (0, 0.5, 1, -0.1, float("nan"))] == [True, True, False, False, False]
    assert not interval("[0, inf)").holds(float("inf"))
    with pytest.raises(ValueError, match="interval"):
        interval("0..1")


def test_every_number_of_the_schema_has_a_range_that_its_default_satisfies() -> None:
    for leaf in leaves().values():
        if leaf.type in (int, float):
            assert leaf.bounds is not None, leaf.key
        if leaf.type is not bool or not leaf.key.startswith("lanes."):
            assert leaf.problem(leaf.default) is None, leaf.key


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.com", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_the_nearest_name_ignores_case_and_finds_a_last_part() -> None:
    assert nearest("Turbo", ["turbo"]) == "turbo"
    assert nearest("alpha", ["cascade.alpha", "cascade.rule"]) == "cascade.alpha"
    assert nearest("qqq", ["turbo"]) is None


def test_why_names_every_key_hides_secrets_and_tells_undecided_lanes() -> None:
    run = compose(["server.api_key=hunter2", "profile=cascade-tokenv3", "cascade.alpha=.9", "lanes.kv_q8=false"])
    rows = {line.split()[0]: line for line in why_table(run).splitlines()[1:]}
    assert set(rows) == set(leaves())
    assert "hunter2" not in why_table(run)
    assert "command line (cascade.alpha=.9)" in rows["cascade.alpha"]
    assert "profile file (conf/profile/cascade-tokenv3.yaml)" in rows["cascade.rule"]
    assert rows["lanes.frspec"].split()[1] == "auto"
    stamp(run, dict.fromkeys(run.config.lanes, True), {"frspec": "shipped"})
    after = {line.split()[0]: line for line in why_table(run).splitlines()[1:]}
    assert "auto-arm (shipped)" in after["lanes.frspec"]
    assert after["lanes.kv_q8"].split()[1] == "false"
