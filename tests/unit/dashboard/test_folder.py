"""A run's pages as a folder: every page that it links to is there, every link leads to a file, nothing needs a service."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from services.dashboard.__main__ import _tell
from services.dashboard.apis import Apis
from services.dashboard.folder import demand_new, pages_of, write
from tests.unit.dashboard.recorded_run import EVIL, RecordedRun
from triforge.errors import InputError, TriforgeError


@pytest.fixture
async def apis(trainer: httpx.ASGITransport) -> AsyncIterator[Apis]:
    found = Apis({"trainer": "http://trainer", "env_adapter": "http://trainer"}, transport=trainer)
    yield found
    await found.close()


async def test_links_lead_to_files(apis: Apis, recorded: RecordedRun, tmp_path: Path) -> None:
    target = tmp_path / "sent"
    counted: list[int] = []
    write(await pages_of(apis, "", recorded.run_id, 1000, counted.append), target)
    pages = sorted(target.rglob("*.html"))
    assert counted == [50]
    linked = {target / "index.html"}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<form" not in text
        assert "live.js" not in text
        assert "data-events" not in text
        assert "default-src 'none'" in text
        for value in re.findall(r'(?:href|src)="([^"]*)"', text):
            parts = urlsplit(html.unescape(value))
            if parts.scheme == "data" or not parts.path:
                continue
            file = (page.parent / parts.path).resolve()
            assert file.is_file(), (page, value)
            linked.add(file)
    assert set(pages) <= linked
    rollout = f"runs/{recorded.run_id}/rollouts/{recorded.group(2)}-02"
    shown = (target / f"{rollout}.html").read_text(encoding="utf-8")
    assert html.escape(EVIL, quote=False).partition("=")[0] in shown
    assert EVIL not in shown
    assert (target / rollout / "tokens.html").is_file()
    with pytest.raises(InputError, match="--html"):
        demand_new(target)
    with pytest.raises(TriforgeError, match="does not exist"):
        await pages_of(apis, "", "run-nowhere", 10)


async def test_the_pages_nearest_to_the_run_come_first(apis: Apis, recorded: RecordedRun) -> None:
    files = await pages_of(apis, "", recorded.run_id, 3)
    pages = [name for name in files if name.endswith(".html")]
    assert pages[0] == "index.html"
    assert len(pages) == 3
    assert "assets/style.css" in files


async def test_a_group_that_is_begun_is_whole_and_no_link_leads_nowhere(
    apis: Apis, recorded: RecordedRun
) -> None:
    everything = await pages_of(apis, "", recorded.run_id, 1000)
    begun: set[str] = set()
    most = 0
    while not begun:  # pages of the run come first
        most += 1
        files = await pages_of(apis, "", recorded.run_id, most)
        begun = {name[:-5].rpartition("/")[2] for name in files if "/groups/" in name}
    whole = {name for name in everything if any(f"/rollouts/{group}" in name for group in begun)}
    assert len(begun) == 1
    assert whole == {name for name in files if "/rollouts/" in name}
    for name in (name for name in files if name.endswith(".html")):
        anchors = re.findall(r"<a\b[^>]*>", files[name].decode())
        assert all("href=" in anchor for anchor in anchors), name
    assert "A copy with 4 rollouts" in files["index.html"].decode()


def test_progress_in_a_file_has_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(50)
    _tell(100)
    assert capsys.readouterr().out == "50 pages\n100 pages\n"
