"""Leases: claiming a task, and what its owner may write (PROTOCOL 3, owner's operations)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from celeriac.common.clock import boottime
from celeriac.common.contract import ids
from celeriac.common.contract.errors import ScriptRefused
from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.messages import Draft, NewLine
from celeriac.common.contract.presence import SILENT_SECONDS
from celeriac.common.contract.task import Outcome, Usage
from celeriac.common.substrate.connection import Answer, Connection
from celeriac.common.substrate.hints import Hints, wake_of
from celeriac.common.substrate.ownership import Ownership
from celeriac.common.substrate.reading import stored_answer
from celeriac.common.substrate.records import Records
from celeriac.common.substrate.types import (
    Ack,
    AskResult,
    AskStatus,
    ClaimRefusal,
    Finish,
    FinishStatus,
    Grant,
    ParkStatus,
)
from celeriac.common.testing.points import point

_NONCE = re.compile(r"[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Terms:
    """What claims are made under."""

    lease_ms: int = 15_000
    """DESIGN 3: recovery takes about one lease time."""
    max_attempts: int = 3
    """Leases lost since the last progress that a claim still accepts (PROTOCOL 3)."""
    max_attempts_total: int = 20
    """Leases lost in one run that a claim still accepts (PROTOCOL 3)."""
    silent_ms: int = round(SILENT_SECONDS * 1000)
    """No token and no tool output for so long is a silence."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What a lease needs beside its own record."""

    connection: Connection
    records: Records
    hints: Hints


class Lease(Ownership):
    """Holding one run of one task: its owner's operations."""

    def __init__(self, sides: Sides, *, terms: Terms, grant: Grant, answer: Answer) -> None:
        """Made by Leases.claim only."""
        super().__init__(
            sides.connection, lease_ms=terms.lease_ms, silent_ms=terms.silent_ms, grant=grant, answer=answer
        )
        self._sides = sides

    async def append(
        self,
        lines: Sequence[NewLine],
        *,
        consume: Sequence[str] = (),
        usage: Usage | None = None,
        progress: bool = True,
        asked: bool = False,
    ) -> Ack:
        """Append lines, and consume these inbox entries, which must be the head of the inbox.

        An answer of the model or a result among them is progress, after which earlier losses of the lease are
        forgotten; `progress` False says that it is not (results that were stored before). `usage`: of the whole run so
        far (absolute). `asked`: a question waits for a message. A stop in the answer does not undo the append.
        Raises LeaseLost."""
        header: JsonObject = {
            "consume": list(consume),
            "progress": progress and any(map(_is_progress, lines)),
            "asked": asked,
            **_lines(lines, usage),
        }
        return await self._write_acked("append", header, [line.model_dump_json() for line in lines])

    async def draft(self, draft: Draft, started: Sequence[str]) -> Ack:
        """Store all finished blocks so far, and start marks for these tool_uses, before they have any effect.

        With a stop in the answer nothing was stored: start nothing. Raises LeaseLost."""
        return await self._write_acked("draft", {"started": list(started)}, [draft.model_dump_json()])

    async def tool_done(self, tool_use_id: str, result: JsonObject) -> Ack:
        """Keep the result of a started call. With a stop in the answer it was not kept. Raises LeaseLost."""
        return await self._write_acked("tool_done", {"tool": tool_use_id}, [orjson.dumps(result)])

    async def emit(
        self,
        *,
        chunks: Sequence[str] = (),
        activities: Sequence[str] | None = None,
        token_at: bool = False,
        tool_at: bool = False,
        event: JsonObject | None = None,
    ) -> Ack:
        """Write live output, the whole list of recent activities (newest last, 5 are kept), marks of progress, and one
        event for followers (a `system` or `stream_event` object). Raises LeaseLost."""
        header: JsonObject = {"token_at": token_at, "tool_at": tool_at}
        if activities is not None:
            header["activities"] = list(activities)
        if event is not None:
            header["event_type"] = str(event.get("type", "system"))
        body = orjson.dumps(event) if event is not None else b""
        return await self._write_acked("emit", header, [body, *chunks])

    async def finish(
        self, outcome: Outcome, last_lines: Sequence[NewLine] = (), *, usage: Usage | None = None
    ) -> Finish:
        """End the run, appending these lines. A stopped run ends stopped (or failed by its limit) whatever is asked.

        INBOX and CHILDREN refuse a completion and change nothing. `usage` defaults to the outcome's.
        Raises LeaseLost."""
        header: JsonObject = {
            "state": outcome.state.value,
            "subtype": outcome.subtype.value,
            "reason": outcome.reason,
            "partial": outcome.partial,
            "has_text": outcome.text is not None,
            **_lines(last_lines, usage or outcome.usage),
        }
        rest = outcome.model_dump_json(
            exclude={"state", "subtype", "reason", "partial", "undeliverable", "duration_ms"}
        )
        answer = await self._write("finish", header, [rest, *(line.model_dump_json() for line in last_lines)])
        status = FinishStatus(answer.status)
        if status is FinishStatus.CHILDREN:
            return Finish(status, await self._sides.records.descendants(self.task_id))
        await _tell(self._sides, self.task_id, answer)
        return Finish(status, wake=wake_of(answer.part("parent")))

    async def ask(self, qid: str, body: JsonObject, deadline_ms: int) -> AskResult:
        """Ask whoever follows the session (`qid`: ids.question), until a server time in epoch milliseconds.

        The same question again, also of a later owner, changes nothing but that a deadline that is over is its answer,
        and gets what is stored. With STOP it was not asked. Raises LeaseLost."""
        answer = await self._write("ask", {"qid": qid, "deadline": deadline_ms}, [orjson.dumps(body)])
        status = AskStatus(answer.status)
        if status is AskStatus.STOP:
            return AskResult(status)
        return AskResult(status, stored_answer(answer.extra), answer.count("deadline") or deadline_ms)

    async def park(self, until: int | str, why: str, *, at_ms: int | None = None) -> ParkStatus:
        """Give the task back until a server time (epoch milliseconds), for `inbox`, or for `answer:QID`.

        `inbox` may have a time `at_ms` too; an answer must, its deadline. STOP, INBOX and ANSWERED refuse it: the task
        is still owned.
        Raises LeaseLost."""
        if isinstance(until, int):
            return await self._park({"park": "time", "park_at": until, "why": why})
        if until != "inbox" and not at_ms:
            raise ScriptRefused("only `inbox` may lack a time")
        return await self._park({"park": until, "park_at": at_ms or 0, "why": why})

    async def park_for(self, seconds: float, why: str, tries: int = 0) -> ParkStatus:
        """Give the task back for so long, by the server's clock. `tries`: failures of the model call that it waits for,
        kept on the record until an answer comes. Raises LeaseLost."""
        header: JsonObject = {"park": "time", "park_at": 0, "park_ms": round(seconds * 1000), "why": why}
        return await self._park({**header, "tries": tries})

    async def release(self) -> ParkStatus:
        """Hand the task over at once: the graceful end of a closing process. No attempt is counted, and a coordinator
        is told, so that the next owner need not wait for a scan."""
        status = await self._park({"park": "time", "now": True, "park_at": 0, "why": "closing"})
        if status is ParkStatus.OK:
            await self._sides.hints.push_sessions(self.task_id)
        return status

    async def _park(self, header: JsonObject) -> ParkStatus:
        return ParkStatus((await self._write("park", header)).status)


class Leases:
    """Makes leases; all of one process under the same terms."""

    def __init__(self, sides: Sides, terms: Terms) -> None:
        """`terms`: how long a lease is and how often it may be lost."""
        self._sides = sides
        self._terms = terms

    async def claim(
        self, task_id: TaskId, run: int | None, *, process: str, nonce: str | None = None
    ) -> Lease | ClaimRefusal:
        """Take the task, or say why not (then drop the wake-up). `run` None: whichever is current.

        The same nonce again gets the same answer. Raises ServerUnreachable."""
        nonce = nonce or ids.nonce()
        if _NONCE.fullmatch(nonce) is None:
            raise ScriptRefused(f"{nonce!r} is no nonce")
        header: JsonObject = {
            "nonce": nonce,
            "proc": process,
            "ttl": self._terms.lease_ms,
            "max_attempts": self._terms.max_attempts,
            "max_attempts_total": self._terms.max_attempts_total,
        }
        answer, sent_at = await self._send(task_id, header if run is None else {**header, "run": run})
        if answer.status != "OK":
            await _tell(self._sides, task_id, answer)
            return ClaimRefusal(answer.status)
        grant = _grant(task_id, answer, sent_at)
        return Lease(self._sides, terms=self._terms, grant=grant, answer=answer)

    async def _send(self, task_id: TaskId, header: JsonObject) -> tuple[Answer, float]:
        """The answer, and when the attempt that was answered had been sent."""
        connection = self._sides.connection
        keys = connection.keys.script(task_id, await connection.ancestors(task_id))
        await point("claim.before", task_id)

        async def attempt() -> tuple[Answer, float]:
            sent_at = boottime()
            answer = await connection.once("claim", keys, {**header, "task": task_id})
            await point("claim.after", task_id)
            return answer, sent_at

        return await connection.patiently(attempt)


async def _tell(sides: Sides, task_id: TaskId, answer: Answer) -> None:
    """Send the hints after a settle: to the parent, and to whoever works below a run that did not complete."""
    await sides.hints.after(answer.part("parent"))
    if answer.count("orphans"):
        await sides.records.poke(task_id)


def _grant(task_id: TaskId, answer: Answer, sent_at: float) -> Grant:
    return Grant(
        task_id=task_id,
        token=answer.word("token"),
        run=answer.count("run"),
        tlen=answer.count("tlen"),
        draft=Draft.model_validate_json(answer.extra) if answer.extra else None,
        sent_at=sent_at,
        asked=answer.fields["asked"] is True,
    )


def _is_progress(line: NewLine) -> bool:
    return line.role == "assistant" or any(block["type"] == "tool_result" for block in line.content)


def _lines(lines: Sequence[NewLine], usage: Usage | None) -> JsonObject:
    """What a script must know of lines that it does not read."""
    fields: JsonObject = {"answered": any(line.role == "assistant" for line in lines)}
    return fields if usage is None else {**fields, "usage": usage.model_dump_json()}
