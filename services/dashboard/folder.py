"""A run's pages as a folder of files: what the service shows, fetched as a browser does, with links from file to file.

Forms and the live view need a service and are left out; what a link leads to beyond the folder is plain text there.
"""

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

from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from triforge.clients.transport import bearer, segment
from triforge.errors import InputError, TriforgeError

_HOST: Final = "http://dashboard"
_ANSWER_S: Final = 60.0
# texts have no quotes of their own: they are escaped
_LINK: Final = re.compile(r'\b(href|src)="([^"]*)"')
_FORM: Final = re.compile(r"<form\b.*?</form>", re.DOTALL)
_ANCHOR: Final = re.compile(r"<a\b.*?</a>", re.DOTALL)
_LIVE: Final = re.compile(r'<script src="/assets/live\.js"[^>]*></script>|<p id="now"[^>]*>.*?</p>')
# not each order and colour
_VIEWS: Final = frozenset(("step", "task", "purpose", "outcome", "against", "cursor"))
_POLICY: Final = (
    "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'self' file:; "
    "script-src 'self' file:; img-src 'self' file: data:\">"
)


async def pages_of(apis: Apis, key: str, run_id: str, most: int) -> dict[str, bytes]:
    """By name the files of a folder: `index.html`, the run's page, and with it up to `most` pages, nearest first.

    Raises:
        TriforgeError: the run cannot be shown; the sentence is the page's own.
    """
    first = f"/runs/{segment(run_id)}"
    found = await _fetched(apis, key, first, most)
    names = {address: _name(address, first) for address in found}
    return {
        names[address]: _rewritten(body.decode(), address, names).encode()
        if kind == "text/html"
        else body
        for address, (kind, body) in found.items()
    }


def write(files: dict[str, bytes], target: Path) -> None:
    """Write a new folder; InputError if there is one."""
    if target.exists():
        raise InputError(f"--html: given {target}, which exists, expected a new folder")
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


async def _fetched(apis: Apis, key: str, first: str, pages: int) -> dict[str, tuple[str, bytes]]:
    """By address the type and the content of what can be reached, breadth first; what is refused is left out."""
    transport = httpx.ASGITransport(create_app(apis=apis))
    found: dict[str, tuple[str, bytes]] = {}
    waiting, seen, shown = deque([first]), {first}, 0
    async with httpx.AsyncClient(
        transport=transport, base_url=_HOST, headers=bearer(key), timeout=_ANSWER_S
    ) as client:
        while waiting:
            address = waiting.popleft()
            if shown == pages and not address.startswith("/assets/"):
                continue
            reply = await client.get(address)
            if not reply.is_success:
                if address == first:
                    said = re.sub(r"<[^>]+>|\s+", " ", _main(reply.text))
                    raise TriforgeError(html.unescape(" ".join(said.split())))
                continue
            kind = reply.headers["content-type"].partition(";")[0]
            found[address] = kind, reply.content
            if kind == "text/html":
                shown += 1
                new = [
                    a for a in _links(reply.text, address) if a not in seen and _wanted(a, first)
                ]
                waiting.extend(dict.fromkeys(new))
                seen.update(new)
    return found


def _main(page: str) -> str:
    return page.partition("<main>")[2].partition("</main>")[0]


def _links(page: str, address: str) -> list[str]:
    return [_address(value, address) for _, value in _LINK.findall(_LIVE.sub("", page))]


def _address(value: str, address: str) -> str:
    """Path and query of a link of a page; empty if it leads away."""
    parts = urlsplit(urljoin(_HOST + address, html.unescape(value)))
    if f"{parts.scheme}://{parts.netloc}" != _HOST:
        return ""
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _wanted(address: str, first: str) -> bool:
    parts = urlsplit(address)
    if parts.path.startswith("/assets/"):
        return True
    of_run = parts.path == first or parts.path.startswith(f"{first}/")
    views = {name for name, _ in parse_qsl(parts.query)} <= _VIEWS
    return (of_run and views) or (
        parts.path.startswith(("/tasks/", "/proposals/")) and not parts.query
    )


def _name(address: str, first: str) -> str:
    """Its file in the folder."""
    parts = urlsplit(address)
    if address == first:
        return "index.html"
    path = "/".join(
        re.sub(r"[^\w.=-]|^\.+$", "_", part) for part in parts.path.strip("/").split("/")
    )
    if parts.query:
        path += f"-{hashlib.sha256(parts.query.encode()).hexdigest()[:10]}"
    return path if PurePosixPath(path).suffix in (".css", ".js", ".csv") else f"{path}.html"


def _rewritten(page: str, address: str, names: dict[str, str]) -> str:
    """The page with links to files, without what needs a service."""
    here = posixpath.dirname(names[address]) or "."

    def to_file(link: re.Match[str]) -> str:
        value = html.unescape(link[2])
        if value.startswith(("#", "data:")):
            return link[0]
        name = names.get(_address(link[2], address))
        if name is None:
            return ""
        mark = f"#{fragment}" if (fragment := urlsplit(value).fragment) else ""
        return f'{link[1]}="{html.escape(posixpath.relpath(name, here) + mark)}"'

    page = _FORM.sub(lambda form: f"<p>{' '.join(_ANCHOR.findall(form[0]))}</p>", page)
    page = _LINK.sub(to_file, _LIVE.sub("", page))
    return page.replace("<head>", f"<head>\n{_POLICY}", 1)
