"""Events 8 to 12: what a turn becomes in the transcript, and whether the run goes on, waits, parks or ends (SPEC 3,
PROTOCOL 4)."""

from pydantic import ValidationError

from celeriac.common.contract.errors import LeaseLost
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.messages import Draft, NewLine, Origin, text_block, tool_result_block
from celeriac.common.contract.task import Outcome, State, Subtype
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.runtime.deps import RunDeps
from celeriac.common.runtime.executor import Executor
from celeriac.common.runtime.state import Transition
from celeriac.common.runtime.stops import ParkRun, StopRun
from celeriac.common.runtime.synthetic_output import OutputKind, SyntheticOutputInput
from celeriac.common.runtime.turn import Again, Ended, Parked, Turn, Verdict, event_of, inbox_blocks, inbox_origin
from celeriac.common.substrate.types import Entry, EntryKind, Finish, FinishStatus, ParkStatus
from celeriac.common.tools.base import Call
from celeriac.common.tools.bounds import bounded
from celeriac.common.tools.invoke import MAX_REASON, explain

ASKED_TEXT = "asked; the reply will come as a user message"
NOT_DELIVERED_TEXT = "not delivered, new messages follow"
DELIVERED_TEXT = "delivered"


CONTINUATIONS = 3
"""How often in a row an answer that was cut is continued (SPEC 5, Recovery)."""
CONTINUE_TEXT = "Your answer was cut at the output limit. Go on exactly where it stopped, without repeating anything."
NOTHING_WHOLE_TEXT = (
    "Your answer was cut at the output limit before any part of it was complete, and was dropped. "
    "Answer again in smaller pieces."
)
_PAUSED = frozenset({"pause_turn", "compaction"})
_WHOLE = frozenset({None, "end_turn", "stop_sequence", "tool_use"})
"""Stop reasons of an answer that is complete; None: there was no answer, only a wait."""


class Closing:
    """Commits the turns of one run. Every method raises LeaseLost when ownership is gone."""

    def __init__(self, deps: RunDeps, executor: Executor) -> None:
        """Use one for a whole run."""
        self._deps = deps
        self._executor = executor

    async def verdict(self, turn: Turn) -> Verdict:
        """Commit a turn whose calls have all ended, and say how it goes on."""
        deps = self._deps
        if (end := await self._cut_short(turn)) is not None:
            return end
        if turn.resumed is not None and turn.resumed.run != deps.identity.run:
            return await self._commit(turn)
        finale = self._executor.finale
        if finale is not None and (self._executor.only_concludes or not self._over_limit(turn)):
            return await self._conclude_by_tool(turn, finale)
        if self._executor.has_calls or turn.stop_reason == "max_tokens" or self._paused(turn):
            return await self._after_tools(turn)
        if deps.writer.unread and not turn.blocks:
            return await self._commit(turn, transition=Transition.NOTIFIED)
        return await self._conclude_by_text(turn)

    async def _cut_short(self, turn: Turn) -> Verdict | None:
        """The end of a run whose answer was not given, or was cut; None: there is an answer."""
        if turn.halt is not None:
            return await self._halted(turn, turn.halt)
        fault = self._fault(turn)
        return None if fault is None else await self._fail(turn, Subtype.EXECUTION, fault)

    async def _halted(self, turn: Turn, halt: StopRun | ParkRun) -> Verdict:
        """The model was not asked, on purpose: the run ends, or frees its slot until it may ask."""
        deps = self._deps
        if isinstance(halt, StopRun):
            return await self._fail(turn, halt.subtype, str(halt))
        await deps.output.flush()
        if await deps.writer.park_for(halt.seconds, halt.why, halt.tries) is ParkStatus.OK:
            return Parked(halt.why)
        return await self.interrupted(turn)  # only a stop refuses a park until a time

    def _fault(self, turn: Turn) -> str | None:
        """Why this answer ends the run as failed, if it does."""
        if turn.failure is not None:
            return f"{turn.failure.reason}: {turn.failure}"
        if turn.stop_reason == "refusal":
            turn.blocks = turn.blocks if self._executor.has_effect else ()  # the API asks to drop such a turn
            return "refusal: the model declined to answer"
        if turn.stop_reason == "max_tokens" and turn.state.max_output_tokens_recovery_count >= CONTINUATIONS:
            return f"max_tokens: the answer was cut, also after {CONTINUATIONS} continuations"
        if turn.stop_reason in _WHOLE | {"max_tokens"} or self._executor.has_calls or self._paused(turn):
            return None
        return f"{turn.stop_reason}: the answer ended for a reason that is not known here"

    @staticmethod
    def _paused(turn: Turn) -> bool:
        """Whether the server wants the answer back as it is, to go on with it."""
        return turn.stop_reason in _PAUSED and bool(turn.blocks)

    async def interrupted(self, turn: Turn) -> Verdict:
        """The run was aborted: what there is becomes the transcript, then the run ends, or is handed over on
        shutdown."""
        deps = self._deps
        reason = deps.cancel.reason
        if reason is AbortReason.LEASE_LOST:
            raise LeaseLost(f"{deps.identity.task_id}: the lease was lost")
        if not self._executor.has_effect and turn.resumed is None and turn.stop_reason is None:
            deps.tally.last_text = turn.text.strip() or deps.tally.last_text
            turn.blocks = ()  # an answer that neither ended nor had an effect is asked again by whoever goes on
        if reason is AbortReason.SHUTDOWN and await self._handed_over(turn):
            return Parked("closing")
        outcome = self._outcome(State.STOPPED, Subtype.EXECUTION, reason=str(reason), partial=True)
        return await self._finish_anyway(turn, outcome)

    async def _handed_over(self, turn: Turn) -> bool:
        """Leave everything to the next owner; False when a stop came first.

        Calls that were cut or had not started are not answered: the answer is left as a draft, and repair decides."""
        deps = self._deps
        stored = turn.resumed is not None and turn.resumed.stored
        if not turn.blocks or not self._executor.cut:
            await self._commit(turn)
        elif not stored:
            await deps.writer.append([], usage=deps.tally.usage, progress=False)
            written = turn.resumed.run if turn.resumed is not None else deps.identity.run
            await deps.writer.draft(Draft(run=written, turn=turn.number, blocks=turn.blocks), [])
        await deps.output.flush()
        return await deps.writer.release() is ParkStatus.OK

    async def wait(self, turn: Turn) -> Verdict:
        """Nothing to do until something arrives: wait with the lease held, or park while a person is asked."""
        deps = self._deps
        if deps.tally.asked and not deps.writer.unread:
            await deps.output.flush()
            if await deps.writer.park("inbox", "human") is ParkStatus.OK:
                return Parked("human")
        while not deps.writer.unread and not deps.cancel.aborted:
            await deps.writer.changed()
        if deps.cancel.aborted:
            return await self.interrupted(turn)
        return await self._commit(turn, transition=Transition.NOTIFIED)

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _after_tools(self, turn: Turn) -> Verdict:
        deps = self._deps
        if self._over_limit(turn):
            return await self._fail(turn, Subtype.MAX_TURNS, self._limit_text())
        if turn.resumed is None or not turn.resumed.stored:  # a stored one was counted when the run began here
            deps.tally.tool_turns += 1
        if turn.stop_reason == "max_tokens":
            goes_on = (text_block(CONTINUE_TEXT if turn.blocks else NOTHING_WHOLE_TEXT),)
            return await self._commit(turn, transition=Transition.OUTPUT_CONTINUED, reminders=goes_on)
        reminders = () if self._paused(turn) else self._reminders(turn)
        return await self._commit(turn, reminders=reminders, quiet=self._paused(turn))

    def _over_limit(self, turn: Turn) -> bool:
        """Whether this turn's calls were one turn too many; a resumed turn began within the limit."""
        return turn.resumed is None and self._deps.turns_spent

    def _limit_text(self) -> str:
        return f"the limit of {self._deps.settings.limits.turns} tool-use turns is reached"

    def _reminders(self, turn: Turn) -> tuple[JsonObject, ...]:
        """What the tools want the model to be reminded of, such as open todos (SPEC 5)."""
        deps, called = self._deps, self._executor.called
        for name in deps.toolbox.names:
            deps.tally.idle[name] = 0 if name in called else deps.tally.idle.get(name, 0) + 1
        memory = turn.state.tool_use_context.memory
        return tuple(text_block(text) for text in deps.toolbox.nudges(memory, deps.tally.idle))

    async def _commit(
        self,
        turn: Turn,
        *,
        finale: JsonObject | None = None,
        asked: bool = False,
        transition: Transition = Transition.NEXT_TURN,
        reminders: tuple[JsonObject, ...] = (),
        quiet: bool = False,
    ) -> Again:
        """One append: the assistant message, its results, and whatever waits in the inbox (PROTOCOL 4). `quiet`:
        nothing may follow the answer yet."""
        deps = self._deps
        entries = await deps.inbox.unread() if deps.writer.unread and not asked and not quiet else ()
        lines = self._lines(turn, finale, entries, reminders)
        if lines:
            consume = [entry.id for entry in entries]
            await deps.writer.append(
                lines, consume=consume, usage=deps.tally.usage, progress=bool(turn.blocks), asked=asked
            )
        self._committed(turn, lines, entries)
        deps.tally.asked = asked or (deps.tally.asked and all(entry.kind is not EntryKind.MESSAGE for entry in entries))
        return Again(tuple(lines), transition)

    def _lines(
        self,
        turn: Turn,
        finale: JsonObject | None = None,
        entries: tuple[Entry, ...] = (),
        reminders: tuple[JsonObject, ...] = (),
    ) -> list[NewLine]:
        run, number = self._deps.identity.run, turn.number
        lines: list[NewLine] = []
        if turn.blocks and not (turn.resumed is not None and turn.resumed.stored):
            written = turn.resumed.run if turn.resumed is not None else run
            lines.append(NewLine(run=written, turn=number, role="assistant", content=turn.blocks, origin=Origin.MODEL))
        results = self._executor.results(finale) if turn.blocks else ()
        content = results + inbox_blocks(entries) + reminders
        if content:
            origin = Origin.TOOLS if results else inbox_origin(entries)
            ids = tuple(entry.id for entry in entries)
            metas = self._executor.metas() if results else ()
            user = NewLine(
                run=run, turn=number, role="user", content=content, origin=origin, inbox_ids=ids, metas=metas
            )
            lines.append(user)
        return lines

    def _committed(self, turn: Turn, lines: list[NewLine], entries: tuple[Entry, ...] = ()) -> None:
        earlier = turn.resumed is not None and turn.resumed.run != self._deps.identity.run
        if (text := turn.text.strip()) and not earlier:
            self._deps.tally.last_text = text
        turn.events.extend(event_of(line, self._deps.identity) for line in lines)
        turn.blocks = ()

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _conclude_by_text(self, turn: Turn) -> Verdict:
        deps = self._deps
        if deps.tally.asked:
            return await self._commit_and_wait(turn)
        text = turn.text.strip() or deps.tally.last_text
        lines = self._lines(turn)
        await deps.output.flush()
        finish = await deps.writer.finish(self._outcome(State.COMPLETED, Subtype.SUCCESS, text=text), lines)
        if finish.status is FinishStatus.INBOX:
            return await self._commit(turn, transition=Transition.NOTIFIED)
        if finish.status is FinishStatus.CHILDREN:
            return await self._commit_and_wait(turn)
        return self._ended(turn, lines, finish, text)

    async def _commit_and_wait(self, turn: Turn, *, finale: JsonObject | None = None, asked: bool = False) -> Verdict:
        """Commit the answer, then wait; not when the commit has consumed what would have been waited for."""
        committed = await self._commit(turn, finale=finale, asked=asked)
        if any(line.inbox_ids for line in committed.added):
            return Again(committed.added, Transition.NOTIFIED)
        waited = await self.wait(turn)
        return Again(committed.added + waited.added, waited.transition) if isinstance(waited, Again) else waited

    async def _conclude_by_tool(self, turn: Turn, finale: Call) -> Verdict:
        try:
            wanted = SyntheticOutputInput.model_validate(finale.raw)
        except ValidationError as error:
            return await self._answer_finale(turn, finale, explain(finale.name, error), is_error=True)
        if wanted.kind is OutputKind.QUESTION:
            return await self._ask_person(turn, finale, wanted)
        lines = self._lines(turn, tool_result_block(finale.id, DELIVERED_TEXT))
        outcome = self._outcome(State.COMPLETED, Subtype.SUCCESS, text=wanted.text(), structured=wanted.structured)
        await self._deps.output.flush()
        finish = await self._deps.writer.finish(outcome, lines)
        if finish.status is FinishStatus.INBOX:
            return await self._answer_finale(turn, finale, NOT_DELIVERED_TEXT)
        if finish.status is FinishStatus.CHILDREN:
            return await self._answer_finale(turn, finale, _still_open(finish), is_error=True)
        return self._ended(turn, lines, finish, wanted.text())

    async def _ask_person(self, turn: Turn, finale: Call, wanted: SyntheticOutputInput) -> Verdict:
        if self._deps.identity.kind is not Kind.SESSION:
            return await self._answer_finale(
                turn, finale, "only the session can ask the user; finish with kind answer", is_error=True
            )
        self._deps.tally.last_text = wanted.text()
        return await self._commit_and_wait(turn, finale=tool_result_block(finale.id, ASKED_TEXT), asked=True)

    async def _answer_finale(self, turn: Turn, finale: Call, text: str, *, is_error: bool = False) -> Verdict:
        """A SyntheticOutput that did not end the run costs a tool-use turn, so that it cannot be tried for ever."""
        result = tool_result_block(finale.id, text, is_error=is_error)
        if self._over_limit(turn):
            return await self._fail(turn, Subtype.MAX_TURNS, self._limit_text(), finale=result)
        self._deps.tally.tool_turns += 1
        return await self._commit(turn, finale=result)

    async def _fail(self, turn: Turn, subtype: Subtype, reason: str, *, finale: JsonObject | None = None) -> Ended:
        outcome = self._outcome(State.FAILED, subtype, reason=reason, partial=True)
        return await self._finish_anyway(turn, outcome, finale=finale)

    async def _finish_anyway(self, turn: Turn, outcome: Outcome, *, finale: JsonObject | None = None) -> Ended:
        """An end that nothing can refuse."""
        text = turn.text.strip() or outcome.text
        lines = self._lines(turn, finale)
        await self._deps.output.flush()
        finish = await self._deps.writer.finish(outcome.model_copy(update={"text": text}), lines)
        return self._ended(turn, lines, finish, text, outcome)

    def _ended(
        self, turn: Turn, lines: list[NewLine], finish: Finish, text: str | None, outcome: Outcome | None = None
    ) -> Ended:
        self._committed(turn, lines)
        ended = outcome or self._outcome(State.COMPLETED, Subtype.SUCCESS, text=text)
        if finish.status is FinishStatus.STOPPED:  # a stop that was accepted first
            ended = self._outcome(State.STOPPED, Subtype.EXECUTION, reason="stopped", text=text, partial=True)
        return Ended(ended)

    def _outcome(
        self,
        state: State,
        subtype: Subtype,
        *,
        reason: str = "",
        text: str | None = None,
        structured: JsonObject | None = None,
        partial: bool = False,
    ) -> Outcome:
        tally = self._deps.tally
        return Outcome(
            state=state,
            subtype=subtype,
            reason=bounded(reason, MAX_REASON),
            text=text if text is not None else (tally.last_text or None),
            partial=partial,
            structured=structured,
            usage=tally.usage,
            stop_reason=tally.stop_reason,
            denials=tuple(tally.denials),
        )


def _still_open(finish: Finish) -> str:
    names = ", ".join(finish.open_tasks)
    wait = "Wait for their notifications or TaskStop them, then answer again."
    return f"not delivered: these tasks are still open: {names}. {wait}"
