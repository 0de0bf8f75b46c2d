"""The pages of a run as a folder of files that links lead through; forms and the live view need a service and are left out."""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from collections import deque
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx

from services.dashboard.apis import Apis, Visit, run_path
from services.dashboard.app import create_app
from triforge.clients.transport import bearer, segment
from triforge.errors import InputError
from triforge.types import RunState

_HOST: Final = "http://dashboard"
_ANSWER_S: Final = 60.0
_LINK: Final = re.compile(r'\b(href|src)="([^"]*)"')  # quotes inside of texts are escaped
_FORM: Final = re.compile(r"<form\b.*?</form>", re.DOTALL)
_ANCHOR: Final = re.compile(r"<a\b.*?</a>", re.DOTALL)
_LIVE: Final = re.compile(r'<script src="/assets/live\.js"[^>]*></script>|<p id="now"[^>]*>.*?</p>')
# the filters of tables; pages in other orders and colours are left out
_VIEWS: Final = frozenset(("step", "task", "purpose", "outcome", "against", "cursor"))
_POLICY: Final = (
    "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'self' file:; "
    "script-src 'self' file:; img-src 'self' file: data:\">"
)


async def pages_of(apis: Apis, key: str, run_id: str, most: int) -> dict[str, bytes]:
    """Return files by name: `index.html` is the page of the run; with it come up to `most` pages, nearest first.

    Raises:
        TriforgeError: the run cannot be shown.
    """
    await Visit(apis, key).read(RunState, "trainer", run_path(run_id))
    first = f"/runs/{segment(run_id)}"
    replies = await _crawl(apis, key, first, most)
    names = {address: _file_name(address, first) for address in replies}
    return {
        names[address]: _rewritten(reply.text, address, names).encode()
        if _is_page(reply)
        else reply.content
        for address, reply in replies.items()
    }


def write(files: dict[str, bytes], target: Path) -> None:
    """Write a new folder; InputError if it exists."""
    if target.exists():
        raise InputError(f"--html: given {target}, which exists, expected a new folder")
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


async def _crawl(apis: Apis, key: str, first: str, most: int) -> dict[str, httpx.Response]:
    """Fetch everything that links lead to, breadth first; refused addresses are left out."""
    replies: dict[str, httpx.Response] = {}
    waiting, seen, pages = deque([first]), {first}, 0
    transport = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(
        transport=transport, base_url=_HOST, headers=bearer(key), timeout=_ANSWER_S
    ) as client:
        while waiting:
            address = waiting.popleft()
            if pages == most and not address.startswith("/assets/"):
                continue
            reply = await client.get(address)
            if not reply.is_success:
                continue
            replies[address] = reply
            if _is_page(reply):
                pages += 1
                linked = _LINK.findall(_LIVE.sub("", reply.text))
                for target in (_address(value, address) for _, value in linked):
                    if target not in seen and _is_wanted(target, first):
                        seen.add(target)
                        waiting.append(target)
    return replies


def _is_page(reply: httpx.Response) -> bool:
    return reply.headers["content-type"].startswith("text/html")


def _address(value: str, address: str) -> str:
    """Return path and query of a link on a page; empty if it leads to another host."""
    parts = urlsplit(urljoin(_HOST + address, html.unescape(value)))
    if f"{parts.scheme}://{parts.netloc}" != _HOST:
        return ""
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _is_wanted(address: str, first: str) -> bool:
    """Whether an address is a file of all pages, a view of the run, or a task or rewrite of it."""
    parts = urlsplit(address)
    if parts.path == first or parts.path.startswith(f"{first}/"):
        return {name for name, _ in parse_qsl(parts.query)} <= _VIEWS
    return parts.path.startswith(("/assets/", "/tasks/", "/proposals/")) and not parts.query


def _file_name(address: str, first: str) -> str:
    if address == first:
        return "index.html"
    parts = urlsplit(address)
    folders = parts.path.strip("/").split("/")
    path = "/".join(re.sub(r"[^\w.=-]|^\.+$", "_", folder) for folder in folders)
    if parts.query:
        path += f"-{hashlib.sha256(parts.query.encode()).hexdigest()[:10]}"
    return path if PurePosixPath(path).suffix in (".css", ".js", ".csv") else f"{path}.html"


def _rewritten(page: str, address: str, names: dict[str, str]) -> str:
    """Point the links of a page at files, and remove what needs a service."""
    here = posixpath.dirname(names[address]) or "."

    def to_file(link: re.Match[str]) -> str:
        value = html.unescape(link[2])
        if value.startswith(("#", "data:")):
            return link[0]
        name = names.get(_address(link[2], address))
        if name is None:
            return ""
        fragment = urlsplit(value).fragment
        target = posixpath.relpath(name, here) + (f"#{fragment}" if fragment else "")
        return f'{link[1]}="{html.escape(target)}"'

    page = _FORM.sub(lambda form: f"<p>{' '.join(_ANCHOR.findall(form[0]))}</p>", page)
    page = _LINK.sub(to_file, _LIVE.sub("", page))
    return page.replace("<head>", f"<head>\n{_POLICY}", 1)
