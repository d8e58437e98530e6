"""A pack's chat template: a sandboxed Jinja program with the conventions of Hugging Face templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError, RequestError
from mtrun.runtime.packs.fields import MAX_YAML_BYTES, Fields, one_line, read_json, read_text
from mtrun.runtime.packs.members import CHAT_TEMPLATE, TOKENIZER_CONFIG, member

Render = Callable[..., str]
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """Renders messages to prompt text. The template sees no file, no module and no attribute of Python's own."""

    def __init__(self, templates: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        """`templates` by name ("default", "tool_use"), `tokens` such as bos_token. Raises PackError for bad syntax."""
        self._renders = {name: _compile(text) for name, text in templates.items()}
        self._tokens = dict(tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises RequestError(field="messages") with the template's own words."""
        name = "tool_use" if tools and "tool_use" in self._renders else "default"
        render = self._renders.get(name)
        if render is None:
            raise RequestError("this pack has no chat template: send a prompt to /v1/completions instead.", "messages")
        try:
            return render(
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except Exception as error:  # whatever a template does wrong, it did with these messages
            words = " ".join(str(error).split()) or type(error).__name__
            raise RequestError(f"the pack's chat template refuses these messages: {words}", "messages") from error


def read_chat_template(folder: Path) -> ChatTemplate:
    """`chat_template.jinja`, else the template in tokenizer_config.json, else one that refuses. Raises PackError."""
    config: Mapping[str, Any] = {}
    if (folder / TOKENIZER_CONFIG).exists():
        config = Fields.of(read_json(member(folder, TOKENIZER_CONFIG, "pack")), TOKENIZER_CONFIG).data
    tokens = {key: text for key in _TOKENS if (text := _token_text(config.get(key))) is not None}
    if (folder / CHAT_TEMPLATE).exists():
        text = read_text(member(folder, CHAT_TEMPLATE, "pack"), MAX_YAML_BYTES)
        return ChatTemplate({"default": text}, tokens)
    return ChatTemplate(_named_templates(config.get("chat_template")), tokens)


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_templates(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    where = f"{TOKENIZER_CONFIG}: chat_template"
    if not isinstance(value, list):
        raise PackError(f"{where} must be a text or a list of named texts.")
    entries = [Fields.of(one, where) for one in value]
    return {entry.text("name"): entry.text("template") for entry in entries}


def _compile(text: str) -> Render:
    environment = _environment()
    try:
        return environment.from_string(text).render
    except Exception as error:  # besides Jinja's own: what Python makes of the code it was compiled to
        words = one_line(error)
        raise PackError(f"the pack's chat template is not valid Jinja ({words}): correct it in the pack.") from error


def _environment() -> Any:
    import jinja2.ext
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`: marks the assistant's words for training; here its body is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Computes nothing while it compiles: `'x' * 10**10` in a template would fill the memory at load."""

        intercepted_binops = frozenset(("*", "**", "%"))  # which keeps the compiler off them

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            if next(tree.find_all(jinja2.nodes.EvalContextModifier), None):
                raise jinja2.TemplateError("autoescape is no part of chat templates")
            return tree

    @jinja2.pass_context
    def as_it_is(context: Any, value: Any) -> Any:
        return value

    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
        optimized=False,
        finalize=as_it_is,  # one that asks for the context is never called while compiling
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)
