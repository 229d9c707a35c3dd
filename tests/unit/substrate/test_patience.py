"""Outages as a person is told of them, and requests that wait."""

import asyncio
import itertools

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ServerUnreachable
from celeriac.common.substrate.embedded import free_port
from celeriac.common.substrate.patience import TELL_AFTER_SECONDS, Outage, Patience, wait_for
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.servers import PrivateServer

LONG = TELL_AFTER_SECONDS


def test_each_outage_is_told_once_and_a_short_one_not_at_all() -> None:
    told: list[str] = []
    outage = Outage("here", told.append)
    outage.missed(waited=0.0, patience=30)
    outage.answered()
    assert (told, outage.count) == ([], 1)
    for _ in range(3):
        outage.missed(waited=LONG, patience=30)
    outage.answered()
    outage.answered()
    assert told == ["the server at here does not answer; waiting up to 30 s …", "the server is back"]
    assert outage.count == 2


def test_a_blocking_attempt_is_repeated_until_it_is_answered_or_time_is_up() -> None:
    told: list[str] = []
    attempts = itertools.count()

    def third() -> int:
        if (number := next(attempts)) < 2:
            raise ServerUnreachable(str(number))
        return number

    outage = Outage("here", told.append)
    assert wait_for(third, outage, broken=(ServerUnreachable,), seconds=10) == 2
    with pytest.raises(ServerUnreachable, match="x"):
        wait_for(_never, outage, broken=(ServerUnreachable,), seconds=LONG + 0.3)
    assert len(told) == 1
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 // 0, outage, broken=(ServerUnreachable,), seconds=10)


def _never() -> None:
    raise ServerUnreachable("x")


async def test_many_requests_that_wait_tell_it_once() -> None:
    told: list[str] = []
    url = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    substrate = Substrate.connect(url, patience=Patience(LONG + 0.5, told.append))
    session = ids.new_session()
    asked = [substrate.records.find(session) for _ in range(5)]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in errors] == [ServerUnreachable] * 5
    assert len(told) == 1
    assert "secret" not in told[0]
    await substrate.aclose()


async def test_a_password_that_is_wrong_is_no_reason_to_wait(private_server: PrivateServer) -> None:
    told: list[str] = []
    url = private_server.url.replace("//", "//user:secret@")
    substrate = Substrate.connect(url, patience=Patience(30, told.append))
    async with asyncio.timeout(5):
        with pytest.raises(ServerUnreachable, match="password"):
            await substrate.reach(30)
    assert told == []
    await substrate.aclose()


async def test_a_request_whose_answer_was_lost_says_that_it_may_have_been_carried_out(
    private_server: PrivateServer,
) -> None:
    substrate = Substrate.connect(private_server.url, patience=Patience(0.2))
    await substrate.reach(5)

    async def cut() -> None:
        raise RedisConnectionError("cut")

    with pytest.raises(ServerUnreachable, match=r"answers no longer \(cut\); whether the last request"):
        await substrate._connection.patiently(cut)
    await substrate.aclose()
