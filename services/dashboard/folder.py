"""The pages of a run as a folder of files that links lead through; what needs a service (`<!--live-->`) is left out."""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx

from services.dashboard.apis import Apis, Visit, run_path
from services.dashboard.app import create_app
from triforge.clients.transport import bearer, segment
from triforge.errors import InputError
from triforge.types import RunState

_HOST: Final = "http://dashboard"
_ANSWER_S: Final = 60.0
_COUNTED: Final = 50  # pages between two numbers of progress
_LINK: Final = re.compile(r'\b(href|src)="([^"]*)"')  # quotes inside of texts are escaped
_ANCHOR: Final = re.compile(r'<a\b[^>]*\bhref="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
_GROUP: Final = re.compile(r"/(?:groups/([^/?]+)|rollouts/([^/?]+)-[^-/?]+)(?:/tokens)?")
_LIVE: Final = re.compile(r"<!--live-->.*?<!--/live-->", re.DOTALL)
_POLICY: Final = (
    "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'self' file:; "
    "script-src 'self' file:; img-src 'self' file: data:\">"
)


async def pages_of(
    apis: Apis, key: str, run_id: str, most: int, tell: Callable[[int], object] = int
) -> dict[str, bytes]:
    """Return files by name: `index.html` is the page of the run; with it come others, nearest first.

    After `most` pages no further group is begun; of a group all rollouts come with their tokens. Their number so far is given to `tell`.

    Raises:
        TriforgeError: the run cannot be shown.
    """
    await Visit(apis, key).read(RunState, "trainer", run_path(run_id))
    first = f"/runs/{segment(run_id)}"
    replies = await _crawl(apis, key, first, most, tell)
    names = {address: _file_name(address, first) for address in replies}
    shown = sum(1 for address in names if re.fullmatch(f"{first}/rollouts/[^/?]+", address))
    note = f'<p class="about">A copy with {shown} rollouts; where others are named, no link leads to them.</p>'
    return {
        names[address]: _rewritten(reply.text, address, names, note).encode()
        if _is_page(reply)
        else reply.content
        for address, reply in replies.items()
    }


def demand_new(target: Path) -> None:
    """Raise InputError for a folder that exists."""
    if target.exists():
        raise InputError(f"--html: given {target}, which exists, expected a new folder")


def write(files: dict[str, bytes], target: Path) -> None:
    """Write a new folder."""
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


async def _crawl(
    apis: Apis, key: str, first: str, most: int, tell: Callable[[int], object]
) -> dict[str, httpx.Response]:
    """Fetch everything that links lead to, breadth first; refused addresses are left out."""
    replies: dict[str, httpx.Response] = {}
    waiting, seen, begun, pages = deque([first]), set[str](), set[str](), 0
    transport = httpx.ASGITransport(create_app(apis=apis))
    async with httpx.AsyncClient(
        transport=transport, base_url=_HOST, headers=bearer(key), timeout=_ANSWER_S
    ) as client:
        while waiting:
            address = waiting.popleft()
            group = _group(address, first)
            full = pages >= most and group not in begun and not address.startswith("/assets/")
            if full or address in seen:
                continue
            seen.add(address)
            reply = await client.get(address)
            if not reply.is_success:
                continue
            replies[address] = reply
            if not _is_page(reply):
                continue
            pages += 1
            if pages % _COUNTED == 0:
                tell(pages)
            begun |= {group} - {""}
            linked = _LINK.findall(_LIVE.sub("", reply.text))
            for target in (_address(value, address) for _, value in linked):
                if target not in seen and _is_wanted(target, first):
                    own = group and _group(target, first) == group
                    (waiting.appendleft if own else waiting.append)(target)
    return replies


def _group(address: str, first: str) -> str:
    """Return the group of a page that shows it, one of its rollouts or their tokens; empty for other pages."""
    found = _GROUP.fullmatch(address.removeprefix(first))
    return found[1] or found[2] if found else ""


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
    if parts.path == f"{first}/rollouts":
        return True
    folders = (f"{first}/", "/assets/", "/tasks/", "/proposals/")
    return not parts.query and f"{parts.path}/".startswith(folders)


def _file_name(address: str, first: str) -> str:
    if address == first:
        return "index.html"
    parts = urlsplit(address)
    folders = parts.path.strip("/").split("/")
    path = "/".join(re.sub(r"[^\w.=-]|^\.+$", "_", folder) for folder in folders)
    if parts.query:
        path += f"-{hashlib.sha256(parts.query.encode()).hexdigest()[:10]}"
    return path if PurePosixPath(path).suffix in (".css", ".js", ".csv") else f"{path}.html"


def _rewritten(page: str, address: str, names: dict[str, str], note: str) -> str:
    """Point the links of a page at files, and remove what needs a service or a page that is left out."""
    here = posixpath.dirname(names[address]) or "."

    def stays(value: str) -> bool:
        return value.startswith(("#", "data:")) or _address(value, address) in names

    def anchor(link: re.Match[str]) -> str:
        return link[0] if stays(link[1]) else "" if " rel=" in link[0] else link[2]

    def to_file(link: re.Match[str]) -> str:
        if link[2].startswith(("#", "data:")):
            return link[0]
        path = posixpath.relpath(names[_address(link[2], address)], here)
        fragment = urlsplit(html.unescape(link[2])).fragment
        return f'{link[1]}="{html.escape(f"{path}#{fragment}" if fragment else path)}"'

    page = _LINK.sub(to_file, _ANCHOR.sub(anchor, _LIVE.sub("", page)))
    page = page.replace("<main>", f"<main>\n{note if names[address] == 'index.html' else ''}", 1)
    return page.replace("<head>", f"<head>\n{_POLICY}", 1)
