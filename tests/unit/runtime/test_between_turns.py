"""An abort between two turns: what the turn before stored is not stored again (SPEC 5, event 8)."""

from dataclasses import dataclass

import pytest

from celeriac.common.contract.task import State
from celeriac.common.lifetime.cancel import AbortReason
from celeriac.common.runtime.deps import NullCompactor
from celeriac.common.runtime.state import LoopState
from celeriac.common.substrate.leases import Lease
from celeriac.common.substrate.store import Substrate
from celeriac.common.testing.runs import Probe, Stage
from celeriac.common.testing.scripted import Scripted, says, tool_use


@dataclass
class Cut(NullCompactor):
    """Aborts before the model is asked for the second time."""

    lease: Lease
    reason: AbortReason

    async def before_turn(self, state: LoopState) -> LoopState:
        if state.turn_count == 1:
            self.lease.node.abort(self.reason)
        return state


@pytest.mark.parametrize("reason", [AbortReason.USER, AbortReason.SHUTDOWN])
async def test_an_abort_between_two_turns_stores_no_answer_twice(
    substrate: Substrate, bash: Probe, reason: AbortReason
) -> None:
    stage = Stage(substrate, [bash])
    record = await stage.create()
    lease = await stage.claim(record)
    stage.compactor = Cut(lease, reason)
    await stage.play(record, lease, [Scripted([tool_use("t1", "Bash", text="a")])])
    lines = await substrate.transcripts.lines(record.task_id)
    assert [line.role for line in lines] == ["user", "assistant", "user"]
    if reason is AbortReason.SHUTDOWN:
        stage.compactor = NullCompactor()
        await stage.play(record, await stage.claim(record), [says("done")])
        assert (await substrate.records.get(record.task_id)).state is State.COMPLETED
    assert bash.calls == ["a"]
