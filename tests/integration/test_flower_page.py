"""Flower in a real browser, over the two examples: what a person sees of sessions, agents and commands (C98).

`make screenshot` keeps the picture that the README shows.
"""

import asyncio
import os
import shutil
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from playwright.async_api import Browser, Error, HttpCredentials, Page, ViewportSize, async_playwright

from celeriac.common.contract.kinds import TITLES, Kind
from celeriac.common.contract.task import Record, State
from celeriac.common.testing.cluster import Cluster
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobOptions

EXAMPLES = Path(__file__).parents[2] / "ops" / "examples"
CHROMIUM = shutil.which("chromium")
QUIET = [f"--disable-{what}" for what in ("gpu", "quic", "background-networking", "component-update", "sync")]
PASSWORD = "a-password-of-this-test"
KEY = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
WINDOW = ViewportSize(width=1440, height=1100)
SECRETS = (KEY, PASSWORD, "You review one Python module", "You are a careful Python developer", "pytest -q")
"""The key, the password, and words of both agents' prompts and of the command."""
SHOWN = {State.COMPLETED: "SUCCESS", State.FAILED: "FAILURE", State.RUNNING: "STARTED"}
SHOWN |= {State.PRODUCING_OUTPUT: "STARTED", State.STOPPED: "REVOKED"}


class Row(NamedTuple):
    """What the list says of a task."""

    task_id: str
    name: str
    state: str


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """The machine's own browser, with an empty profile."""
    if CHROMIUM is None:
        pytest.skip("no browser: apt-get install chromium")
    async with async_playwright() as driver:
        sandbox = os.geteuid() != 0  # which Chromium refuses to build as root
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, "--no-first-run"], chromium_sandbox=sandbox
        )
        try:
            yield browser
        finally:
            await browser.close()


async def start(client: Client, example: str, folder: Path, *, held_ms: int = 0) -> Job:
    """Submit an example's job. `held_ms`: between two events of the session's sixth answer.

    In the fan-out the fifth agent ends when that answer has begun, the sixth when it is over."""
    shutil.copytree(EXAMPLES / example / "package", folder / example)
    lines = [orjson.loads(line) for line in (EXAMPLES / example / "replay.jsonl").read_bytes().splitlines()]
    for line in lines:
        if (line.get("path"), line.get("turn")) == ("s", 6):
            line["pace_ms"] = held_ms
    replay = "".join(orjson.dumps(line).decode() + "\n" for line in lines)
    return await client.submit(None, JobOptions(cwd=folder / example, replay=replay))


def expected(record: Record) -> set[Row]:
    """A row for each run: the first has the task's id, a later one its message's; earlier runs have succeeded."""
    ids = [record.task_id, *(f"{record.task_id}.{run}.0" for run in range(2, record.run + 1))]
    states = ["SUCCESS"] * (record.run - 1) + [SHOWN[record.state]]
    return {Row(row, f"{TITLES[record.kind]}: {record.title}", state) for row, state in zip(ids, states, strict=True)}


async def rows(page: Page, address: str) -> set[Row]:
    """Load the list again and read it."""
    await page.goto(f"{address}/tasks")
    await page.wait_for_selector("#tasks-table tbody tr td:nth-child(3)")
    cells = [await line.locator("td").all_inner_texts() for line in await page.locator("#tasks-table tbody tr").all()]
    return {Row(line[0].strip(), line[1].strip(), line[2].strip()) for line in cells}


async def refused(page: Page, address: str) -> bool:
    """Whether this page is closed to whoever asks; Chromium shows nothing where a login is wanted and none is given."""
    try:
        answer = await page.goto(address)
    except Error as error:
        return "ERR_INVALID_AUTH_CREDENTIALS" in error.message
    return answer is not None and answer.status == 401 and "s-" not in await answer.text()


async def see_no_secret(page: Page) -> None:
    content = await page.content()
    assert [word for word in SECRETS if word in content] == [], page.url


@pytest.mark.cluster
async def test_a_browser_shows_sessions_agents_and_commands_by_title_and_state(system: Cluster, tmp_path: Path) -> None:
    system.environ |= {"ANTHROPIC_API_KEY": KEY, "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    _, _, address = await asyncio.gather(system.coordinator(), system.worker(), system.flower(PASSWORD))
    async with Client.connect(system.url) as client, chromium() as browser:
        fixed = await start(client, "fix-a-bug", tmp_path)
        assert (await fixed.result()).state is State.COMPLETED
        many = await start(client, "fan-out", tmp_path, held_ms=20_000)

        async def five_are_in() -> bool:
            agents = [record for record in await client.tree(many.id) if record.kind is Kind.AGENT]
            return sum(agent.state is State.COMPLETED for agent in agents) == 5

        await until(five_are_in, seconds=60, what="five of eight agents")
        for wrong in (None, HttpCredentials(username="celeriac", password="guessed")):
            stranger = await browser.new_page(http_credentials=wrong)
            assert await refused(stranger, f"{address}/tasks")

        right = HttpCredentials(username="celeriac", password=PASSWORD)
        page = await browser.new_page(http_credentials=right, viewport=WINDOW)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))

        async def all_listed() -> bool:
            tree = [*await client.tree(fixed.id), *await client.tree(many.id)]
            return await rows(page, address) == set().union(*map(expected, tree))

        await until(all_listed, seconds=30, what="every task in the list, with its state")
        picture = await page.screenshot(path=os.environ.get("CELERIAC_PICTURE") or tmp_path / "flower.png")
        assert picture.startswith(b"\x89PNG")
        seen = await rows(page, address)
        assert {row.state for row in seen} == {"SUCCESS", "FAILURE", "STARTED"}
        await see_no_secret(page)

        shell = next(record for record in await client.tree(fixed.id) if record.kind is Kind.SHELL)
        await page.get_by_text(shell.task_id, exact=True).click()
        await page.wait_for_url(f"**/task/{shell.task_id}")
        text = await page.locator("body").inner_text()
        assert "shell: Run the tests" in text and "FAILURE" in text and '"Run the tests" failed: exit 1' in text
        await see_no_secret(page)

        session = f"task/{many.id}"
        shown = {"workers": ["worker@", "coordinator@"], "broker": ["127.0.0.1:"], session: ["session: Review the"]}
        for name, words in shown.items():
            await page.goto(f"{address}/{name}")
            await page.wait_for_load_state("networkidle")
            text = await page.locator("body").inner_text()
            assert [word for word in words if word not in text] == [], name
            await see_no_secret(page)
        assert [url for url in asked if not url.startswith(address)] == []

        await many.stop()
        await until(all_listed, seconds=30, what="what was stopped as such")
        assert Row(many.id, f"session: {(await client.get(many.id)).title}", "REVOKED") in await rows(page, address)
