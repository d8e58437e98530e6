"""`pack=`: a name, a folder or a hub id, and nothing that leads elsewhere."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.cache import PackCache
from mtrun.runtime.packs.fetch import Fetcher
from mtrun.runtime.packs.hub import is_hub_id, resolve, snapshot
from mtrun.runtime.packs.reader import describe
from support.tiny_pack import write_tiny_pack

COMMIT = "a" * 40


@pytest.fixture
def fetcher(tmp_path: Path) -> Fetcher:
    return Fetcher(PackCache(tmp_path / "cache"))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub cache with one downloaded model, owner/tiny."""
    repo = tmp_path / "hub" / "models--owner--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    write_tiny_pack(repo / "snapshots" / COMMIT, manifest=False)
    return tmp_path / "hub"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to the hub that would have left the machine."""
    calls: list[str] = []
    real = huggingface_hub.snapshot_download

    def only_local(repo: str, **options: Any) -> str:
        if not options.get("local_files_only"):
            calls.append(repo)
            raise ConnectionError("no route\nto host")
        return real(repo, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", only_local)
    return calls


def test_a_folder_is_itself(fetcher: Fetcher, tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack")
    assert resolve(str(pack), fetcher) == pack


def test_a_pack_of_ours_that_is_not_fetched_says_what_to_type(fetcher: Fetcher) -> None:
    with pytest.raises(PackError, match="mtrun pack fetch smollm2"):
        resolve("smollm2", fetcher)
    assert not fetcher.cache.root.exists()


def test_a_hub_id_is_served_from_the_local_cache(fetcher: Fetcher, hub: Path, no_network: list[str]) -> None:
    folder = resolve("owner/tiny", fetcher, hub)
    assert describe(folder).family == "llama"
    assert no_network == []


def test_an_absent_hub_id_is_one_sentence(fetcher: Fetcher, hub: Path, no_network: list[str]) -> None:
    with pytest.raises(PackError, match="local hub cache"):
        resolve("owner/other", fetcher, hub, offline=True)
    assert no_network == []
    with pytest.raises(PackError, match="check the id and the network") as caught:
        resolve("owner/other", fetcher, hub)
    assert "\n" not in str(caught.value)
    assert no_network == ["owner/other"]


def test_a_refresh_asks_the_hub(hub: Path, no_network: list[str]) -> None:
    with pytest.raises(PackError):
        snapshot("owner/tiny", hub, refresh=True)
    assert no_network == ["owner/tiny"]


def test_a_snapshot_without_a_config_is_no_model(fetcher: Fetcher, hub: Path, no_network: list[str]) -> None:
    (hub / "models--owner--tiny" / "snapshots" / COMMIT / "config.json").unlink()
    with pytest.raises(PackError, match="no config"):
        resolve("owner/tiny", fetcher, hub)


@pytest.mark.parametrize(
    "source",
    [
        "../x",
        "owner/../x",
        "a/b/c",
        "/etc/nothing",
        "./nothing",
        "~nobody/x",
        "owner/..",
        "a--b/c",
        "-x/y",
        "",
        "\0",
        "no",
    ],
)
def test_what_is_none_of_the_three_is_refused_without_network(
    fetcher: Fetcher, no_network: list[str], source: str
) -> None:
    with pytest.raises(PackError) as caught:
        resolve(source, fetcher)
    assert "\n" not in str(caught.value)
    assert no_network == []


@pytest.mark.parametrize(
    ("text", "wanted"), [("a/b", True), ("HuggingFaceTB/SmolLM2-135M", True), ("a/b\n", False), ("a", False)]
)
def test_the_form_of_a_hub_id(text: str, wanted: bool) -> None:
    assert is_hub_id(text) is wanted
