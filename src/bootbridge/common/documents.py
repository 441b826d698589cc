"""Loads the documents that operators write: text → YAML or JSON → frozen dataclasses, all errors at once.

A document is a dataclass with `__pydantic_config__ = documents.CONFIG`; dataclasses inside it share that.
Field types are checked strictly, unknown fields are rejected, and names are camelCase in files.
The docstring below a field is its description in the JSON schema (`bootbridge schema`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import yaml
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from bootbridge.common.field_names import camel_case
from bootbridge.common.files import read_file
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import OperatorError

T = TypeVar("T")

DOCUMENT_BYTES_MAX: Final = 8 * 1024 * 1024
# Of a document whose aliases are written out: a few lines of YAML can stand for gigabytes.
EXPANDED_CHARACTERS_MAX: Final = 4 * DOCUMENT_BYTES_MAX
ERRORS_SHOWN_MAX: Final = 20
QUOTED_CHARACTERS_MAX: Final = 80
CONFIG: Final = ConfigDict(
    extra="forbid",
    strict=True,
    alias_generator=camel_case,
    field_title_generator=lambda name, _: camel_case(name),
    use_attribute_docstrings=True,
    allow_inf_nan=False,
)
# For documents that belong to another program: fields that are not read here are not ours to judge.
FOREIGN_CONFIG: Final[ConfigDict] = {**CONFIG, "extra": "ignore"}


class FieldError(OperatorError, ValueError):
    """A check that failed on a field, or on the field `subject` below it; collected with all other errors."""


class DocumentErrors(OperatorError):
    """Several errors of one document."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))

    @property
    def lines(self) -> list[str]:
        return str(self).split("\n")


def checked(check: Callable[[Any], Any]) -> AfterValidator:
    """Makes a check part of a type; it returns the value to use, or raises OperatorError or ValueError."""

    def collected(value: Any) -> Any:
        try:
            return check(value)
        except FieldError:
            raise
        except OperatorError as error:
            raise FieldError(error.args[0], subject=error.subject, hint=error.hint) from None

    return AfterValidator(collected)


def _absolute(path: Path) -> Path:
    # A program that an init system starts has no working directory to rely on.
    if not path.is_absolute():
        raise FieldError(f"invalid path {str(path)!r}", hint="must be absolute")
    return path


def _cidr(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise FieldError(f"invalid CIDR {quoted(text)}", hint=str(error)) from None
    return text


NonEmpty = Annotated[str, Field(min_length=1)]
AbsolutePath = Annotated[Path, checked(_absolute)]
Cidr = Annotated[str, checked(_cidr)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
# Never shown in an error.
Secret = Annotated[str, Field(json_schema_extra={"writeOnly": True})]


def read(kind: type[T], path: Path | str, flag: str) -> T:
    """Loads a file; one that cannot be read is an error of the flag that names it."""
    return load(kind, read_file(path, flag), str(path))


def load(kind: type[T], data: str | bytes, name: str) -> T:
    """Loads a document; `name` is the file in errors. Raises OperatorError, one line for each error."""
    return convert(kind, parse(data, name), name)


def convert(kind: type[T], document: object, name: str) -> T:
    """Converts parsed JSON or YAML; `name` is the document in errors."""
    if document is None:
        raise OperatorError("empty document", subject=name, hint="must be a mapping")
    try:
        # JSON in strict mode takes a list for a tuple and text for an address, and nothing else for either.
        return _adapter(kind).validate_json(json.dumps(document))
    except ValidationError as error:
        raise _as_operator_error(_problems(error, json_schema(kind), document), name) from None
    except OperatorError as error:
        raise named(error, name) from None
    except (ValueError, RecursionError):
        raise OperatorError(
            "document has a number that is too large, or is nested too deeply", subject=name
        ) from None


def named(error: OperatorError, name: str) -> OperatorError:
    """The same error with the name of the file in front."""
    return OperatorError(
        error.args[0], subject=": ".join(filter(None, (name, error.subject))), hint=error.hint
    )


def dump(value: Any) -> Any:
    """Returns the document of a value, ready for JSON or YAML; fields that are None are left out."""
    return _adapter(type(value)).dump_python(value, mode="json", by_alias=True, exclude_none=True)


def json_schema(kind: Any) -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_adapter(kind).json_schema()}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def without_nulls(document: Any, keep: Sequence[str] = ()) -> Any:
    """Drops fields that are null, which means that they are not given; not below the fields in `keep`."""
    if isinstance(document, list):
        return [without_nulls(each, keep) for each in document]
    if not isinstance(document, Mapping):
        return document
    return {
        key: value if key in keep else without_nulls(value, keep)
        for key, value in document.items()
        if value is not None
    }


# --- text


def parse(data: str | bytes, name: str) -> Any:
    """Parses JSON or YAML into JSON's types. Mappings have text as keys, each of them once."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise OperatorError(f"larger than {DOCUMENT_BYTES_MAX} bytes", subject=name)
    try:
        # Much faster than YAML for a policy of a thousand instances. Every error is left to YAML,
        # which knows line and column.
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError):
        pass
    try:
        loader = _Loader(data)
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded_characters(node, {}) > EXPANDED_CHARACTERS_MAX:
            raise _Rejected("too many aliases", node)
        return loader.construct_document(node)
    except RecursionError:
        raise OperatorError("nested too deeply", subject=name) from None
    except YAML_ERRORS as error:
        raise OperatorError(_yaml_problem(error), subject=name) from None


def _yaml_problem(error: Exception) -> str:
    """Says what and where, but quotes no text of the document: it may be a secret."""
    if isinstance(error, _Rejected):
        problem = str(error.problem)
    else:
        detail = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be decoded"
        problem = "invalid YAML: " + re.sub(r"(?<=alias|e tag|andle) '[^'<]+'", "", str(detail))
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


class _Rejected(yaml.MarkedYAMLError):
    """YAML that is valid and not accepted here."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(problem=problem, problem_mark=node.start_mark)


class _Loader(yaml.SafeLoader):
    """Constructs JSON's types only. A key is its text: 15 and "15" are one register, and a duplicate."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Rejected("invalid key: must be text", key)
            if key.value in found and key.tag != "tag:yaml.org,2002:merge":
                raise _Rejected(f"duplicate key {quoted(key.value)}", key)
            found.add(key.value)
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

    def construct_finite(self, node: yaml.ScalarNode) -> float:
        value = self.construct_yaml_float(node)
        if not math.isfinite(value):
            raise _Rejected("invalid number: must be finite", node)
        return value

    def construct_nothing(self, node: yaml.Node) -> None:
        kind = node.tag.rpartition(":")[2]
        raise _Rejected(f"unsupported type {kind} (put text between quotes)", node)


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_finite)
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_nothing)


def _expanded_characters(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Of the document with every alias written out; raises for an alias inside its own anchor."""
    if id(node) not in known:
        known[id(node)] = None
        children: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.MappingNode):
            children = (each for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        own = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        known[id(node)] = 1 + own + sum(_expanded_characters(each, known) for each in children)
    size = known[id(node)]
    if size is None:
        raise _Rejected("an alias inside its own anchor", node)
    return size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)


# --- errors

Location = tuple[str | int, ...]


class _Problem(NamedTuple):
    at: Location
    text: str
    hint: str = ""
    wrong_type: bool = False


_EXPECTED_TYPES: Final = {
    "string_type": "a string",
    "path_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}
_LIMITS: Final = {
    "greater_than": ("gt", "must be greater than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than_equal": ("le", "must be at most {}"),
}


def _problems(error: ValidationError, schema: dict[str, Any], document: object) -> list[_Problem]:
    found = [_problem(each, schema, document) for each in error.errors(include_url=False)]
    merged: dict[Location, _Problem] = {}
    for each in found:
        others = [other for other in found if other is not each and other.at[: len(each.at)] == each.at]
        if each.wrong_type and any(not other.wrong_type or len(other.at) > len(each.at) for other in others):
            continue  # of several alternatives another one was meant
        before = merged.setdefault(each.at, each)
        if each.hint not in before.hint:
            hint = f"{before.hint}, or {each.hint.removeprefix('must be ')}"
            merged[each.at] = before._replace(hint=hint)
    return list(merged.values())


def _problem(error: Any, schema: dict[str, Any], document: object) -> _Problem:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    at, tags = _location(error["loc"], document, absent=kind in ("missing", "unexpected_keyword_argument"))
    schemas = list(_schemas_at(schema, at))
    shown = "" if any(each.get("writeOnly") for each in schemas) else f" {quoted(value)}"
    if kind == "missing" or (kind == "string_too_short" and not value):
        return _Problem(at, "required field missing")
    if kind == "unexpected_keyword_argument":
        return _Problem(at, "unknown field", _suggestion(str(at[-1]), schema, at[:-1]))
    if kind in _EXPECTED_TYPES:
        return _Problem(at, f"invalid type: {_type_name(value)}", f"must be {_EXPECTED_TYPES[kind]}", True)
    if kind in _LIMITS:
        key, hint = _LIMITS[kind]
        return _Problem(at, f"invalid value{shown}", hint.format(f"{context[key]:.15g}"))
    if kind in ("enum", "literal_error"):
        known = ", ".join(re.findall(r"'([^']*)'", context["expected"]))
        if isinstance(value, str):
            return _Problem(at, f"invalid value{shown}", f"one of: {known}")
        return _Problem(at, f"invalid type: {_type_name(value)}", f"one of: {known}", True)
    if kind == "json_invalid":
        return _Problem((), "invalid text", str(context["error"]))
    if family := re.search(r"IPv[46](Network|Address)", tags):
        return _Problem(at, f"invalid {'CIDR' if family[1] == 'Network' else 'IP address'}{shown}")
    cause = context.get("error")
    if isinstance(cause, OperatorError):
        return _Problem(at + ((cause.subject,) if cause.subject else ()), str(cause.args[0]), cause.hint)
    return _Problem(at, f"invalid value{shown}", str(cause or error["msg"]))


def _location(loc: Location, document: object, *, absent: bool) -> tuple[Location, str]:
    """The path in the document, without the names that pydantic adds for alternatives; and those names."""
    at: list[str | int] = []
    tags = []
    for place, key in enumerate(loc):
        inner = dict(enumerate(document)) if isinstance(document, list) else document
        if isinstance(inner, Mapping) and key in inner:
            at.append(key)
            document = inner[key]
        elif absent and place == len(loc) - 1:
            at.append(key)
        else:
            tags.append(str(key))
    return tuple(at), " ".join(tags)


def _schemas_at(root: dict[str, Any], at: Location) -> Iterator[dict[str, Any]]:
    """All alternatives that the schema has for a place in the document."""
    found = list(_alternatives(root, root))
    for key in at:
        inner = (
            each.get("items")
            if isinstance(key, int)
            else each.get("properties", {}).get(key, each.get("additionalProperties"))
            for each in found
        )
        found = [each for one in inner if isinstance(one, dict) for each in _alternatives(one, root)]
    yield from found


def _alternatives(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    if "$ref" in schema:
        yield from _alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for each in schema.get("anyOf", ()):
        yield from _alternatives(each, root)


def _suggestion(name: str, schema: dict[str, Any], at: Location) -> str:
    known = [field for each in _schemas_at(schema, at) for field in each.get("properties", {})]
    if close := difflib.get_close_matches(name, known, 1):
        return f'did you mean "{close[0]}"?'
    return f"one of: {', '.join(known)}" if known else ""


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "mapping"}
    return names.get(type(value), type(value).__name__)


def quoted(value: object) -> str:
    """Returns a value for an error: on one line, and not longer than QUOTED_CHARACTERS_MAX."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return json.dumps(value) if value is None or isinstance(value, bool) else f"a {_type_name(value)}"
    text = repr(value)
    return text if len(text) <= QUOTED_CHARACTERS_MAX else f"{text[:QUOTED_CHARACTERS_MAX]}…"


def _as_operator_error(problems: Sequence[_Problem], name: str) -> OperatorError:
    errors = [
        OperatorError(each.text, subject=": ".join(filter(None, (name, _path(each.at)))), hint=each.hint)
        for each in problems
    ]
    if len(errors) == 1:
        return errors[0]
    more = [f"{name}: {len(errors) - ERRORS_SHOWN_MAX} more errors"] * (len(errors) > ERRORS_SHOWN_MAX)
    return DocumentErrors([*map(str, errors[:ERRORS_SHOWN_MAX]), *more])


def _path(at: Location) -> str:
    """`instances[2].role`; a key that is not printable, or long, is quoted."""
    text = ""
    for key in at:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            plain = key.isprintable() and len(key) <= QUOTED_CHARACTERS_MAX
            text += ("." if text else "") + (key if plain else quoted(key))
    return text
