"""The abort tree: a stop sinks, never rises, and the first reason stays (SPEC 9)."""

import asyncio

from celeriac.common.lifetime.cancel import AbortNode, AbortReason


def test_an_abort_sinks_to_every_descendant_and_nowhere_else() -> None:
    root = AbortNode()
    left, right = root.child(), root.child()
    below = left.child()
    left.abort(AbortReason.PARENT)
    assert (below.reason, right.reason, root.reason) == (AbortReason.PARENT, None, None)
    assert left.child().reason is AbortReason.PARENT  # born aborted


def test_the_first_reason_stays() -> None:
    node = AbortNode()
    heard: list[AbortReason] = []
    node.on_abort(heard.append)
    node.abort(AbortReason.USER)
    node.abort(AbortReason.SHUTDOWN)
    assert node.reason is AbortReason.USER and heard == [AbortReason.USER]
    node.on_abort(heard.append)
    assert len(heard) == 2  # late, so at once


def test_a_callback_can_be_taken_back() -> None:
    node = AbortNode()
    heard: list[AbortReason] = []
    undo = node.on_abort(heard.append)
    undo(), undo()
    node.abort(AbortReason.USER)
    assert heard == []


def test_a_broken_callback_keeps_the_abort_from_nobody() -> None:
    node = AbortNode()
    below, heard = node.child(), list[AbortReason]()

    def broken(_: AbortReason) -> None:
        raise ValueError("broken")

    node.on_abort(broken)
    node.on_abort(heard.append)
    node.abort(AbortReason.USER)
    assert heard == [AbortReason.USER] and below.aborted


async def test_waiting_ends_with_the_reason() -> None:
    node = AbortNode()
    waiting = asyncio.ensure_future(node.child().wait())
    node.abort(AbortReason.BUDGET)
    assert await waiting is AbortReason.BUDGET
