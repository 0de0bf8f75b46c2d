"""The desktop of one episode as a `Computer`: its files are the listing, its home folder is verified from outside."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from environments.desktop import home as homes
from environments.desktop import tasks
from environments.desktop.furniture import AGENTS
from environments.desktop.options import DesktopTask, PlayOptions
from environments.desktop.session import Desktop
from environments.gui.actions import Action


class DesktopComputer:
    """A desktop that has just started with a task's files.

    Args:
        task: what is laid out.
        options: size of the screen, and how long its shell is waited for.
    """

    def __init__(self, task: DesktopTask, options: PlayOptions) -> None:
        self._options = options
        self._desktop = Desktop(
            options.width, options.height, lambda home: tasks.lay_out(task, home)
        )
        self._get = tasks.getter(self._desktop.home, self._desktop.windows)

    def act(self, action: Action) -> None:
        """Perform an action and let the shell answer."""
        self._desktop.act(action, settle_s=self._options.settle_s)

    def screenshot(self) -> bytes:
        """The screen as a PNG file."""
        return self._desktop.screenshot()

    def listing(self) -> str:
        """The names of files and folders."""
        return "files:\n" + (homes.tree(self._desktop.home) or "(none)")

    def overrun(self) -> str:
        """Whether the agent's files have outgrown the disk."""
        limit = self._options.disk_limit
        used = sum(homes.size(self._desktop.folder / name, limit) for name in AGENTS)
        return "Failed: the disk is full." if used >= limit else ""

    def get(self, spec: Mapping[str, JsonValue]) -> JsonValue:
        """What an evaluator asks for."""
        return self._get(spec)

    def settle(self) -> None:
        """Nothing: tasks of the desktop end as the agent left them."""

    def stop(self) -> None:
        """End every process and remove the folder."""
        self._desktop.stop()
