"""Chat templates, run in jinja's sandbox with the functions of transformers, and with bounded time and memory.

A template comes with a model and is not trusted. Jinja's sandbox keeps it from the interpreter. Here each turn of a loop and
each call of a macro checks the clock. The size of a value counts what it refers to as often as it is referred to; operators,
filters and methods are refused values that are too large, and those that multiply are refused too large results.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from triforge.errors import InputError, WeightsError

# characters of a template; the longest published ones have a third of it
_SOURCE: Final = 1 << 16
_SECONDS: Final = 2.0  # of processor time; a conversation of a million tokens takes a tenth of it
_WRITTEN: Final = 1 << 26  # characters
_KEPT: Final = 1 << 24  # characters or items of one value, bits of a number
_LARGE: Final = 1 << 20  # bytes; values above it are counted together
_BUILT: Final = (
    1 << 28
)  # bytes of all large values; a conversation of a million tokens has a tenth of it
_EXPONENT: Final = 64
_ITEM: Final = 8  # what a list counts, and each of its items, apart from their content
_INDENT: Final = 16
# No chat template needs these; each can write much from little.
_REMOVED: Final = (
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "sum", "truncate", "urlencode", "urlize",
    "wordcount", "wordwrap", "xmlattr",
)  # fmt: skip
_PADDING: Final = ("center", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill")
_WIDE: Final = re.compile(
    r"[0-9]{4}|%[^%a-zA-Z]*\*|\{[^{}]*\{"
)  # a width, or one that comes with the values

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
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.written,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )  # fmt: skip
        del self.globals["lipsum"]
        for name in _REMOVED:
            del self.filters[name]
        self.filters |= {
            "tojson": _tojson,
            "join": _join,
            "replace": _replace,
            "indent": _indent,
            "format": _format,
        }
        self.filters = {name: _counted(work) for name, work in self.filters.items()}
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Return a sum, product, power or formatted text of a bounded size."""
        if operator == "%" and isinstance(left, str):
            return _format(left, right)
        if operator == "**" and abs(right) > _EXPONENT:
            _raise(f"an exponent is {right}, expected at most {_EXPONENT}")
        sizes = _size(left), _size(right)
        numbers = isinstance(left, int), isinstance(right, int)
        times = right if numbers[1] else left if numbers[0] else 1
        size = sum(sizes) if operator == "+" or all(numbers) else sizes[numbers[0]] * times
        _demand_small(size * _EXPONENT if operator == "**" else size)
        return _built(super().call_binop(context, operator, left, right))

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a text, or anything else, with a bounded result."""
        text, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(text, str):
            if name in _PADDING:
                _raise(f"given the method {name} of a text, expected another: it pads")
            if name == "join" and len(args) == 1:
                return _join(args[0], text)
            if name == "replace":
                return _replace(text, *args)
        return _built(super().call(context, called, *args, **kwargs))

    @staticmethod
    def sliced(value: Any) -> Any:
        """Return a slice, which is counted."""
        return _built(value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's own `format` of a text."""
        work = super().wrap_str_format(value)
        if work is not None:
            _demand_narrow(value.__self__)
        return work

    def concatenated(self, *values: Any) -> str:
        """Return the text of `a ~ b`."""
        return str(_built(_join(values)))

    def step(self, text: int) -> bool:
        """Count a turn of a loop or a call of a macro, with so many characters of the template's own text."""
        left = _left.get()
        if time.thread_time() > left[0]:
            _raise(f"it takes more than {_SECONDS:g} s of processor time")
        self._count(text)
        return True

    @jinja2.pass_context
    def written(self, _: jinja2.runtime.Context, value: Any) -> Any:
        """Count the value of an expression, which is written."""
        self._count(_size(value) if isinstance(value, (str, list, tuple, dict)) else 0)
        return value

    def kept(self, value: Any) -> Any:
        """Return the value of a variable, of bounded size."""
        _demand_small(_size(value))
        return value

    @staticmethod
    def _count(characters: int) -> None:
        left = _left.get()
        left[1] -= characters
        if left[1] < 0:
            _raise(f"it writes more than {_WRITTEN} characters")

    def bounded(self, template: str) -> jinja2.Template:
        """Return the compiled template, with a step in each of its loops and macros."""
        tree = self.parse(template)
        repeated: Any = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(repeated):
            text = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
            step = _call("step", jinja2.nodes.Const(text))
            node.body.insert(0, jinja2.nodes.ExprStmt(step))
            if isinstance(node, jinja2.nodes.For) and node.test is not None:
                node.test = jinja2.nodes.And(step, node.test)
        for assignment in tree.find_all(jinja2.nodes.Assign):
            assignment.node = _call("kept", assignment.node)
        tree = _Calls().visit(tree)
        tree.set_lineno(1).set_environment(self)
        return self.from_string(tree)


def _call(method: str, argument: Any) -> jinja2.nodes.Call:
    called = jinja2.nodes.EnvironmentAttribute(method)
    return jinja2.nodes.Call(called, [argument], [], None, None)


class _Calls(NodeTransformer):
    """Makes `a ~ b` a call and gives each slice to one, so that they can be bounded."""

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Call:  # noqa: N802 - jinja2's name
        called = jinja2.nodes.EnvironmentAttribute("concatenated")
        values = [self.visit(value) for value in node.nodes]
        return jinja2.nodes.Call(called, values, [], None, None)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Expr:  # noqa: N802 - jinja2's name
        visited = self.generic_visit(node)
        assert isinstance(visited, jinja2.nodes.Getitem)
        return _call("sliced", visited) if isinstance(node.arg, jinja2.nodes.Slice) else visited


def _size(value: Any) -> int:
    """Return the characters, items and bits of a value, or a number above the limit."""
    size, parts = 0, [value]
    while parts and size <= _KEPT:
        part = parts.pop()
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


def _counted(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses values that are too large."""

    @wraps(work)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            _demand_small(_size(value))
        return _built(work(*args, **kwargs))

    return bounded


def _built(value: Any) -> Any:
    """Return a value that an operation has made; raise if all large ones of the rendering are too large together."""
    size = sys.getsizeof(value) if isinstance(value, (str, list, tuple, dict)) else 0
    if size > _LARGE:
        left = _left.get()
        left[2] -= size
        if left[2] < 0:
            _raise(f"it builds more than {_BUILT} bytes of large values")
    return value


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


def _join(value: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        _raise("join: given an attribute, expected map(attribute=...) before it")
    size, items = 0, []
    for item in value:
        size += _size(item) + len(d)
        _demand_small(size)
        items.append(str(item))
    return d.join(items)


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    times = text.count(old) if count is None else min(text.count(old), count)
    _demand_small(len(text) + times * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    before = width if isinstance(width, str) else " " * min(width, _INDENT)
    lines = str(text).split("\n")
    _demand_small(len(text) + len(lines) * len(before))
    shown = [
        before + line if (line or blank) and (number or first) else line
        for number, line in enumerate(lines)
    ]
    return "\n".join(shown)


def _format(text: str, *values: Any) -> str:
    _demand_narrow(text)
    only = values[0] if len(values) == 1 and isinstance(values[0], (tuple, dict)) else values
    _demand_small(len(text) + text.count("%") * _size(only))
    return text % only


def _demand_narrow(text: str) -> None:
    if _WIDE.search(text):
        _raise(
            f"given the format {text[:40]!r}, expected one without a width of four digits or more"
        )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)
