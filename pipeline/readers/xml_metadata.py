"""The XML files beside products, read as a stranger's files are.

No document type, no entities and nothing outside the file (defusedxml refuses them, which ends "billion laughs" and
external references), and bounds on bytes, elements and depth, so that neither memory nor time follow what a hostile
file asks for. Namespaces are dropped while reading: products of one kind come with and without them.
"""

from __future__ import annotations

import os
import re
from typing import Any, cast
from xml.etree.ElementTree import Element, ParseError

import numpy as np
from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser
from numpy.typing import NDArray

from ..errors import FormatError, SceneNotFoundError

MAX_BYTES = 32 * 2**20
"""Largest file that is read: EnMAP's metadata, the longest known, have some 4 MB."""

MAX_ELEMENTS = 500_000
"""Most elements of a file (EnMAP: some 40,000); each costs about half a kilobyte."""

MAX_DEPTH = 64
_SNIFF_BYTES = 64 * 2**10
_NAME = re.compile(rb"<([A-Za-z_][\w.:-]*)")


class _Builder:
    """Builds elements without namespaces, and stops at the bounds."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stack: list[Element] = []
        self.text: list[str] = []
        self.root: Element | None = None
        self.count = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        """Begin an element below the open one."""
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.stack) >= MAX_DEPTH:
            msg = (
                f"{self.path} holds more than {MAX_ELEMENTS} elements, or elements more than {MAX_DEPTH} deep; no "
                "metadata of a known product do"
            )
            raise FormatError(msg)
        self._flush()
        element = Element(tag.rpartition("}")[2], attrs)
        if self.stack:
            self.stack[-1].append(element)
        else:
            self.root = element
        self.stack.append(element)
        return element

    def end(self, tag: str) -> Element:
        """End the open element."""
        del tag
        self._flush()
        return self.stack.pop()

    def data(self, data: str) -> None:
        """Take a piece of text; what stands behind a child (its tail) is dropped, as metadata hold none there."""
        self.text.append(data)

    def close(self) -> Element | None:
        """Return the root."""
        return self.root

    def _flush(self) -> None:
        if self.stack and not len(self.stack[-1]):
            text = "".join(self.text)
            self.stack[-1].text = (self.stack[-1].text or "") + text
        self.text.clear()


def read_xml(path: str) -> Element:
    """Parse an XML file; names of elements are without namespace.

    Raises
    ------
    SceneNotFoundError
        If there is no such file.
    FormatError
        If it is no well-formed XML, brings a document type or entities, or is beyond the bounds of this module.
    """
    try:
        size = os.path.getsize(path)
        if size > MAX_BYTES:
            msg = f"{path} has {size} bytes; XML metadata of up to {MAX_BYTES} are read"
            raise FormatError(msg)
        with open(path, "rb") as file:
            content = file.read(size)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise SceneNotFoundError(msg) from error
    parser = cast("Any", DefusedXMLParser(target=_Builder(path), forbid_dtd=True))
    try:
        parser.feed(content)
        root = parser.close()
    except DefusedXmlException as error:
        msg = (
            f"{path} brings a document type, entities or references to other files ({type(error).__name__}), which "
            "metadata of products do not need and which can be used to attack; remove them if you trust the file"
        )
        raise FormatError(msg) from error
    except (ParseError, ValueError, LookupError) as error:
        if isinstance(error, FormatError):
            raise
        msg = f"{path} is no well-formed XML ({str(error)[:200]}): it is damaged or was cut short; fetch it again"
        raise FormatError(msg) from error
    return cast("Element", root)


def root_name(path: str) -> str | None:
    """Return the name of a file's outermost element without namespace prefix, from its first bytes; None for no XML.

    Never raises, so that it can serve to recognise files.
    """
    try:
        if not os.path.isfile(path):  # a pipe would wait for a writer
            return None
        with open(path, "rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError:
        return None
    found = _NAME.match(_after_prologue(head))
    return None if found is None else found[1].rpartition(b":")[2].decode("ascii", "replace")


def _after_prologue(head: bytes) -> bytes:
    """Return what follows the declaration, processing instructions and comments at the beginning of a file."""
    rest = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    while rest.startswith((b"<?", b"<!--")):
        end = b"?>" if rest.startswith(b"<?") else b"-->"
        _, found, rest = rest.partition(end)
        if not found:
            return b""
        rest = rest.lstrip()
    return rest


def text_of(node: Element, where: str) -> str | None:
    """Return the text of the first element at `where` (names joined by `/`) without blanks around; None for none."""
    found = node.find(where)
    text = "" if found is None or found.text is None else found.text.strip()
    return text or None


def number_of(node: Element, where: str, path: str) -> float | None:
    """Return the number at `where`; None where there is no such element, or it is empty or `NA`.

    Raises
    ------
    FormatError
        If it is no finite number.
    """
    text = text_of(node, where)
    if text is None or text.casefold() in ("na", "n/a", "nan"):
        return None
    return _number(text, where, path)


def required_numbers(nodes: list[Element], name: str, path: str) -> NDArray[np.float64]:
    """Return the number that each of the elements keeps in its child `name`, float64 (element,).

    Raises
    ------
    FormatError
        If one has none, or it is no finite number.
    """
    out = np.empty(len(nodes), np.float64)
    for i, node in enumerate(nodes):
        text = text_of(node, name)
        if text is None:
            msg = f"{path}: band {i + 1} of {len(nodes)} has no <{name}>; every band of the product needs one"
            raise FormatError(msg)
        out[i] = _number(text, f"{name} of band {i + 1}", path)
    return out


def integers_of(node: Element, where: str, path: str) -> list[int]:
    """Return the comma-separated whole numbers at `where`; an empty list where there is no such element.

    Raises
    ------
    FormatError
        If an entry is no whole number.
    """
    text = text_of(node, where)
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    for i, part in enumerate(parts):
        if not (part.isascii() and part.isdigit() and len(part) < 10):
            msg = f"{path}: entry {i + 1} of <{where}> is {part[:40]!r}; allowed: whole numbers separated by commas"
            raise FormatError(msg)
    return [int(part) for part in parts]


def _number(text: str, what: str, path: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        msg = f"{path}: {what} is {text[:40]!r}; allowed: a finite number"
        raise FormatError(msg)
    return value
