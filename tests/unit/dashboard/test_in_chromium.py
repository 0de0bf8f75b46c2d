"""The pages of rollouts in a real browser: nothing is refused by the policy, nothing scrolls sideways, the form filters."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import select

from services.dashboard.apis import Apis
from services.dashboard.app import create_app
from services.dashboard.folder import pages_of, write
from tests.unit.dashboard.recorded_run import RecordedRun
from tests.unit.dashboard.test_pages import SERVICES, Deployment, golden
from triforge.store.tables import LabelRow
from triforge.supervisor.ports import free_port

webdriver = pytest.importorskip("selenium.webdriver")
wait = pytest.importorskip("selenium.webdriver.support.wait")

CHANGING = (
    webdriver.remote.errorhandler.WebDriverException
)  # asked while one page gives way to the next


@contextlib.contextmanager
def to_the_next_page(browser: Any) -> Iterator[None]:
    """Wait for the page that the body goes to."""

    def arrived(browser: Any) -> bool:
        ready = "return !window.left && document.readyState === 'complete'"
        return bool(browser.execute_script(ready))

    browser.execute_script("window.left = true")
    yield
    wait.WebDriverWait(browser, 30, ignored_exceptions=[CHANGING]).until(arrived)


pytestmark = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="apt-get install chromium chromium-driver",
)
_FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-sandbox",
    "--no-first-run",
)


class Both(httpx.AsyncBaseTransport):
    """The trainer's own routes, and canned answers of all others."""

    def __init__(self, trainer: httpx.ASGITransport, canned: Deployment) -> None:
        self._trainer, self._canned = trainer, canned

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        one = self._trainer if request.url.host == "trainer" else self._canned
        return await one.handle_async_request(request)


@pytest.fixture(scope="module")
def canned() -> Deployment:
    return Deployment()


@pytest.fixture(scope="module")
def address(
    trainer: httpx.ASGITransport, recorded: RecordedRun, canned: Deployment
) -> Iterator[str]:
    """The run's address on a dashboard that serves."""
    apis = Apis({name: f"http://{name}" for name in SERVICES}, transport=Both(trainer, canned))
    port = free_port()
    config = uvicorn.Config(create_app(apis=apis), port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/runs/{recorded.run_id}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    found = webdriver.Chrome(options=options, service=service)
    yield found
    found.quit()


@pytest.fixture(scope="module", params=itertools.product((1280, 390), ("light", "dark")), ids=str)
def seen(browser: Any, request: pytest.FixtureRequest) -> tuple[int, str]:
    """The width and the scheme of what is looked at."""
    width, scheme = request.param
    shape = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    return width, scheme


@pytest.fixture(scope="module")
def pages(address: str, recorded: RecordedRun) -> list[str]:
    """The address of a page of each sort."""
    group, other = recorded.group(2), recorded.store.create(name="other", pool_id="p", config={})
    found = (
        "?smooth=0.6",
        "rollouts",
        f"rollouts/{group}-02",
        f"rollouts/{group}-02/tokens?form=table",
        f"groups/{group}",
        "labels",
        "../../tasks/task-1",
        "../../proposals/p-1",
        f"../../compare?run={recorded.run_id}&run={other.id}",
        "../../pools/pool-1",
        "../../",
    )
    return [f"{address}{'' if page[0] == '?' else '/'}{page}" for page in found]


def test_pages_fit(browser: Any, seen: tuple[int, str], pages: list[str]) -> None:
    width, scheme = seen
    for page in pages:
        browser.get(page)
        browser.execute_script(
            "document.querySelectorAll('details').forEach((d) => { d.open = true })"
        )
        scrolled = browser.execute_script("return document.documentElement.scrollWidth")
        assert scrolled <= width, page
        assert browser.get_log("browser") == [], page
        assert browser.find_elements("css selector", "header nav a[href='/']"), page
        assert len(browser.find_elements("css selector", "h1")) == 1, page
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


async def test_pages_of_a_folder_open_without_a_service(
    browser: Any, trainer: httpx.ASGITransport, recorded: RecordedRun, tmp_path: Path
) -> None:
    apis = Apis({"trainer": "http://trainer", "env_adapter": "http://trainer"}, transport=trainer)
    write(await pages_of(apis, "", recorded.run_id, 20), tmp_path / "sent")
    browser.get(f"file://{tmp_path}/sent/index.html")
    for _ in range(2):  # the run, and a rollout of the table behind it
        paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert paper in ("rgb(255, 255, 255)", "rgb(22, 22, 26)")
        with to_the_next_page(browser):
            browser.find_element("css selector", "main a[href*=rollouts]").click()
    assert browser.get_log("browser") == []


def test_the_pointer_and_the_keys_say_the_values_of_a_curve(browser: Any, address: str) -> None:
    browser.get(address)
    curve = browser.find_element("css selector", "figure.curve")
    value = curve.find_element("css selector", ".legend b")
    curve.send_keys("\ue012")  # arrow left: the newest
    status = curve.find_element("css selector", "[role=status]")
    assert status.get_attribute("textContent") == "step 2: training tasks 0.5"
    curve.send_keys("\ue012")
    assert status.get_attribute("textContent") == "step 1: training tasks 0.5"
    browser.find_element("name", "smooth").click()  # the focus leaves
    assert (value.text, curve.find_element("css selector", ".now").text) == ("0.5", "")
    taken = """
        const done = arguments[0];
        HTMLAnchorElement.prototype.click = function () { fetch(this.href).catch(() => done(this.download)); };
        URL.revokeObjectURL = () => {};
        document.querySelector(".png").dispatchEvent(new MouseEvent("click", {bubbles: true}));
    """
    assert browser.execute_async_script(taken) == "Success.png"


def test_a_task_is_pinned_from_its_page(browser: Any, address: str, canned: Deployment) -> None:
    task = golden("Lineage")["active_id"]
    canned.answers[f"/v1/tasks/{task}/lineage"] = canned.answers["/v1/tasks/task-1/lineage"]
    canned.answers[f"/v1/tasks/{task}/pin"] = (200, {})
    browser.get(f"{address}/../../tasks/task-1")
    form = browser.find_element("css selector", ".act")
    form.find_element("name", "reason").send_keys('<b>&"well known')
    form.find_element("css selector", "[value=pin]").click()
    wait.WebDriverWait(browser, 30).until(
        lambda shown: shown.current_url.endswith(f"/tasks/{task}")
    )
    assert canned.changed[-1] == (f"/v1/tasks/{task}/pin", {"reason": '<b>&"well known'})


def test_the_form_filters_and_the_keyboard_reaches_the_table(browser: Any, address: str) -> None:
    browser.get(f"{address}/rollouts")
    browser.find_element("css selector", "main summary").click()
    with to_the_next_page(browser):
        browser.find_element("name", "search").send_keys("take cup\n")
    assert "5 rollouts" in browser.find_element("css selector", "[role=status]").text
    assert "search=take+cup" in browser.current_url
    focus = (
        "return document.activeElement.getAttribute('aria-label') || document.activeElement.name"
    )
    seen = []
    for _ in range(60):
        browser.switch_to.active_element.send_keys("\ue004")  # Tab
        seen.append(browser.execute_script(focus))
        if seen[-1] == "rollouts":
            break
    assert seen[-1] == "rollouts", seen
    assert seen.index("step") < seen.index("min_staleness")


def test_the_keys_label_the_first_step_or_the_one_in_focus(
    browser: Any, address: str, recorded: RecordedRun
) -> None:
    def shown() -> list[str]:
        return [h.text for h in browser.find_elements("css selector", ".unsure h2")]

    browser.get(f"{address}/labels?by=anna")
    before = shown()
    for key, step in (("+", "body"), ("-", ".unsure:nth-child(2)")):
        count = len(shown())
        with to_the_next_page(browser):
            browser.find_element("css selector", step).send_keys(key)
        assert len(shown()) == count == 10
    assert shown()[:2] == [before[1], before[3]]
    with recorded.store.read(recorded.run_id) as session:
        assert [
            (row.label, row.by)
            for row in session.scalars(select(LabelRow).order_by(LabelRow.number))
        ] == [(1, "anna"), (-1, "anna")]
