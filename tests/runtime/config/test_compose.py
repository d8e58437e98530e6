from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from mtrun.runtime.config.compose import Composed, compose
from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.provenance import Origin
from mtrun.runtime.errors import ConfigurationError

Write = Callable[..., Path]
MINE = "# Mine.\ndefaults: [cascade-tokenv3, _self_]\ncascade: {alpha: 0.8}\nserver: {port: 9000}\n"


def test_the_command_line_beats_the_user_file_beats_the_profile_beats_the_base(write_profile: Write) -> None:
    folder = write_profile("mine", MINE)
    base = compose([])
    shipped = compose(["profile=cascade-tokenv3"])
    user = compose(["profile=mine"], config_dir=folder)
    typed = compose(["cascade.alpha=0.7", "profile=mine"], config_dir=folder)
    assert [run.config.cascade.alpha for run in (base, shipped, user, typed)] == [None, 0.95, 0.8, 0.7]
    assert [run.provenance["cascade.alpha"].origin for run in (base, shipped, user, typed)] == [
        Origin.DEFAULT,
        Origin.PROFILE_FILE,
        Origin.USER_FILE,
        Origin.COMMAND_LINE,
    ]


def test_a_profile_beats_a_group_file_even_one_that_was_typed(write_profile: Write) -> None:
    folder = write_profile("mine", "defaults: [turbo, _self_]\nsampler: {temperature: 0.5}\n")
    assert compose(["sampler=greedy"]).config.sampler.temperature == 0
    assert compose(["profile=mine", "sampler=greedy"], config_dir=folder).config.sampler.temperature == 0.5


def test_a_group_typed_beats_the_group_a_profile_chooses() -> None:
    run = compose(["profile=turbo", "lanes=none"])
    assert run.config.lanes.cpu_blas is False
    assert run.provenance["lanes.cpu_blas"].detail == "conf/lanes/none.yaml, chosen by lanes=none"


def test_a_users_group_file_is_found_and_traced(tmp_path: Path) -> None:
    (tmp_path / "own" / "server").mkdir(parents=True)
    (tmp_path / "own" / "server" / "office.yaml").write_text("port: 9001\n")
    run = compose(["server=office"], config_dir=tmp_path / "own")
    assert run.config.server.port == 9001
    assert run.provenance["server.port"].origin is Origin.USER_FILE


def test_the_users_standing_folder_is_used_when_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "home" / ".config" / "mtrun" / "profile"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\n" + MINE)
    assert compose(["profile=mine"]).config.server.port == 9000


def test_a_config_yaml_of_the_user_is_said_to_be_idle(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("draft: {depth: 1}\n")
    (warning,) = compose([], config_dir=tmp_path).warnings
    assert "never read" in warning


def test_every_key_has_a_provenance_and_says_the_file_that_holds_the_value(write_profile: Write) -> None:
    folder = write_profile("mine", MINE)
    run = compose(["profile=mine", "draft.depth=2"], config_dir=folder)
    assert set(run.provenance) == set(leaves())
    for key, origin in run.provenance.items():
        value = OmegaConf.to_container(run.config, resolve=False, enum_to_str=True)
        section, _, name = key.partition(".")
        if origin.origin is Origin.DEFAULT:
            default = leaves()[key].default
            assert value[section][name] == getattr(default, "name", default)  # type: ignore[call-overload, index]
        elif origin.origin is not Origin.COMMAND_LINE:
            held = OmegaConf.load(_file(origin.detail))
            assert OmegaConf.select(held, key, default=OmegaConf.select(held, name)) == value[section][name]  # type: ignore[call-overload, index]


def _file(detail: str) -> Path:
    import mtrun.conf

    path = Path(detail.partition(",")[0])
    return path if path.is_absolute() else Path(mtrun.conf.__file__).parent / path.relative_to("conf")


def test_a_chosen_law_says_which_profile_chose_it() -> None:
    run = compose(["profile=cascade-tokenv3"])
    assert run.provenance["acceptance.law"].detail == "conf/acceptance/cascade.yaml, chosen by profile/cascade-tokenv3"


def test_a_reference_between_keys_is_derived(write_profile: Write) -> None:
    folder = write_profile(
        "mine", "defaults: [turbo, _self_]\nsampler: {top_k: 7}\ndraft: {top_k: '${sampler.top_k}'}\n"
    )
    run = compose(["profile=mine"], config_dir=folder)
    assert run.config.draft.top_k == 7
    assert run.provenance["draft.top_k"].origin is Origin.DERIVED


def test_composing_leaves_no_trace_in_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("cwd").mkdir(mode=0o555)
    monkeypatch.chdir(tmp_path / "cwd")
    before = dict(os.environ)
    first, second = compose(["profile=turbo"]), compose(["profile=typical-0.2"])
    assert (first.config.acceptance.law, second.config.acceptance.law) == ("exact", "typical")
    assert (list(Path.cwd().iterdir()), Path.cwd(), dict(os.environ)) == ([], tmp_path / "cwd", before)
    assert not GlobalHydra().is_initialized()


def test_threads_compose_without_disturbing_each_other() -> None:
    wanted = ["profile=cascade-tokenv3", "profile=typical-0.2"]
    found: dict[str, list[Composed]] = {text: [] for text in wanted}

    def work(text: str) -> None:
        found[text].extend(compose([text]) for _ in range(3))

    threads = [threading.Thread(target=work, args=(text,)) for text in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {run.config.acceptance.law.name for run in found[wanted[0]]} == {"cascade"}
    assert {run.config.acceptance.law.name for run in found[wanted[1]]} == {"typical"}
    assert [len(runs) for runs in found.values()] == [3, 3]


def test_a_composed_configuration_is_read_only() -> None:
    run = compose([])
    with pytest.raises(ReadonlyConfigError):
        run.config.draft.depth = 1


@pytest.mark.parametrize(
    "value", ["012", "a,b=c(d)", "1e5", "null-ish", "'quoted'", "back\\slash\\", "it's", "12:30", "off"]
)
def test_text_keys_keep_what_was_typed(value: str) -> None:
    run = compose([f"server.api_key={value}"])
    assert run.config.server.api_key == value.strip("'") if value == "'quoted'" else value


def test_a_secret_is_in_no_report() -> None:
    run = compose(["server.api_key=hunter2"])
    assert run.config.server.api_key == "hunter2"
    assert "hunter2" not in f"{run.overrides}{run.provenance}{run.warnings}{run!r}"


def test_a_pack_is_a_name_a_folder_or_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "my pack, v=2"):
        (tmp_path / name).mkdir()

    def kind(word: str) -> tuple[str, str, str]:
        pack = compose([word]).config.pack
        return pack.source, pack.name, pack.kind.name

    assert kind("pack=smollm2") == ("smollm2", "smollm2", "named")
    assert kind("pack=./smollm2") == ("./smollm2", "smollm2", "folder")
    assert kind(f"pack={tmp_path}/my pack, v=2") == (f"{tmp_path}/my pack, v=2", "my pack, v=2", "folder")
    assert kind("pack=owner/name-1.5") == ("owner/name-1.5", "owner/name-1.5", "hub")
    assert kind("pack.source=./smollm2") == ("./smollm2", "smollm2", "folder")


def test_a_profile_may_choose_a_folder_pack(write_profile: Write, tmp_path: Path) -> None:
    text = f"defaults: [turbo, override /pack: path, _self_]\npack: {{source: '{tmp_path}'}}\n"
    run = compose(["profile=mine"], config_dir=write_profile("mine", text))
    assert run.config.pack.kind.name == "folder"
    assert run.provenance["pack.kind"].origin is Origin.DERIVED


def test_the_environment_is_read_only_where_a_secret_asks_for_it(
    write_profile: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "from-env")
    folder = write_profile("mine", "defaults: [turbo, _self_]\nserver: {api_key: '${oc.env:MY_KEY}'}\n")
    assert compose(["profile=mine"], config_dir=folder).config.server.api_key == "from-env"
    with pytest.raises(ConfigurationError, match="environment variable"):
        compose(["draft.depth=${oc.env:MY_KEY}"])


_WORDS = st.sampled_from(
    [
        "profile=turbo",
        "profile=cascade-tokenv3",
        "acceptance=typical",
        "cascade.alpha=.5",
        "cascade.alpha=null",
        "lanes=none",
        "pack=path",
    ]
)
_KEYS = st.sampled_from([*leaves(), "profile", "pack", "lanes", "acceptance", "stamp.frspec", "cascade", "x", "hydra"])
_VALUES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet="0123456789.,-+e[]{}()'\"\\${}=:/ ~@nulltrueinf", max_size=10),
    st.floats().map(str),
    st.integers().map(str),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(_WORDS, st.text(max_size=16), st.builds("{}={}".format, _KEYS, _VALUES)), max_size=3))
def test_random_words_compose_or_give_one_sentence(words: list[str]) -> None:
    try:
        compose(words)
        sentence = "composed"
    except ConfigurationError as error:
        sentence = str(error)
    assert sentence
    assert "Traceback" not in sentence
    assert "full_key" not in sentence
