"""Random stress: several processes on one real server, killed, paused, with lost and tripled wake-ups and lost replies;
then the invariants of PROTOCOL 10 over all keys."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis

from celeriac.common.substrate.connection import texts
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.types import TIMEOUT
from celeriac.common.testing import substrate_lives
from celeriac.common.testing.servers import PrivateServer
from celeriac.common.testing.substrate_actors import ACCEPTED, QUIET, effects, told
from celeriac.common.testing.substrate_checker import World, faults, open_tasks, read_world
from celeriac.common.testing.waiting import until

SECONDS = float(os.environ.get("CELERIAC_STRESS_SECONDS", "15"))
SEED = os.environ.get("CELERIAC_STRESS_SEED", "1")
LEASE_MS = 400
CREW = [("coordinator", 2), ("worker", 2), ("supervisor", 2), ("client", 1)]
STEP_SECONDS = 0.25
END_SECONDS = 60.0


@dataclass(slots=True)
class Crew:
    """The processes, and what was done to them."""

    url: str
    log: Path
    mutation: str = ""
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    done: "Counter[str]" = field(default_factory=Counter)

    def start(self) -> None:
        for role, count in CREW:
            for n in range(count):
                self.spawn(f"{role}-{n}")

    def spawn(self, name: str) -> None:
        arguments = [name.partition("-")[0], name, self.url, str(LEASE_MS), SEED, self.mutation]
        with self.log.open("ab") as log:
            command = [sys.executable, str(substrate_lives.__file__), *arguments]
            self.running[name] = subprocess.Popen(command, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()
        self.spawn(name)
        self.done["kill"] += 1

    async def pause(self, name: str) -> None:
        """Longer than a lease, so that somebody takes over."""
        process = self.running[name]
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LEASE_MS / 1000 * 2)
        process.send_signal(signal.SIGCONT)
        self.done["pause"] += 1

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivateServer]:
    with PrivateServer(tmp_path / "server") as running:
        yield running


async def disturb(crew: Crew, seconds: float) -> None:
    """Kill and pause at random for a while. Chance decides whom; the clock decides how long."""
    chance = random.Random(SEED)
    victims = [name for name in crew.running if not name.startswith("client")]
    end = asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as pauses:
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(STEP_SECONDS)
            name = chance.choice(victims)
            if chance.random() < 0.4:
                pauses.create_task(crew.pause(name), name=f"pause of {name}")
            elif chance.random() < 0.5:
                crew.kill(name)


async def found_faults(client: Redis, world: World) -> list[str]:
    accepted = texts(await client.lrange(ACCEPTED, 0, -1))
    return faults(world, accepted=accepted, effects=await effects(client), told=await told(client))


async def test_invariants_hold_under_kills_pauses_and_losses(server: PrivateServer, tmp_path: Path) -> None:
    crew = Crew(server.url, tmp_path / "crew.log")
    client = Redis.from_url(server.url, protocol=2)

    async def ended() -> bool:
        return not open_tasks(await read_world(client, Keys()))

    crew.start()
    try:
        await disturb(crew, SECONDS)
        await client.set(QUIET, "1")
        await until(ended, seconds=END_SECONDS, what="I5: every task ends once nothing fails any more")
    finally:
        crew.end()
    world = await read_world(client, Keys())
    assert await found_faults(client, world) == []
    answers = Counter(answer == TIMEOUT for _, answer in await told(client))
    await client.aclose()
    assert "DEFECT" not in crew.log.read_text(), crew.log.read_text()
    assert crew.done["kill"] >= SECONDS / 3, crew.done
    assert crew.done["pause"] >= SECONDS / 3, crew.done
    runs = Counter(outcome.state.value for task in world.tasks.values() for outcome in task.outcomes.values())
    print(f"{len(world.tasks)} tasks, runs {dict(runs)}, timed out {dict(answers)}, {dict(crew.done)}")  # noqa: T201 - what the run was worth
    assert min(runs["completed"], runs["stopped"]) > 0
    assert min(answers[True], answers[False]) > 0
    assert any(line.token.partition("/")[0] > "1" for task in world.tasks.values() for line in task.lines)


async def test_the_checker_finds_a_missing_owner_check(server: PrivateServer, tmp_path: Path) -> None:
    crew = Crew(server.url, tmp_path / "crew.log", mutation="no owner check")
    client = Redis.from_url(server.url, protocol=2)

    async def found() -> list[str]:
        return await found_faults(client, await read_world(client, Keys()))

    crew.start()
    try:
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(disturb(crew, END_SECONDS), name="disturb")
            await until(found, seconds=END_SECONDS, what="a fault of the mutated scripts")
            disturbing.cancel()
    finally:
        crew.end()
    await client.aclose()
