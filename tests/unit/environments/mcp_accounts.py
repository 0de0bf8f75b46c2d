"""A small MCP server over its standard input and output: accounts, and a tool that waits for others in flight."""

import json
import os
import sys
from typing import Any

ACCOUNT = {"type": "object", "properties": {"account": {"type": "string"}, "amount": {"type": "integer"}}, "required": ["account", "amount"]}  # fmt: skip
TOOLS = {
    "open_account": "Open an account.",
    "pay": "Pay out of an account.",
    "state": "What is in an account, and how many there are.",
    "together": "Answer when so many calls are in flight, with the id of this process.",
    "leave": "End this process.",
}
accounts: dict[str, int] = {}
waiting: list[Any] = []


def write(number: Any, **what: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, **what}) + "\n")
    sys.stdout.flush()


def answer(number: Any, result: Any) -> None:
    write(number, result=result)


def report(number: Any, value: Any, *, failed: bool = False) -> None:
    content = [{"type": "text", "text": json.dumps(value) if not isinstance(value, str) else value}]
    found = {"content": content, "isError": failed}
    answer(number, found if isinstance(value, str) else {**found, "structuredContent": {"result": value}})  # fmt: skip


def call(number: Any, tool: str, account: str = "", amount: int = 0, count: int = 0) -> None:
    if tool == "open_account":
        accounts[account] = amount
        report(number, amount)
    elif tool == "pay" and amount > accounts[account]:
        report(number, "not covered", failed=True)
    elif tool == "pay":
        accounts[account] -= amount
        report(number, accounts[account])
    elif tool == "state":
        report(number, {"amount": accounts[account], "accounts": len(accounts)})
    elif tool == "leave":
        os._exit(3)
    else:
        waiting.append(number)
        for one in waiting if len(waiting) == count else ():
            report(one, os.getpid())


for line in sys.stdin:
    asked = json.loads(line)
    number, method, params = asked.get("id"), asked.get("method"), asked.get("params") or {}
    if method == "initialize":
        answer(number, {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "accounts", "version": "1"}})  # fmt: skip
    elif method == "tools/list":  # a page each
        names = list(TOOLS)
        at = int(params.get("cursor") or 0)
        page: dict[str, Any] = {"tools": [{"name": names[at], "description": TOOLS[names[at]], "inputSchema": ACCOUNT}]}  # fmt: skip
        answer(number, page | ({"nextCursor": str(at + 1)} if at + 1 < len(names) else {}))
    elif method == "tools/call":
        call(number, params["name"], **(params.get("arguments") or {}))
    elif number is not None:
        write(number, error={"code": -32601, "message": "no such method"})
