"""Pages of commands and routes from the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import typer.main
from fastapi import FastAPI

from services.env_adapter.app import RULES as ENV_ADAPTER
from services.env_adapter.app import Parts
from services.env_adapter.app import add_routes as add_env_adapter
from services.policy.api.routes import RULES as POLICY
from services.policy.api.routes import routes as policy_routes
from services.reward.app import RULES as REWARD
from services.reward.app import add_routes as add_reward
from services.trainer.runs.routes import RULES as TRAINER
from services.trainer.runs.routes import router as trainer_router
from triforge.access.callers import Rule
from triforge.cli.main import command_line

_COMMON: Final = 10  # an option that more commands take is described once


# ---- routes ----


def apis() -> dict[int, tuple[FastAPI, Mapping[str, Rule]]]:
    """Each API's description and what its routes ask for, by default port; nothing stands behind them."""
    nothing = cast(Any, None)
    found = {
        8001: (FastAPI(), POLICY),
        8002: (FastAPI(), REWARD),
        8003: (FastAPI(), ENV_ADAPTER),
        8004: (FastAPI(), TRAINER),
    }
    found[8001][0].include_router(policy_routes(nothing, role="policy"))
    add_reward(found[8002][0], api=nothing)
    parts = Parts(database=nothing, family=nothing, log=nothing)
    add_env_adapter(found[8003][0], parts=parts)
    found[8004][0].include_router(trainer_router)
    return found


def rest_page() -> str:
    """Return the page of all routes."""
    head = ["| port | route | scope | what it does | query |", "|---|---|---|---|---|"]
    return "\n".join(["# HTTP routes", "", *head, *(row(*cells) for cells in _routes())])


def _routes() -> Iterator[tuple[str, ...]]:
    for port, (app, rules) in apis().items():
        for path, methods in app.openapi()["paths"].items():
            for method, route in methods.items():
                name = f"{method.upper()} {path}"
                query = [p["name"] for p in route.get("parameters", ()) if p["in"] == "query"]
                asked = ", ".join(f"`{name}`" for name in query)
                scope = f"`{rules[name].requires}`"
                yield str(port), f"`{name}`", scope, route["description"], asked


# ---- commands ----


def cli_page() -> str:
    """Return the page of all commands."""
    commands = dict(_commands(typer.main.get_command(command_line()), "triforge"))
    options = [_option(p) for command in commands.values() for p in command.params]
    common = [text for text, times in Counter(options).items() if times > _COMMON]
    lines = ["Options of most commands:", "", *(f"- {text}" for text in common if text)]
    for name, command in commands.items():
        group = " ".join(name.split()[:2]) if name.count(" ") > 1 else "triforge"
        if f"### {group}" not in lines:
            head = ["| command | what it does | options |", "|---|---|---|"]
            lines += ["", f"### {group}", "", *head]
        own = [text for p in command.params if (text := _option(p)) and text not in common]
        lines.append(row(f"`{_usage(name, command)}`", command.help, "; ".join(own)))
    return "\n".join(["# Commands", "", *lines])


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = sorted(group.commands.items(), key=lambda item: hasattr(item[1], "commands"))
    for word, command in inner:
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def _usage(name: str, command: Any) -> str:
    found = [p for p in command.params if p.param_type_name == "argument"]
    words = [(p.metavar or p.name).upper() for p in found]
    shown = [w if p.required else f"[{w}]" for w, p in zip(words, found, strict=True)]
    return " ".join([name, *shown])


def _option(parameter: Any) -> str:
    if parameter.param_type_name == "argument" or parameter.hidden:
        return ""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    given = "" if default in (None, "", False, ()) else f" (`{default}`)"
    needed = " (required)" if parameter.required else given
    help_text = (parameter.help or "").strip()
    return f"{names}{needed}: {help_text if help_text.endswith('...') else help_text.removesuffix('.')}"


def row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(c.split()).replace("|", r"\|") for c in cells) + " |"
