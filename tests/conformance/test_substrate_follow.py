"""Following a session's events, on the twin and on a real server: places, gaps, and answers that get lost."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.events import Event, SystemEvent, UserEvent
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Outcome, State, Subtype
from celeriac.common.settings import Settings
from celeriac.common.substrate.connection import Answer, Argument
from celeriac.common.substrate.events import START, TRIMMED, parse_event_id, place
from celeriac.common.testing.substrate_kit import Kit, line
from celeriac.coordinator.client import Client
from celeriac.coordinator.jobs import JobOptions

SETTINGS = Settings(home=Path("/nowhere"))


async def seen(client: Client, session: str, after: str = START, most: int = 0) -> list[Event]:
    """Events to the end, or `most`."""
    found: list[Event] = []
    async with asyncio.timeout(20), aclosing(client.job(session).follow(after)) as events:
        async for event in events:
            found.append(event)
            if len(found) == most:
                break
    return found


async def ended_session(kit: Kit, lines: int) -> str:
    lease = await kit.owned_session()
    for number in range(lines):
        await lease.append([line(f"line {number}")])
    await lease.finish(Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason="over"))
    return lease.task_id


async def test_every_event_can_be_followed_after(kit: Kit) -> None:
    client = Client(kit.substrate, SETTINGS)
    session = await ended_session(kit, 4)
    whole = await seen(client, session)
    places = [place(event.event_id) for event in whole]
    assert places == sorted(set(places))
    for number, event in enumerate(whole, 1):
        assert await seen(client, session, event.event_id) == whole[number:]
        assert await seen(client, session, most=number) == whole[:number]


async def test_a_stream_that_was_trimmed_says_where_events_are_missing(kit: Kit) -> None:
    client = Client(kit.substrate, SETTINGS)
    session = await ended_session(kit, 4)
    whole = await seen(client, session)
    key = kit.keys.session(client.job(session).id, "ev")
    await kit.redis.xtrim(key, maxlen=3, approximate=False)
    for after in (START, whole[0].event_id):
        gap, *rest = await seen(client, session, after)
        assert isinstance(gap, SystemEvent)
        assert (gap.subtype, gap.event_id) == (TRIMMED, after)
        assert gap.data["first"] == whole[-3].event_id
        assert rest == whole[-3:]
    for number in (-3, -2, -1):
        rest = await seen(client, session, whole[number].event_id)
        assert rest == whole[len(whole) + number + 1 :], "nothing is missing behind an event that is kept"


async def test_a_follower_that_is_overtaken_by_the_trimming_is_told(kit: Kit) -> None:
    client = Client(kit.substrate, SETTINGS)
    lease = await kit.owned_session()
    await lease.append([line("first")])
    key = kit.keys.session(lease.task_id, "ev")
    async with asyncio.timeout(20), aclosing(client.job(lease.task_id).follow()) as events:
        while not isinstance(await anext(events), UserEvent):
            pass
        for number in range(4):
            await lease.append([line(f"later {number}")])
        await kit.redis.xtrim(key, maxlen=2, approximate=False)
        gap, *kept = [await anext(events) for _ in range(3)]
    assert isinstance(gap, SystemEvent)
    assert gap.subtype == TRIMMED
    assert [event.seq for event in kept if isinstance(event, UserEvent)] == [3, 4]


async def test_a_request_whose_answer_is_lost_is_done_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client, connection, lost = Client(kit.substrate, SETTINGS), kit.substrate._connection, ["create", "send_message"]
    once = connection.once

    async def loses(name: str, keys: Sequence[str], header: JsonObject, *large: Argument) -> Answer:
        answer = await once(name, keys, header, *large)
        if name in lost:
            lost.remove(name)
            raise RedisConnectionError("cut after the script ran")
        return answer

    monkeypatch.setattr(connection, "once", loses)
    job = await client.submit("Say hi", JobOptions(cwd=tmp_path))
    await job.send("hello")
    assert lost == []
    assert [record.task_id for record in await client.list()] == [job.id]
    assert (await client.get(job.id)).unread == 1


@pytest.mark.parametrize("text", ["", "x", "1", "1-", "-1", "1-2-3", "1-2 3", "$", "+"])
def test_only_an_event_id_is_a_place(text: str) -> None:
    with pytest.raises(UsageError, match="is not an event id"):
        parse_event_id(text)
    assert parse_event_id(" 17-0 ") == "17-0"
