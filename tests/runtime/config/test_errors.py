"""Every mistake a person can type or write, with the part of the sentence that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtrun.runtime.config.compose import compose
from mtrun.runtime.errors import ConfigurationError

TYPED = {
    "profile=../x": "leaves the group",
    "profile=/etc/x": "leaves the group",
    "profile=[turbo,exact-stock]": "takes one name",
    "profile=turbo,exact-stock": "write one, as in profile=turbo",
    "profile=Turbo": "did you mean turbo?",
    "profile=turb": "did you mean turbo?",
    "profile=zzz": "choose one of cascade-tokenv3, exact-stock",
    "profile=null": "choose one of",
    "profile.name=x": "chosen with profile=NAME",
    "profile@foo=turbo": "not a key",
    "profile=": "has no value",
    "acceptance=Cascade": "did you mean cascade?",
    "acceptance.law=Cascade": "did you mean cascade?",
    "acceptance=cascade": "needs cascade.rule",
    "acceptance=cascade cascade.rule=opt": "write cascade.alpha=0.95",
    "acceptance=synthetic": "write synthetic.rate=0.8",
    "cascade.alpha=0,5": "cascade.alpha=0.5",
    "cascade.alpha=nan": "[0, 1)",
    "cascade.alpha=inf": "[0, 1)",
    "cascade.alpha=-0.1": "[0, 1)",
    "cascade.alpha=true": "not true",
    "cascade.alpha='0.5'": "not '0.5'",
    "cascade.alpha=abc": "not 'abc'",
    "cascade.alpha=1": "acceptance=synthetic synthetic.rate=1",
    "cascade.alpha=1.5": "acceptance=synthetic synthetic.rate=1",
    "cascade.alpha=[": "cannot be read",
    "cascade.rule=OPT": "did you mean opt?",
    "typical.threshold=0": "(0, 1]",
    "typical.eps=null": "(0, 1]",
    "synthetic.rate=1.1": "[0, 1]",
    "draft.depth=9": "[0, 8]",
    "draft.depth=1.0": "whole number",
    "draft.depth=???": "without a value",
    "draft.depth=range(1,3)": "add -m",
    "draft.depth=${nope.x}": "draft.depth refers to",
    "draft.depth=${": "draft.depth=",
    "+x=1": "no key 'x'",
    "+cascade.alhpa=0.9": "did you mean cascade.alpha?",
    "++cascade.alpha=.9": "write cascade.alpha=.9",
    "+profile=turbo": "write profile=turbo",
    "~typical": "would delete",
    "~profile": "would delete",
    "cascade=null": "set one of cascade.rule, cascade.alpha",
    "server={port:1}": "takes one name",
    "cascade.alhpa=.9": "did you mean cascade.alpha?",
    "alpha=.9": "did you mean cascade.alpha?",
    "port=80": "did you mean server.port?",
    "model=x": "write pack",
    "mode=x": "write acceptance",
    "temperature=1": "write sampler.temperature",
    "zzz=1": "mtrun --why",
    "hydra.run.dir=x": "not a key of mtrun",
    "hydra/launcher=basic": "not a key of mtrun",
    "turbo": "profile=turbo",
    "stamp.frspec=true": "set lanes.frspec=true",
    "stamp=null": "auto-arm alone",
    "lanes.cpublas=true": "did you mean lanes.cpu_blas?",
    "lanes.cpu_blas=1": "true or false",
    "lanes.cpu_blas=yes": "true or false",
    "lanes=null": "choose one of auto, none",
    "audit.require=[frspeck]": "did you mean frspec?",
    "audit.require=frspec": "audit.require=[frspec]",
    "audit.require=frspec,kv_q8": "audit.require=[frspec,kv_q8]",
    "audit.require=[frspec] lanes.frspec=false": "switches off",
    "server.host=0.0.0.0": "server.no_auth=true",
    "server.host=example.com": "server.api_key=SECRET",
    "server=lan": "server.no_auth=true",
    "server.api_key=x server.no_auth=true": "keep one",
    "server.port=99999": "[0, 65535]",
    "server.allowed_origins=[*]": "scheme://host",
    "engine.memory_limit=8GG": "8GiB",
    "engine.memory_limit=0": "8GiB",
    "engine.memory_limit=true": "8GiB",
    "engine.threads=0": "[1, 64]",
    "pack=smolm2": "known packs are nano, smollm2",
    "pack=./absent": "no folder './absent'",
    "pack=path": "needs a source",
    "pack=a,b": "names several packs",
    "pack=smollm2 pack.source=/": "name two packs",
    "profile=turbo cascade.alpha=.95": "add acceptance=cascade",
    "profile=turbo typical.eps=.5": "write no typical.eps",
    "profile=typical-0.2 cascade.alpha=0.5": "dials of two laws",
    "profile=cascade-tokenv3 cascade.alpha=null": "write cascade.alpha=0.95",
    "profile=cascade-tokenv3 acceptance=exact": "cascade.rule=null cascade.alpha=null",
    "lanes.draft_prescatter=true lanes.frspec=false": "lanes.frspec=true or lanes.draft_prescatter=false",
    "--cascade-threshold=": "needs a value",
    "cascade.threshold=2 profile=cascade-tokenv3": "acceptance=synthetic",
}
LEAKS = ("Traceback", "full_key", "Hydra", "OmegaConf", "Config", "object_type", "expecting", "\n")


def _sentence(words: list[str], config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        compose(words, config_dir=config_dir)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("words", TYPED)
def test_a_typing_mistake_gives_one_sentence_with_the_fix(words: str) -> None:
    sentence = _sentence(words.split())
    assert TYPED[words] in sentence
    assert not [leak for leak in LEAKS if leak in sentence]


WRITTEN: dict[str, tuple[str | bytes, str]] = {
    "unknown key": ("cascade: {alhpa: .9}\n", "did you mean cascade.alpha?"),
    "unknown section": ("cascad: {alpha: .9}\n", "no key 'cascad.alpha'"),
    "alias": ("cascade: {threshold: .9}\n", "write cascade.alpha"),
    "section set to null": ("cascade: null\n", "group of keys"),
    "number as text": ("draft: {depth: '2'}\n", "not '2'"),
    "boolean as number": ("draft: {depth: true}\n", "not true"),
    "text as number": ("server: {api_key: 123}\n", "takes text"),
    "yaml boolean word": ("lanes: {kv_q8: 'off'}\n", "true or false"),
    "nan": ("typical: {threshold: .nan}\n", "(0, 1]"),
    "missing mark": ("draft:\n  depth: ???\n", "without a value"),
    "stamp": ("stamp: {frspec: true}\n", "auto-arm alone"),
    "unknown lane": ("lanes: {frspeck: true}\n", "did you mean lanes.frspec?"),
    "syntax": ("draft:\n  depth: 2\n bad: [\n", "line 4 is not valid YAML"),
    "duplicate key": ("draft:\n  depth: 2\n  depth: 3\n", "duplicate key depth"),
    "not utf-8": (b"\xff\xfe", "is not UTF-8 text"),
    "path out of the group": ("defaults: [turbo, ../../secret]\n", "may not leave its group"),
    "extends nothing": ("defaults: [absent, _self_]\n", "'profile/absent'"),
    "unknown choice": ("defaults: [turbo, override /acceptance: cascde]\n", "did you mean acceptance/cascade?"),
    "null choice": ("defaults: [turbo, override /acceptance: null]\n", "no choice left"),
    "extends itself": ("defaults: [broken, _self_]\n", "circle"),
    "two laws": ("defaults: [cascade-tokenv3, _self_]\ntypical: {threshold: .3}\n", "dials of two laws"),
    "lanes that contradict": (
        "defaults: [turbo, _self_]\nlanes: {draft_prescatter: true, frspec: false}\n",
        "needs lane frspec",
    ),
    "law without its number": (
        "defaults: [cascade-tokenv3, _self_]\ncascade: {alpha: null}\n",
        "write cascade.alpha=0.95",
    ),
    "a list": ("- a\n", "key: value lines"),
    "nested key": ("draft: {depth: {deep: 1}}\n", "no key 'draft.depth.deep'"),
}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_mistake_in_a_users_file_names_the_file_or_the_fix(mistake: str, write_profile: Callable[..., Path]) -> None:
    text, part = WRITTEN[mistake]
    (write_profile("x", "")).parent.joinpath("secret.yaml").write_text("draft: {depth: 1}\n")
    sentence = _sentence(["profile=broken"], write_profile("broken", text))
    assert part in sentence
    assert not [leak for leak in LEAKS if leak in sentence]


@pytest.mark.parametrize("text", ["", "draft: {depth: 2}\n", "- a\n"])
def test_a_profile_without_its_package_line_is_told_so(text: str, write_profile: Callable[..., Path]) -> None:
    sentence = _sentence(["profile=mine"], write_profile("mine", text, header=""))
    assert "mine.yaml" in sentence
    assert "# @package _global_" in sentence


def test_a_users_file_with_a_shipped_name_is_refused_when_used(write_profile: Callable[..., Path]) -> None:
    folder = write_profile("turbo", "draft: {depth: 1}\n")
    assert "give it another name" in _sentence(["profile=turbo"], folder)


def test_an_absent_config_dir_is_refused(tmp_path: Path) -> None:
    assert "no folder" in _sentence([], tmp_path / "absent")
