"""The bodies of the two completion endpoints, field by field, in the wire's own terms.

Numbers are strict: a boolean, a string, NaN or an infinity is never a number. The description of a field is what its
error tells the client to send. Fields of the OpenAI API that ask for nothing are accepted at the values in `INERT`;
every other field is refused by name, so that no accepted field is without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError

from mtrun.runtime.server.errors import Problem, ProblemError

MOST_STOPS = 16
LONGEST_STOP = 1024  # characters
SMALLEST_TEMPERATURE = 1e-6  # below it the softmax of float32 logits overflows
_LARGEST_INT = 2**31 - 1
_ANY = object()

Inert = Mapping[str, tuple[Any, ...]]  # field -> the values that ask for nothing

INERT: Inert = {
    "user": (_ANY,),
    "metadata": (_ANY,),
    "safety_identifier": (_ANY,),
    "prompt_cache_key": (_ANY,),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
MESSAGE_INERT: Inert = {"tool_calls": ([],), "annotations": ([],), "function_call": (), "refusal": (), "audio": ()}


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text without lone surrogates") from None
    return value


Text = Annotated[str, AfterValidator(_text)]


def _stop(value: object) -> tuple[str, ...]:
    want = f"a string or a list of at most {MOST_STOPS} strings, each of 1 to {LONGEST_STOP} characters"
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > MOST_STOPS:
        raise ValueError(want)
    if not all(isinstance(item, str) and 1 <= len(item) <= LONGEST_STOP for item in items):
        raise ValueError(want)
    return tuple(_text(item) for item in items)


def _logit_bias(value: object) -> dict[int, float]:
    want = "an object of token ids as strings to numbers from -100 to 100"
    if not isinstance(value, dict):
        raise ValueError(want)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        canonical = key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key
        if not canonical or isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(want)  # NaN fails the range as well
        biases[int(key)] = float(bias)
    return biases


def _content(value: object) -> str:
    """Text parts are joined with nothing between them."""
    if isinstance(value, str):
        return value
    want = 'a string or a list of {"type": "text", "text": ...} parts; other parts are not supported'
    if not isinstance(value, list) or not value:
        raise ValueError(want)
    for part in value:
        keys = part.keys() if isinstance(part, dict) else ()
        if set(keys) != {"type", "text"} or part["type"] != "text" or not isinstance(part["text"], str):
            raise ValueError(want)
    return "".join(part["text"] for part in value)


def _prompt(value: object) -> str | list[int]:
    """One prompt; a list of one prompt is that prompt."""
    want = "one non-empty string or one non-empty list of token ids"
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return _text(value)
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return value
    raise ValueError(want)


def _temperature(value: float) -> float:
    if 0 < value < SMALLEST_TEMPERATURE:
        raise ValueError(f"0, or a number from {SMALLEST_TEMPERATURE:f} to 2")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ChatMessage(_Strict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="one of system, developer, user, assistant, tool"
    )
    content: Annotated[Text, BeforeValidator(_content)] = Field(description="a string or a list of text parts")
    name: Text | None = Field(None, description="a string")
    tool_call_id: Text | None = Field(None, description="a string")

    def for_template(self) -> dict[str, Any]:
        """What the chat template is given; `developer` is the newer word for `system`."""
        message = self.model_dump(exclude_none=True)
        return {**message, "role": "system" if self.role == "developer" else self.role}


class StreamOptions(_Strict):
    """What a stream carries besides its text."""

    include_usage: bool = Field(False, description="true or false")


class CommonBody(_Strict):
    """What both endpoints take."""

    model: str | None = Field(None, description="the id that /v1/models lists")
    stream: bool = Field(False, description="true or false")
    stream_options: StreamOptions | None = Field(None, description='an object such as {"include_usage": true}')
    max_tokens: int | None = Field(None, ge=1, description="a whole number from 1 up")
    temperature: Annotated[float, AfterValidator(_temperature)] | None = Field(
        None, ge=0, le=2, description="a number from 0 to 2"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0 and up to 1")
    top_k: int | None = Field(None, ge=0, le=_LARGEST_INT, description="a whole number from 0 up (0 is off)")
    min_p: float | None = Field(None, ge=0, lt=1, description="a number from 0 and below 1")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="a number above 0 and up to 10")
    logit_bias: Annotated[dict[int, float], BeforeValidator(_logit_bias)] | None = Field(
        None, description="an object of token ids as strings to numbers from -100 to 100"
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="a whole number from 0 to 9223372036854775807")
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop)] = Field((), description="a string or a list of strings")
    n: int = Field(1, ge=1, le=1, description="1; send one request for each further choice")
    ignore_eos: bool = Field(False, description="true or false")
    draft_depth: int | None = Field(None, ge=0, description="a whole number from 0 to the configured depth")

    def overrides(self) -> dict[str, Any]:
        """The sampling fields that the client sent."""
        return {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}


class ChatBody(CommonBody):
    """The fields of a chat request."""

    messages: Annotated[list[ChatMessage], FailFast()] = Field(
        min_length=1, description="a list of at least one message"
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="a whole number from 1 up")
    logprobs: bool = Field(False, description="true or false")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="a whole number from 0 to 20")


class CompletionBody(CommonBody):
    """The fields of a text completion request."""

    prompt: Annotated[str | list[int], BeforeValidator(_prompt)] = Field(
        description="one non-empty string or one non-empty list of token ids"
    )
    logprobs: int | None = Field(None, ge=0, le=5, description="a whole number from 0 to 5")


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
)


def parse_chat(payload: dict[str, Any]) -> ChatBody:
    """Raises ProblemError (400) that names the first field at fault."""
    body = _validated(ChatBody, payload)
    if body.top_logprobs is not None and not body.logprobs:
        raise _refusal("top_logprobs", "Send logprobs: true with top_logprobs, or leave top_logprobs out.")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise _refusal("max_tokens", "Send max_tokens or max_completion_tokens, or the same number in both.")
    return body


def parse_completion(payload: dict[str, Any]) -> CompletionBody:
    """Raises ProblemError (400) that names the first field at fault."""
    return _validated(CompletionBody, payload)


Body = TypeVar("Body", bound=CommonBody)


def _validated(model: type[Body], payload: dict[str, Any]) -> Body:
    try:
        body = model.model_validate(_prepared(model, payload))
    except ValidationError as error:
        raise _problem(model, error) from None
    if body.stream_options is not None and not body.stream:
        raise _refusal("stream_options", "Send stream: true with stream_options, or leave stream_options out.")
    return body


def _prepared(model: type[CommonBody], payload: dict[str, Any]) -> dict[str, Any]:
    asked = _asked(model, payload)
    messages = asked.get("messages")
    if isinstance(messages, list):
        asked["messages"] = [
            _asked(ChatMessage, message, f"messages[{i}].", MESSAGE_INERT) for i, message in enumerate(messages)
        ]
    if "stream_options" in asked:
        asked["stream_options"] = _asked(StreamOptions, asked["stream_options"], "stream_options.", {})
    return asked


def _asked(model: type[BaseModel], value: object, place: str = "", inert: Inert = INERT) -> Any:
    """`value` without what is null or asks for nothing. Raises ProblemError at the first field that is unknown.

    Looked for here and not by the model, which would list every one of a million unknown names before it stops.
    """
    if not isinstance(value, dict):
        return value
    asked = {}
    for name, item in value.items():
        if item is None or (name not in model.model_fields and _asks_nothing(item, inert.get(name, ()))):
            continue
        if name not in model.model_fields:
            raise _unknown(place + name, inert)
        asked[name] = item
    return asked


def _asks_nothing(value: object, allowed: tuple[Any, ...]) -> bool:
    return any(choice is _ANY or _same(choice, value) for choice in allowed)


def _unknown(param: str, inert: Inert) -> ProblemError:
    if any("\ud800" <= character <= "\udfff" for character in param):
        return _refusal("body", "Send field names as text without lone surrogates.")
    if param in inert or param.rpartition(".")[2] in inert:
        return _refusal(param, f"Leave out {param}: this server cannot honour what it asks for.")
    return _refusal(param, f"Leave out {param[:80]!r}: this server knows no such field.")


def _same(choice: object, value: object) -> bool:
    """Equality that keeps False apart from 0 and True from 1."""
    return type(choice) is type(value) and choice == value


def _problem(model: type[CommonBody], error: ValidationError) -> ProblemError:
    first = error.errors(include_url=False, include_context=False)[0]
    place = first["loc"]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if first["type"] == "missing":
        return _refusal(param, f"Send {param}: {_wanted(model, place)}.")
    want = first["msg"].removeprefix("Value error, ") if first["type"] == "value_error" else _wanted(model, place)
    return _refusal(param, f"Send {param} as {want}{_shown(first['input'])}.")


def _wanted(model: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """The description of the field at `place`."""
    owner: type[BaseModel] = model
    name = place[0]
    if name == "messages" and len(place) == 2:
        return "an object with role and content"
    if name == "messages" and len(place) > 2:
        owner, name = ChatMessage, place[2]
    elif name == "stream_options" and len(place) == 2:
        owner, name = StreamOptions, place[1]
    return owner.model_fields[str(name)].description or "another value"


def _shown(value: object) -> str:
    """The value at fault where it is a short scalar: long text is not sent back."""
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 10**20):
        return f", not {value}"
    return f", not {value!r}" if isinstance(value, str) and len(value) <= 40 else ""


def _refusal(param: str, message: str) -> ProblemError:
    return ProblemError(Problem(400, message, param=param))
