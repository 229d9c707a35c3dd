"""How a stressed task lives: PROTOCOL 4's loop and repair, with chance in the model's place."""

import random
import sys
from collections.abc import Sequence

from celeriac.common.contract import ids
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, Line, NewLine, Origin, tool_result_block
from celeriac.common.contract.task import AgentSpec, Limits, ShellSpec
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import AskStatus, FinishStatus, MarkState, ParkStatus
from celeriac.common.testing.substrate_actors import EFFECTS, Actor, Lives, chance, main
from celeriac.common.testing.substrate_kit import BROKEN, DONE, line, new_task

TURNS = 6
"""After so many turns of one life a task ends as soon as it can."""
FAILS = 0.03
"""Share of runs that end failed."""
PATIENCE_MS = (200, 1500)
"""How long a question waits for its answer."""


async def live(lives: Lives, actor: Actor, lease: Lease) -> None:
    """One claimed task, until it ends, parks or is lost."""
    if ids.kind_of(lease.task_id) is Kind.SHELL:
        await _shell(lease)
        return
    task = _Life(lives, actor, lease)
    await task.repair()
    for turn in range(10_000):
        if not await task.turn(last=turn >= TURNS or await actor.quiet()):
            return


async def _shell(lease: Lease) -> None:
    """A command: taken over or resent it never runs (PROTOCOL 4, Worker)."""
    await lease.finish(BROKEN if lease.token.partition("/")[0] != "1" else DONE)


class _Life:
    def __init__(self, lives: Lives, actor: Actor, lease: Lease) -> None:
        self.lives = lives
        self.actor = actor
        self.lease = lease

    async def turn(self, *, last: bool) -> bool:
        """One turn; False when the task is no longer ours."""
        if not self.lease.may_act():
            return False
        if self.lease.stop is not None:
            await self._end(last=True)
            return False
        await self._listen()
        if last or chance(0.12):
            return not await self._end(last=last)
        await random.choice((self._tool, self._tool, self._child, self._send, self._stop, self._question))()
        return True

    async def _listen(self) -> None:
        """Consume the whole inbox as one user message."""
        entries = [entry.id for entry in await self.actor.substrate.inboxes.unread(self.lease.task_id)]
        if entries or self.lease.tlen == 0:
            await self.lease.append([line("news", run=self.lease.run, inbox_ids=entries)], consume=entries)

    async def _end(self, *, last: bool) -> bool:
        """Try to finish; True when the task is no longer ours."""
        outcome = BROKEN if chance(FAILS) and not last else DONE
        done = await self.lease.finish(outcome, [line("done", role="assistant", run=self.lease.run)])
        if done.wake is not None:
            await self.actor.wake(done.wake.task_id, done.wake.run)
        if done.status is FinishStatus.INBOX:
            return False
        if done.status is not FinishStatus.CHILDREN:
            return True
        if chance(0.5):
            return await self.lease.park("inbox", "children") is ParkStatus.OK
        await self.lease.changed()
        return False

    async def _tool(self) -> None:
        """Two state-changing calls in one answer: draft and mark, effect, result; then the answer with its results."""
        blocks: list[JsonObject] = []
        results: list[JsonObject] = []
        for _ in range(random.choice((1, 2))):
            block = _use("tool", "")
            tool = str(block["id"])
            draft = Draft(run=self.lease.run, turn=1, blocks=(*blocks, block))
            if (await self.lease.draft(draft, [tool])).stop is not None or not self.lease.may_act():
                break
            blocks.append(block)
            await self.actor.redis.rpush(EFFECTS, tool)
            results.append(tool_result_block(tool, "kept"))
            await self.lease.tool_done(tool, results[-1])
        if blocks:
            await self.lease.append([self._answer(blocks), self._results(results)])

    async def _child(self) -> None:
        await self._asked("child", "")

    async def _send(self) -> None:
        if (child := await self._some_child()) is not None:
            await self._asked("send", child)

    async def _stop(self) -> None:
        if chance(0.5) and (child := await self._some_child()) is not None:
            await self._asked("stop", child)

    async def _question(self) -> None:
        await self._asked("ask", "")

    async def _some_child(self) -> TaskId | None:
        tree = await self.actor.substrate.records.tree(self.lease.task_id)
        children = [record.task_id for record in tree if record.parent == self.lease.task_id]
        return random.choice(children) if children else None

    async def _asked(self, name: str, to: str) -> None:
        """A coordinator's tool: committed before its effect, answered after."""
        block = _use(name, to)
        ack = await self.lease.append([self._answer([block])])
        done = "stopping" if ack.stop is not None else await self._execute(block)
        if done is not None:
            await self.lease.append([self._results([tool_result_block(str(block["id"]), done)])])

    async def _execute(self, block: JsonObject) -> str | None:
        """Run a coordinator's tool; idempotent by the id of its call. None: it waits, and the task is given back."""
        tool, to = str(block["id"]), TaskId(str(block["input"]["to"]))  # type: ignore[index,call-overload]  # ours
        if block["name"] == "ask":
            return await self._wait_for_answer(ids.question(self.lease.task_id, tool))
        token = (self.lease.task_id, self.lease.token)
        op = ids.operation(self.lease.task_id, tool)
        if block["name"] == "send":
            return await self.actor.send(to, op, token)
        records = self.actor.substrate.records
        if block["name"] == "stop":
            answer = await records.request_stop(to, kind="user", reason="TaskStop", op=op, sender=token)
            await records.settle_stop(to)
            return answer.status.value
        session = ids.kind_of(self.lease.task_id) is Kind.SESSION
        child = ids.child(self.lease.task_id, Kind.AGENT if session else Kind.SHELL, tool)
        spec = AgentSpec(prompt="stress") if session else ShellSpec(command="true")
        limits = Limits(seconds=5)
        created = await records.create(
            new_task(child, self.lease.task_id, spec, limits=limits), parent_token=self.lease.token
        )
        await self._dispatch(child, agent=session)
        return created.value

    async def _wait_for_answer(self, qid: str) -> str | None:
        """Ask, or ask again; None when the task was parked until there is an answer."""
        deadline = await self.actor.substrate.records.server_time_ms() + random.randint(*PATIENCE_MS)
        while True:
            asked = await self.lease.ask(qid, {"text": "may I?"}, deadline)
            if asked.answer is not None:
                await self.actor.told(qid, asked.answer)
                return "answered"
            if asked.status is AskStatus.STOP:
                return "stopping"
            parked = await self.lease.park(f"answer:{qid}", "human", at_ms=asked.deadline_ms)
            if parked is not ParkStatus.ANSWERED:
                return None if parked is ParkStatus.OK else "stopping"

    async def _dispatch(self, child: TaskId, *, agent: bool) -> None:
        """An agent gets a wake-up; a background shell is claimed at once by the same worker."""
        if not agent:
            await self.lives.take(child, 1)
            return
        await self.actor.wake(child, 1)
        await self.actor.substrate.records.mark_queued(child, 1)

    async def repair(self) -> None:
        """Answer every call of the last answer that has no result, in one append, before anything else."""
        lines = await self.actor.substrate.transcripts.lines(self.lease.task_id)
        draft = self.lease.grant.draft
        if draft is not None:
            repaired = [await self._repaired(block, draft.run) for block in draft.blocks]
            results = [done for done in repaired if done is not None]
            await self.lease.append([self._answer(list(draft.blocks)), self._results(results)])
            return
        last = next((found for found in reversed(lines) if found.role == "assistant"), None)
        if last is None:
            return
        waiting = _unanswered(last, lines)
        results = [done for block in waiting if (done := await self._repaired(block, last.run)) is not None]
        if results:
            await self.lease.append([self._results(results)])

    async def _repaired(self, block: JsonObject, run: int) -> JsonObject | None:
        tool = str(block["id"])
        if block["name"] != "tool":
            ended = run < self.lease.run or self.lease.stop is not None
            done = "the run ended first" if ended else await self._execute(block)
            return None if done is None else tool_result_block(tool, done)
        marks = await self.actor.substrate.transcripts.marks(self.lease.task_id)
        kept = tool in marks and marks[tool].state is MarkState.DONE
        return tool_result_block(tool, "kept" if kept else "effect unknown", is_error=not kept)

    def _answer(self, blocks: Sequence[JsonObject]) -> NewLine:
        run = self.lease.run
        return NewLine(run=run, turn=1, role="assistant", content=tuple(blocks), origin=Origin.MODEL)

    def _results(self, blocks: Sequence[JsonObject]) -> NewLine:
        return NewLine(run=self.lease.run, turn=1, role="user", content=tuple(blocks), origin=Origin.TOOLS)


def _use(name: str, to: str) -> JsonObject:
    return {"type": "tool_use", "id": f"toolu_{ids.nonce()}", "name": name, "input": {"to": to}}


def _unanswered(last: Line, lines: Sequence[Line]) -> list[JsonObject]:
    answered = {block["tool_use_id"] for found in lines for block in found.content if block["type"] == "tool_result"}
    return [block for block in last.content if block["type"] == "tool_use" and block["id"] not in answered]


if __name__ == "__main__":
    main(live, sys.argv[1:])
