"""Chat templates, run in jinja's sandbox with the functions of transformers, and with bounded time and memory.

A template comes with a model and is not trusted. Jinja's sandbox keeps it from the interpreter. Here each turn of a loop and
each call of a macro checks the clock; output, variables and products have a bounded size.
"""

from __future__ import annotations

import datetime
import json
import time
from contextvars import ContextVar
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

from triforge.errors import InputError, WeightsError

# characters of a template; the longest published ones have a third of it
_SOURCE: Final = 1 << 16
_SECONDS: Final = 2.0  # of processor time; a conversation of a million tokens takes a tenth of it
_WRITTEN: Final = 1 << 26  # characters
_KEPT: Final = 1 << 24  # characters or items of one value, bits of a number
_EXPONENT: Final = 64

# The limits of the current rendering: the thread's processor time at its end, and the characters left.
_left: ContextVar[list[float]] = ContextVar("left")


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}` blocks of newer templates, which only show their content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares the attribute without ClassVar

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox. Constants are not computed while a template is compiled."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, finalize=self.written,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )  # fmt: skip
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _strftime_now

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Return a product or a power of a bounded size."""
        if operator == "**" and abs(right) > _EXPONENT:
            _raise(f"an exponent is {right}, expected at most {_EXPONENT}")
        sizes = _size(left), _size(right)
        numbers = isinstance(left, int), isinstance(right, int)
        times = right if numbers[1] else left if numbers[0] else 1
        size = sum(sizes) if all(numbers) else sizes[numbers[0]] * times
        _demand_small(size * _EXPONENT if operator == "**" else size)
        return super().call_binop(context, operator, left, right)

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
        if isinstance(value, str):
            self._count(len(value))
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
        tree.set_lineno(1).set_environment(self)
        return self.from_string(tree)


def _call(method: str, argument: Any) -> jinja2.nodes.Call:
    called = jinja2.nodes.EnvironmentAttribute(method)
    return jinja2.nodes.Call(called, [argument], [], None, None)


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, (str, list, tuple)) else 0


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
    started = _left.set([time.thread_time() + _SECONDS, _WRITTEN])
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


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes for HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)
