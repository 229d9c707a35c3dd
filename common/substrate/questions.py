"""Questions that a task asks whoever follows its session (PROTOCOL 3, answer). Asking is the owner's, Lease.ask."""

from typing import cast

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.task import Record
from celeriac.common.substrate.connection import Connection, mapping
from celeriac.common.substrate.hints import Hints, wake_of
from celeriac.common.substrate.reading import stored_answer
from celeriac.common.substrate.records import Records
from celeriac.common.substrate.types import Answered, AnswerStatus, Question
from celeriac.common.testing.points import point

_ANSWER = "answer:"
"""Before the question's id: the field of its answer."""


class Questions:
    """The questions of all sessions."""

    def __init__(self, connection: Connection, records: Records, hints: Hints) -> None:
        """`records` tells which runs have ended; `hints` tells owners."""
        self._connection = connection
        self._records = records
        self._hints = hints

    async def answer(self, task_id: TaskId, qid: str, body: JsonObject, *, op: str) -> Answered:
        """Answer a question of this task, once; the caller sends the wake-up in the answer.

        FIRST: it has its answer already, also TIMEOUT, which is written here when the deadline is over. ENDED and
        UNKNOWN changed nothing. The same op again gets the same answer. Raises ServerUnreachable."""
        await point("answer.before", task_id)
        header: JsonObject = {"op": op, "qid": qid}
        answer = await self._connection.script("answer", task_id, header, orjson.dumps(body))
        await point("answer.after", task_id)
        target = answer.part("target")
        await self._hints.after(target)
        return Answered(AnswerStatus(answer.status), stored_answer(answer.extra), wake_of(target))

    async def open(self, session: TaskId) -> tuple[Question, ...]:
        """What can still be answered in this session, oldest first: no answer yet, deadline and run not over."""
        found = mapping(await self._connection.command("HGETALL", self._connection.keys.session(session, "ask")))
        asked = (read_question(qid, written) for qid, written in found.items() if not qid.startswith(_ANSWER))
        waiting = [question for question in asked if f"{_ANSWER}{question.qid}" not in found]
        if not waiting:
            return ()
        now = await self._records.server_time_ms()
        askers = {task: await self._records.find(task) for task in {question.task_id for question in waiting}}
        still = [question for question in waiting if _is_open(question, askers[question.task_id], now)]
        return tuple(sorted(still, key=lambda question: (question.asked_at, question.qid)))


def _is_open(question: Question, asker: Record | None, now: int) -> bool:
    if asker is None or asker.state.terminal or asker.stop is not None:
        return False
    return asker.run == question.run and question.deadline_ms > now


def read_question(qid: str, written: str) -> Question:
    """A question as it is stored: `T run deadline asked-at body`."""
    task_id, run, deadline, asked_at, body = written.split(" ", 4)
    return Question(
        qid=qid,
        task_id=TaskId(task_id),
        run=int(run),
        body=cast("JsonObject", orjson.loads(body)),
        deadline_ms=int(deadline),
        asked_at=int(asked_at),
    )
