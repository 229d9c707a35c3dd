"""Kind `sh`: one command in a detached PTY. Its output is the result; how it ended is the state (SPEC 2)."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from celeriac.common.contract.messages import Draft, NewLine, Origin, text_block
from celeriac.common.contract.task import Outcome, Record, ShellSpec, State, Subtype
from celeriac.common.contract.tool_names import BASH
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.policy.decide import Allow, Ask, Subject
from celeriac.common.runtime.drive import keep
from celeriac.common.runtime.output import LiveOutput
from celeriac.common.runtime.resume import EFFECT_UNKNOWN
from celeriac.common.runtime.runner import Runner, policy_of
from celeriac.common.runtime.turn import EMPTY_MESSAGE_TEXT, inbox_blocks
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.types import ParkStatus
from celeriac.workers.shell.commands import Command, CommandNotStarted, Commands, command_environment
from celeriac.workers.shell.running import CommandResult, Running

MARK = "command"
"""The start mark of a shell task's command; it takes no messages after its end, so there is one run."""

CLOSED = f"its worker was shut down; {EFFECT_UNKNOWN}"


async def run_shell(runner: Runner, commands: Commands, lease: Lease, record: Record) -> None:
    """Run the command to its end, or say that it had started before and its effect is unknown."""
    with runner.holdings.hold(lease):
        output = LiveOutput(lease, record.activities)
        task = ShellTask(runner, commands, lease, record, output)
        await keep(lease, output, task.run)


@dataclass(slots=True)
class ShellTask:
    """One run of one command."""

    runner: Runner
    commands: Commands
    lease: Lease
    record: Record
    output: LiveOutput
    stdin: list[bytes] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command line, exactly as it was judged and will be run."""
        assert isinstance(self.record.spec, ShellSpec)
        return self.record.spec.command

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Judge, mark, run, finish. Raises LeaseLost."""
        await self.lease.renew()
        if self.lease.tlen == 0:
            await self._append(first=True)
        else:
            self.stdin = await self._former_input()
        if self.lease.node.aborted:
            await self._end_unstarted()
        elif (refusal := self._refusal()) is not None:
            await self._finish(_failed(refusal))
        else:  # from its mark on the command is this worker's to run: no other can
            with self.runner.holdings.grace(self.lease, self.runner.settings.worker.soft_shutdown_seconds):
                await self._run_once(group)

    async def _run_once(self, group: asyncio.TaskGroup) -> None:
        if await self._started_before():
            await self._finish(_failed(EFFECT_UNKNOWN))
        else:
            await self._execute(group)

    def _refusal(self) -> str | None:
        """Judged again at execution, under the task's mode (SPEC 2)."""
        root = Path(self.record.workspace.root) if self.record.workspace is not None else None
        subject = Subject(BASH, {"command": self.command}, read_only=False, workspace=root)
        decision = self.runner.permissions.decide(subject, policy_of(self.record, self.runner.settings))
        if isinstance(decision, Allow):
            return None
        return f"denied: {decision.question if isinstance(decision, Ask) else decision.reason}"

    async def _started_before(self) -> bool:
        """Whether a former owner started it; else the start is marked now."""
        marks = await self.runner.substrate.transcripts.marks(self.lease.task_id)
        if MARK in marks:
            return True
        await self.lease.draft(Draft(run=self.lease.run, turn=0, blocks=()), [MARK])
        return False

    async def _end_unstarted(self) -> None:
        """Stopped before the command started; a closing process hands the task over, for nothing has happened yet."""
        if self.lease.node.reason is AbortReason.SHUTDOWN and await self.lease.release() is ParkStatus.OK:
            return
        await self._finish(_stopped(None))

    async def _execute(self, group: asyncio.TaskGroup) -> None:
        if self.lease.node.aborted:
            await self._finish(self._aborted(None))
            return
        self.output.activity(f"{BASH}: {self.command}"[:80])
        try:
            result = await self._to_its_end(await self._start(), group)
        except CommandNotStarted as error:
            await self._finish(_failed(str(error)))
            return
        if self.lease.node.reason is not AbortReason.LEASE_LOST:
            await self._finish(self._outcome(result))

    async def _to_its_end(self, running: Running, group: asyncio.TaskGroup) -> CommandResult:
        typing = group.create_task(self._type(running), name=f"stdin of {self.lease.task_id}")
        try:
            return await running.wait()
        finally:
            typing.cancel()

    async def _start(self) -> Running:
        async def emit(text: str) -> None:
            self.output.printed(text)

        settings = self.runner.settings
        assert self.record.workspace is not None
        command = Command(
            text=self.command,
            cwd=Path(self.record.workspace.root),
            env=command_environment(settings.tool_environment()),
            timeout_s=None,  # the supervisor's deadline of the task ends it
            pty=True,
        )
        return await self.commands.start(command, task_id=self.lease.task_id, cancel=self.lease.node, emit=emit)

    async def _type(self, running: Running) -> None:
        """Messages become standard input, each after the append that consumed it."""
        await self._write(running, self.stdin)
        while True:
            await self.lease.changed()
            if self.lease.node.aborted:
                return
            if self.lease.unread:
                await self._write(running, await self._append())

    @staticmethod
    async def _write(running: Running, pieces: Sequence[bytes]) -> None:
        """What comes when the command has just ended is lost, as in any terminal."""
        with suppress(ConnectionError):
            for data in pieces:
                await running.write_stdin(data)

    async def _append(self, *, first: bool = False) -> list[bytes]:
        """Consume the inbox into one line; what is to be typed."""
        entries = await self.runner.substrate.inboxes.unread(self.lease.task_id)
        content = ((text_block(self.command),) if first else ()) + inbox_blocks(entries)
        origin = Origin.PROMPT if first else Origin.MESSAGE
        ids = tuple(entry.id for entry in entries)
        line = NewLine(run=self.lease.run, turn=0, role="user", content=content, origin=origin, inbox_ids=ids)
        await self.lease.append([line], consume=ids, progress=False)
        typed = [f"{entry.text}\n".encode() for entry in entries]
        if first:
            self.stdin = typed
        return typed

    async def _former_input(self) -> list[bytes]:
        """What a former owner consumed and had no command to type it into, if it never started one."""
        lines = await self.runner.substrate.transcripts.lines(self.lease.task_id)
        texts = [str(block["text"]) for line in lines for block in line.content][1:]  # the first is the command
        return [b"\n" if text == EMPTY_MESSAGE_TEXT else f"{text}\n".encode() for text in texts]

    def _outcome(self, result: CommandResult) -> Outcome:
        ended_first = self.lease.node.reason is AbortReason.SHUTDOWN and not result.cause
        if self.lease.node.aborted and not ended_first:
            return self._aborted(result)
        if result.cause == "lost":
            return _failed("the command's supervisor vanished; effect unknown", result.text)
        if result.signal is not None:
            return _failed(f"signal {result.signal}", result.text)
        if result.exit_code != 0:
            return _failed(f"exit {result.exit_code}", result.text)
        return Outcome(state=State.COMPLETED, subtype=Subtype.SUCCESS, text=result.text)

    def _aborted(self, result: CommandResult | None) -> Outcome:
        """A closing worker's command cannot go on elsewhere, and did not end in its grace; nobody asked for its
        stop."""
        if self.lease.node.reason is AbortReason.SHUTDOWN:
            return _failed(CLOSED, result.text if result is not None else None).model_copy(update={"partial": True})
        return _stopped(result)

    async def _finish(self, outcome: Outcome) -> None:
        """The output is the last line of the transcript and the result."""
        await self.output.flush()
        text = (outcome.text or "").strip()
        line = NewLine(
            run=self.lease.run, turn=1, role="assistant", content=(text_block(outcome.text or ""),), origin=Origin.TOOLS
        )
        await self.lease.finish(outcome, [line] if text else [])


def _failed(reason: str, text: str | None = None) -> Outcome:
    return Outcome(state=State.FAILED, subtype=Subtype.EXECUTION, reason=reason, text=text)


def _stopped(result: CommandResult | None) -> Outcome:
    text = result.text if result is not None else None
    return Outcome(state=State.STOPPED, subtype=Subtype.EXECUTION, reason="stopped", text=text, partial=True)
