"""JSON in and out: strict when written, checked when read; whatever is wrong is one ValueError that names the file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from gcn_lpa.data.files import write_output


class FileError(ValueError):
    """What is wrong with a file, in one sentence that begins with its name."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a file is decoded into one sentence that names it."""
    try:
        yield
    except FileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        if not isinstance(error, ValueError):
            problem = f"not as gcn-lpa writes it ({problem})"
        raise FileError(f"{path}: {problem}") from error


def write_json(path: str | Path, value: Any) -> None:
    with naming(Path(path)):
        data = encode_json(value)
    write_output(path, data)


def read_json(path: str | Path) -> Any:
    path = Path(path)
    return decode_json(path.read_bytes(), path)


def encode_json(value: Any, *, indent: int | None = 2) -> bytes:
    """JSON as the standard has it: NaN, infinities and halves of characters are a ValueError."""
    text = json.dumps(value, indent=indent, allow_nan=False)
    _require_characters(text, value)
    return (text + "\n").encode()


def encode_lines(rows: Iterable[Any]) -> bytes:
    """JSON lines, one row each."""
    return b"".join(encode_json(row, indent=None) for row in rows)


def decode_json(data: bytes, path: Path) -> Any:
    """The value of some JSON; what is wrong with it is a ValueError that names `path`."""
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=_refuse)
        _require_characters(text, value)
        return value
    except RecursionError:
        raise FileError(f"{path}: not valid JSON: nested too deeply") from None
    except ValueError as error:  # also what UnicodeDecodeError and JSONDecodeError are
        raise FileError(f"{path}: not valid JSON: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _require_characters(text: str, value: Any) -> None:
    """Refuse half of a surrogate pair, which JSON can spell (\\ud800) and no file or terminal can show."""
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()


KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def decode_as(kind: Any, value: Any, name: str = "") -> Any:
    """A JSON value as a type: int, float, str, bool, `X | None`, list[X], tuple[X, ...], dict[str, X] or a dataclass of such.

    What does not fit is a ValueError that says where: `name` is the place of the value. Ranges are the affair of the
    dataclass, in its `__post_init__`.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        wanted = next(option for option in inner if option is not types.NoneType)
        return None if value is None else decode_as(wanted, value, name)
    json_kind = dict if dataclasses.is_dataclass(kind) else list if origin is tuple else origin or kind
    is_number = type(value) in (int, float) and abs(value) < 2**63 and math.isfinite(value)
    fits = {int: is_number and type(value) is int, float: is_number}.get(json_kind, type(value) is json_kind)
    if not fits:
        raise ValueError(f"{name or 'it'} is {value!r:.40}; it is {KINDS[json_kind]}")
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, name)
    if json_kind is list:
        items = [decode_as(inner[0], item, f"{name}[{k}]") for k, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if json_kind is dict:
        return {key: decode_as(inner[1], item, f"{name}[{key!r:.40}]") for key, item in value.items()}
    return kind(value)


def _decode_dataclass(kind: Any, value: dict[str, Any], name: str) -> Any:
    hints = _hints(kind)
    if unknown := [key for key in value if key not in hints]:
        raise ValueError(f"{name or 'it'} has a field {unknown[0]!r:.40}; there are {', '.join(hints)}")
    fields = {key: decode_as(hints[key], item, f"{name}.{key}" if name else key) for key, item in value.items()}
    for spec in dataclasses.fields(kind):
        is_optional = spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING
        if spec.name not in fields and not is_optional:
            raise ValueError(f"{name or 'it'} has no field {spec.name!r}")
    return kind(**fields)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return {spec.name: get_type_hints(kind)[spec.name] for spec in dataclasses.fields(kind)}
