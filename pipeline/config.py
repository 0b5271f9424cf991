"""Strict configuration: safe YAML in, frozen models out, every mistake named.

Workflows, catalogs and experiments share these rules: YAML 1.2 scalars only (PyYAML alone reads ``1e5`` as text and
``12:30:00`` as 45000), no duplicate keys, no aliases, no tags, at most 1 MB; unknown keys are refused and the nearest
allowed key is named.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pydantic
import yaml

from .errors import ConfigError
from .storage import locate

MAX_YAML_BYTES = 1_000_000
DATA_ROOT_VARIABLES = ("BANDSTREAM_DATA", "BANDSTREAM_TEST_DATA")
Model = TypeVar("Model", bound="StrictModel")


class StrictModel(pydantic.BaseModel):
    """Base of every configuration section: frozen, and an unknown key is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", defer_build=True, frozen=True, validate_default=True)


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 and without aliases or duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                problem = f"a key must be a plain word or number, got {key!r}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            if key in seen:
                problem = f"the key {key!r} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
):
    _StrictLoader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))
# 010 is the decimal ten in YAML 1.2; PyYAML's own constructor would read an octal number.
_StrictLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(cast("str", node.value)))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text by the strict rules; `where` names the source in messages."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader underneath
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


class _Dumper(yaml.SafeDumper):
    """Writes what `parse_yaml` reads back as it was, lists of numbers in one row."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out each time: aliases are refused on reading."""
        del data
        return True


def _row(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    flat = all(isinstance(item, (int, float)) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flat)


def _words(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # PyYAML leaves 1e5 bare, which is a number in YAML 1.2, and folds lines at characters that are none
    style = '"' if value[:1] in tuple("+-.0123456789") or not value.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(list, _row)
_Dumper.add_representer(str, _words)


def dump_yaml(data: dict[str, Any]) -> str:
    """Return YAML that `parse_yaml` reads back as it was, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML file whose top level is a mapping.

    Raises
    ------
    ConfigError
        The file is missing, too large, not valid YAML, or no mapping.
    """
    path = Path(path)
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _names_in(path.parent), n=3)
        hint = f"; files with a similar name there: {', '.join(near)}" if near else ""
        raise ConfigError(f"There is no file {path}{hint}.")
    size = path.stat().st_size
    if size > MAX_YAML_BYTES:
        raise ConfigError(f"{path} has {size} bytes; configuration files may have {MAX_YAML_BYTES} at most.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold keys and values at its top level, got {type(data).__name__}.")
    return cast("dict[str, Any]", data)


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `data` with dotted overrides such as ``tiles.size=32`` applied.

    A number in the path indexes a list (``stages.3.normalize.method=minmax``); in `stages` the stage's own name works
    as well (``stages.reduce.components=15``). The value is parsed as YAML.

    Raises
    ------
    ConfigError
        An override has no "=", or its path leads into a value that is no section.
    """
    result: dict[str, Any] = json.loads(json.dumps(data))
    for override in overrides:
        path, sign, text = override.partition("=")
        keys = path.strip().split(".")
        if not sign or not all(keys):
            raise ConfigError(f"The override {override!r} must look like section.key=value.")
        value = parse_yaml(text, f"the value of {override!r}")
        node: Any = result
        for key in keys[:-1]:
            node = _descend(node, key, override)
        _assign(node, keys[-1], value, override)
    return result


def _descend(node: Any, key: str, override: str) -> Any:
    if isinstance(node, dict):
        child = cast("dict[str, Any]", node).setdefault(key, {})
        if isinstance(child, (dict, list)):
            return child
    if isinstance(node, list):
        items = cast("list[Any]", node)
        if key.isdecimal() and int(key) < len(items):
            return items[int(key)]
        for item in items:
            if isinstance(item, dict) and set(cast("dict[str, Any]", item)) == {key}:
                return cast("dict[str, Any]", item)[key]
    raise ConfigError(f"The override {override!r} does not fit: there is no section {key!r} at that place.")


def _assign(node: Any, key: str, value: Any, override: str) -> None:
    if isinstance(node, dict):
        node[key] = value
    elif isinstance(node, list) and key.isdecimal() and int(key) < len(cast("list[Any]", node)):
        node[int(key)] = value
    else:
        raise ConfigError(f"The override {override!r} does not fit: {key!r} is no key at that place.")


def parse(model: type[Model], data: Any, where: str) -> Model:
    """Validate `data` as `model`; `where` names the file in messages.

    Raises
    ------
    ConfigError
        One sentence per mistake: the place, what was got, what is allowed.
    """
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        lines = [_explain(model, item) for item in _of_the_branch_meant(error.errors())[:8]]
        # what is allowed at a place is said once
        once = [line if line not in lines[:n] else "" for n, line in enumerate(lines)]
        raise ConfigError(f"{where}: " + " ".join(filter(None, once))) from error


def _names_a_branch(part: int | str) -> bool:
    """Return whether a part of a place is pydantic's name for a branch of a union: no word of the file."""
    models = {model.__name__ for model in StrictModel.__subclasses__()}
    return bool(re.search(r"[\[(]", str(part))) or part in models | {"int", "float", "str", "bool"}


def _of_the_branch_meant(items: Sequence[Any]) -> list[Any]:
    """Leave out what is said of a union's branches that the value is not even of the kind of, if one of them fits."""
    kinds = ("model_type", "dict_type", "list_type")
    meant = [item for item in items if item["type"] not in kinds or not _names_a_branch(item["loc"][-1])]
    return meant or list(items)


def _explain(model: type[StrictModel], item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"] if not _names_a_branch(part))
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        allowed = _allowed_keys(model, item["loc"][:-1])
        near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        among = f" Allowed here: {', '.join(sorted(allowed))}." if allowed else ""
        return f"unknown key {key!r} at {place}.{hint}{among}"
    if item["type"] == "missing":
        return f"the key {place} is missing."
    message = item["msg"].removeprefix("Value error, ").rstrip(".")
    if item["type"] == "value_error":
        return f"{place + ': ' if place else ''}{message}."
    return f"{place}: {message[0].lower() + message[1:]}, got {item['input']!r}."


def _allowed_keys(model: type[StrictModel], location: Sequence[Any]) -> list[str]:
    """Collect the field names of whichever sub-models a location can lead to."""
    candidates: list[type[pydantic.BaseModel]] = [model]
    for part in location:
        fields = [m.model_fields[part].annotation for m in candidates if part in m.model_fields]
        inner = [found for annotation in fields for found in _models_in(annotation)]
        named = [m for m in candidates if m.__name__ == part or _tag_of(m) == part]
        # numbers index lists and words may be union tags: neither leaves the current candidates
        candidates = inner or named or candidates
    return sorted({field.alias or name for m in candidates for name, field in m.model_fields.items()})


def _tag_of(model: type[pydantic.BaseModel]) -> Any:
    for name in ("by", "kind", "name", "method"):
        field = model.model_fields.get(name)
        values = getattr(field.annotation, "__args__", ()) if field else ()
        if len(values) == 1:
            return values[0]
    return None


def _models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models_in(part)]


def canonical_json(value: Any) -> bytes:
    """Encode as JSON with sorted keys and no blanks, so that equal values give equal bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    ).encode()


def fingerprint(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def data_roots() -> list[Path]:
    """Return the folders named by BANDSTREAM_DATA and BANDSTREAM_TEST_DATA, as far as they are set."""
    found = (os.environ.get(name) for name in DATA_ROOT_VARIABLES)
    return [Path(part).expanduser().resolve() for value in found if value for part in value.split(os.pathsep)]


def find_data(path: str, bases: Sequence[Path]) -> Path:
    """Resolve a file, folder or glob pattern of a configuration file.

    Absolute paths and addresses (``s3://...``) stand as they are. Relative ones are looked for under each of `bases`;
    the first place where something exists wins, else the path under the first base is returned so that the caller's own
    message names it.

    Parameters
    ----------
    path
        May hold the wildcards ``*``, ``?`` and ``[``.
    bases
        Folders to look in, first match first.
    """
    if "://" in path:
        return locate(path)
    expanded = Path(path).expanduser()
    if expanded.is_absolute():
        return expanded
    for base in bases:
        candidate = base / expanded
        if candidate.exists() or any(base.glob(str(expanded))):
            return candidate
    return (bases[0] if bases else Path.cwd()) / expanded


def _names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
