"""Chat templates, run in jinja's sandbox with the functions of transformers, and with bounded time and memory.

A template comes with a model and is not trusted. Jinja's sandbox keeps it from the interpreter. Here each turn of a loop and
each call of a macro checks the clock. The size of a value counts what it refers to as often as it is referred to; lists and
dicts are made, and operators, filters and methods given values, only up to a size; `_GROWN` estimates what multiplies.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import partial, wraps
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.filters import do_format, do_indent
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from triforge.errors import InputError, WeightsError

_SOURCE: Final = 1 << 16  # characters of a template; the longest published ones have a third of it
_SECONDS: Final = 2.0  # of processor time; a conversation of a million tokens takes a tenth of it
_WRITTEN: Final = 1 << 26  # characters
_KEPT: Final = 1 << 24  # characters or items of one value, bits of a number
_LARGE: Final = 1 << 20  # bytes; values above it are counted together
_BUILT: Final = 1 << 28  # bytes of large values; a conversation of a million tokens has a tenth
_ITEM: Final = 8  # what a list counts, and each of its items, apart from their content
_INDENT: Final = 16
# No chat template needs these; each can write much from little.
_REMOVED: Final = (
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "sum", "truncate", "urlencode", "urlize",
    "wordcount", "wordwrap", "xmlattr",
)  # fmt: skip
_PADDING: Final = ("center", "expandtabs", "ljust", "rjust", "translate", "zfill")
# a width of a format, or one that comes with the values
_WIDE: Final = re.compile(r"[0-9]{4}|%[^%a-zA-Z]*\*|\{[^{}]*\{")

# The limits of the current rendering: the thread's processor time at its end, the characters left to write, and the bytes
# left for large values.
_left: ContextVar[list[float]] = ContextVar("left")


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}` blocks of newer templates, which only show their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute without ClassVar

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox. Constants are not computed while a template is compiled."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=_written,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )  # fmt: skip
        del self.globals["lipsum"]
        for name in _REMOVED:
            del self.filters[name]
        self.filters |= {"tojson": _tojson, "join": _join}
        self.filters |= {"indent": do_indent, "format": do_format}
        self.filters["~"] = lambda *values: _join(values)
        self.filters = {name: _bounded(name, work) for name, work in self.filters.items()}
        string, replace = self.filters["string"], _bounded("replace", str.replace)
        self.filters["replace"] = lambda value, old, new, count=-1: replace(
            string(value), old, new, count
        )
        # no template can write these names
        self.filters |= {"[:]": _built, "[]": _small, "step()": _step}
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Return a sum, product, power or formatted text of a bounded size."""
        name = "format" if operator == "%" and isinstance(left, str) else operator
        return _bounded(name, partial(super().call_binop, context, operator))(left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a text, or anything else, with a bounded result."""
        text, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(text, str):
            if name in _PADDING:
                _raise(f"given the method {name} of a text, expected another: it pads")
            if name == "join":
                return self.filters["join"](*args, text)
            called = _bounded(name, called, text)
        return _built(super().call(context, called, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's own `format` of a text."""
        work = super().wrap_str_format(value)
        return work and _bounded("format", work, value.__self__)

    def bounded(self, template: str) -> jinja2.Template:
        """Return the compiled template, with a step in each of its loops and macros."""
        tree = self.parse(template)
        repeated: Any = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(repeated):
            text = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
            step = _filtered("step()", jinja2.nodes.Const(text))
            node.body.insert(0, jinja2.nodes.ExprStmt(step))
            if isinstance(node, jinja2.nodes.For) and node.test is not None:
                node.test = jinja2.nodes.And(step, node.test)
        tree = _Bounds().visit(tree)
        tree.set_lineno(1).set_environment(self)
        return self.from_string(tree)


def _filtered(name: str, *values: Any) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(values[0], name, list(values[1:]), [], None, None)


class _Bounds(NodeTransformer):
    """Gives `a ~ b`, slices, and new lists and dicts to filters, which bound them."""

    def generic_visit(self, node: jinja2.nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Visit what a node holds, then the node."""
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, jinja2.nodes.Concat):
            return _filtered("~", *node.nodes)
        if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
            return _filtered("[:]", node)
        made = isinstance(node, (jinja2.nodes.List, jinja2.nodes.Tuple, jinja2.nodes.Dict))
        return _filtered("[]", node) if made and getattr(node, "ctx", "load") == "load" else node


def _size(value: Any) -> int:
    """Return the characters, items and bits of a value, or a number above the limit."""
    size, parts = 0, [value]
    while parts and size <= _KEPT:
        part = parts.pop()
        if isinstance(part, Namespace):
            part = part._Namespace__attrs
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, int):
            size += part.bit_length()
        elif isinstance(part, (list, tuple, dict)):
            size += _ITEM * (1 + len(part))
            if size > _KEPT:
                break
            parts += part
            parts += part.values() if isinstance(part, dict) else ()
    return size


def _demand_small(size: int) -> None:
    if size > _KEPT:
        _raise(f"a value has the size {size}, expected at most {_KEPT}")


def _small(value: Any) -> Any:
    """Return a value of a bounded size, or what yields values that have one together."""
    if isinstance(value, Iterator):
        return _metered(value)
    _demand_small(_size(value))
    return value


def _metered(items: Iterator[Any]) -> Iterator[Any]:
    size = 0
    for item in items:
        size += _ITEM + _size(item)
        _demand_small(size)
        yield item


def _step(characters: int) -> bool:
    """Count characters that are written, as of the template's own text in a turn of a loop or a macro."""
    left = _left.get()
    if time.thread_time() > left[0]:
        _raise(f"it takes more than {_SECONDS:g} s of processor time")
    left[1] -= characters
    if left[1] < 0:
        _raise(f"it writes more than {_WRITTEN} characters")
    return True


@jinja2.pass_context
def _written(_: jinja2.runtime.Context, value: Any) -> Any:
    size = _size(value)
    _demand_small(size)
    _step(size)
    return value


def compile_template(template: str) -> jinja2.Template:
    """Return the template, compiled in the sandbox."""
    if len(template) > _SOURCE:
        raise WeightsError(
            f"chat template: given {len(template)} characters, expected at most {_SOURCE}"
        )
    try:
        return _Environment().bounded(template)
    except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, MemoryError) as error:
        raise WeightsError(f"chat template: {error}") from error


def fill(template: jinja2.Template, **fields: Any) -> str:
    """Return the text of a template."""
    started = _left.set([time.thread_time() + _SECONDS, _WRITTEN, _BUILT])
    try:
        return template.render(**fields)
    except jinja2.TemplateError as error:
        raise InputError(f"the chat template refuses the messages: {error}") from error
    except (
        TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError
    ) as error:  # fmt: skip
        raise InputError(
            f"the chat template fails on the messages: {type(error).__name__}: {error}"
        ) from error
    finally:
        _left.reset(started)


def _bounded(name: str, work: Callable[..., Any], *own: Any) -> Callable[..., Any]:
    """Return a filter, an operator, or a method of its `own` text, that refuses values and results that are too large."""

    @wraps(work)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        given = [_small(value) for value in args]
        _small(kwargs)
        if name in _GROWN:
            _demand_small(_GROWN[name](*own, *given, **kwargs))
        return _built(work(*given, **kwargs))

    return bounded


def _built(value: Any) -> Any:
    """Return a value that an operation has made; raise if all large ones of the rendering are too large together."""
    size = sys.getsizeof(value) if isinstance(value, (str, list, tuple, dict)) else 0
    if size > _LARGE:
        left = _left.get()
        left[2] -= size
        if left[2] < 0:
            _raise(f"it builds more than {_BUILT} bytes of large values")
    return _small(value) if isinstance(value, dict) else value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes for HTML
    if indent is not None and indent > _INDENT:
        _raise(f"tojson: the indent is {indent}, expected at most {_INDENT}")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _join(items: Any, d: str = "") -> str:
    size, texts = 0, list[str]()
    for item in items:
        texts.append(str(item))
        size += len(texts[-1]) + len(d)
        _demand_small(size)
    return d.join(texts)


def _product(left: Any, right: Any) -> int:
    number, value = (left, right) if isinstance(left, int) else (right, left)
    if isinstance(value, int):
        return _size(left) + _size(right)
    return _size(value) * (number if isinstance(number, int) else 1)


def _formatted(text: str, *values: Any, **named: Any) -> int:
    if _WIDE.search(text):
        _raise(f"given the format {text[:40]!r}, which has a width of four digits or more")
    return (text.count("%") + text.count("{")) * _size((values, named))


# The size of what these operators, filters and methods write at most, from their values.
_GROWN: Final[Mapping[str, Callable[..., int]]] = {
    "*": _product,
    "**": lambda base, exponent: _size(base) * exponent,
    "format": _formatted,
    "indent": lambda text, width=4, *_, **__: (
        (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width)
    ),
    "replace": lambda text, old, new, *_: len(text) + text.count(old) * len(new),
}


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
