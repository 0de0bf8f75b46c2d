"""The browsers of this process: started when needed, used by one episode after the other, at most so many at once."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Final

from environments.miniwob.webdriver import Browser
from triforge.errors import EnvError

TIRED_AFTER: Final = 200  # episodes; a fresh browser is cheaper than one that has grown
WAIT_S: Final = 600.0


class Browsers:
    """A set of browsers that is shared by all episodes of a process."""

    def __init__(self, start: Callable[[], Browser] = Browser) -> None:
        self._start = start
        self._changed = threading.Condition()
        self._idle: list[Browser] = []
        self._count = 0

    def borrow(self, limit: int, given_up: Callable[[], bool]) -> Browser:
        """A browser of one's own; waits while `limit` are in use."""
        with self._changed:
            self._changed.wait_for(lambda: given_up() or self._idle or self._count < limit, WAIT_S)
            if given_up():
                raise EnvError("miniwob: the episode was closed while it waited for a browser")
            if self._idle:
                return self._idle.pop()
            if self._count >= limit:
                raise EnvError(
                    f"miniwob: no browser became free within {WAIT_S:g} s; the option `browsers` is {limit}"
                )
            self._count += 1
        try:
            return self._start()
        except BaseException:
            self._forget()
            raise

    def give_back(self, browser: Browser, *, sound: bool) -> None:
        """Take a browser back; one that is not sound, or tired, is ended."""
        if sound and browser.episodes < TIRED_AFTER:
            with self._changed:
                self._idle.append(browser)
                self._changed.notify_all()
        else:
            browser.stop()
            self._forget()

    def wake(self) -> None:
        """Let those who wait look again whether they have given up."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the browsers that nobody uses."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for browser in idle:
            browser.stop()

    def _forget(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()


class Seat:
    """The right of one episode to one browser, from the first `browser()` to `leave()`, in whatever thread.

    An episode may be given up while a thread still works for it: then its browser is not sound and is ended.
    """

    def __init__(self, browsers: Browsers, limit: int) -> None:
        self._browsers = browsers
        self._limit = limit
        self._lock = threading.Lock()
        self._left = False
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """The episode's browser."""
        with self._lock:
            if self._browser is not None:
                return self._browser
        browser = self._browsers.borrow(self._limit, lambda: self._left)
        with self._lock:
            if not self._left:
                browser.episodes += 1
                self._browser = browser
                return browser
        self._browsers.give_back(browser, sound=True)
        raise EnvError("miniwob: the episode was closed while its browser started")

    def leave(self, *, sound: bool) -> None:
        """Give the browser back. Idempotent."""
        with self._lock:
            self._left = True
            browser, self._browser = self._browser, None
        self._browsers.wake()
        if browser is not None:
            self._browsers.give_back(browser, sound=sound)


SHARED: Final = Browsers()
atexit.register(SHARED.close)
