"""Rules between messages: order, pairs of tool calls and results, thinking, the end of the conversation. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.llm.sse_script import SIGNATURE_PREFIX, sign
from celeriac.ops.standin.blocks import check_content
from celeriac.ops.standin.verdict import Context, Refusal, need_field, need_list, need_object, need_text, only

_THINKING = frozenset({"thinking", "redacted_thinking"})


@dataclass(frozen=True, slots=True)
class Turn:
    """Neighbouring messages of one role: the API combines them."""

    role: str
    place: str
    """Of its first message."""
    messages: tuple[tuple[JsonObject, ...], ...]
    """The blocks of each message."""

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """All blocks in order."""
        return tuple(block for message in self.messages for block in message)

    def of_type(self, kind: str) -> list[JsonObject]:
        """Its blocks of this type."""
        return [block for block in self.blocks if block["type"] == kind]


def check_messages(body: JsonObject, context: Context) -> list[Turn]:
    """Check every message by itself; returns the combined turns. Raises Refusal."""
    messages = need_list(need_field(body, "messages", "body"), "messages")
    if not messages:
        raise Refusal("messages: at least one message is required")
    turns: list[Turn] = []
    for index, raw in enumerate(messages):
        place = f"messages.{index}"
        message = need_object(raw, place)
        role = _role(message, place, context, first=index == 0)
        content = need_field(message, "content", place)
        if role == "assistant" and index == len(messages) - 1 and content in ("", []):
            context.warnings.append(
                f"{place}: an empty final assistant message is a prefill, which newer models refuse"
            )
        else:
            check_content(content, role, f"{place}.content", context)
        blocks = _blocks(content)
        if turns and turns[-1].role == role:
            turns[-1] = Turn(role, turns[-1].place, (*turns[-1].messages, blocks))
        else:
            turns.append(Turn(role, place, (blocks,)))
    return turns


def _role(message: JsonObject, place: str, context: Context, *, first: bool) -> str:
    role = need_text(message, "role", place)
    only(message, frozenset({"role", "content"}), place)
    if role not in {"user", "assistant", "system"}:
        raise Refusal(f"{place}.role: Input should be 'user' or 'assistant'")
    if first and role == "system":
        raise Refusal(f"{place}.role: use the top-level `system` parameter for the initial system prompt")
    if first and role != "user":
        raise Refusal("messages: first message must use the user role")
    if role == "system":
        context.warnings.append(f"{place}.role: only newer models take system messages inside a conversation")
    return role


def _blocks(content: JsonValue) -> tuple[JsonObject, ...]:
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content else ()
    return tuple(block for block in content if isinstance(block, dict)) if isinstance(content, list) else ()


def check_pairs(turns: list[Turn], context: Context, *, tools: bool) -> None:
    """Every call is answered once, in the next user message, before any other content. Raises Refusal."""
    seen: set[str] = set()
    for position, turn in enumerate(turns):
        calls = [str(block["id"]) for block in turn.of_type("tool_use")]
        for call in calls:
            if call in seen:
                raise Refusal(f"{turn.place}: `tool_use` ids must be unique ({call})")
            seen.add(call)
        following = turns[position + 1] if position + 1 < len(turns) else None
        _check_answers(turn, calls, following)
        before = turns[position - 1] if position else None
        _check_results(turn, before, context)
    if not tools and any(turn.of_type("tool_use") or turn.of_type("tool_result") for turn in turns):
        context.warnings.append("tools: there are tool blocks but no tools are defined; some endpoints refuse it")


def _check_answers(turn: Turn, calls: list[str], following: Turn | None) -> None:
    answers = [] if following is None else [str(block["tool_use_id"]) for block in following.of_type("tool_result")]
    missing = [call for call in calls if call not in answers]
    if missing:
        raise Refusal(
            f"{turn.place}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block "
            "in the next message."
        )


def _check_results(turn: Turn, before: Turn | None, context: Context) -> None:
    results = [str(block["tool_use_id"]) for block in turn.of_type("tool_result")]
    if not results:
        return
    calls = {block["id"] for block in before.of_type("tool_use")} if before is not None else set()
    for result, count in Counter(results).items():
        if result not in calls:
            raise Refusal(
                f"{turn.place}: unexpected `tool_use_id` found in `tool_result` blocks: {result}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if count > 1:
            raise Refusal(
                f"{turn.place}: each tool_use must have a single result. Found multiple `tool_result` blocks: {result}"
            )
    if any(block["type"] != "tool_result" for block in turn.blocks[: len(results)]):
        raise Refusal(f"{turn.place}: `tool_result` blocks must come first in the content, before any other block")
    if any(block["type"] == "tool_result" for message in turn.messages[1:] for block in message):
        context.warnings.append(
            f"{turn.place}: results of one turn stand in several messages; some endpoints refuse it"
        )


def check_end(turns: list[Turn], context: Context) -> None:
    """The last message is the user's; a prefill is taken by older models only. Raises Refusal."""
    last = turns[-1]
    if last.role != "assistant":
        return
    context.warnings.append(f"{last.place}: ends with an assistant message (prefill), which newer models refuse")
    final = last.blocks[-1] if last.blocks else None
    if final is not None and final["type"] == "text" and str(final["text"])[-1:].isspace():
        raise Refusal("messages: final assistant content cannot end with trailing whitespace")


def check_thoughts(turns: list[Turn], context: Context, *, mode: str) -> None:
    """Thinking stays with its turn, unchanged. `mode` is the type of the thinking parameter. Raises Refusal."""
    last = turns[-1]
    if last.role == "assistant":
        _check_final_assistant(last, mode)
    running = list(_running_turn(turns))
    begins = running[0].blocks if running else ()
    in_loop = last.role == "user" and bool(last.of_type("tool_result"))
    if mode == "enabled" and in_loop and begins and begins[0]["type"] not in _THINKING:
        raise Refusal(
            f"{running[0].place}.content.0.type: Expected `thinking` or `redacted_thinking`, "
            f"but found `{begins[0]['type']}`. "
            "When `thinking` is enabled, the assistant turn of a running tool loop must start with a thinking block."
        )
    latest = [turn for turn in turns if turn.role == "assistant"][-1:]
    for turn in [*running, *latest]:
        for block in turn.of_type("thinking"):
            _check_signature(block, turn.place, context)


def _check_final_assistant(last: Turn, mode: str) -> None:
    if mode == "disabled" and any(block["type"] in _THINKING for block in last.blocks):
        raise Refusal(
            f"{last.place}: an assistant message in the final position cannot contain thinking while it is off"
        )
    if last.blocks and last.blocks[-1]["type"] in _THINKING:
        raise Refusal(f"{last.place}: The final block in an assistant message cannot be `thinking`")
    if mode == "enabled" and last.blocks and last.blocks[0]["type"] not in _THINKING:
        raise Refusal(
            f"{last.place}.content.0.type: Expected `thinking` or `redacted_thinking`, as thinking is enabled"
        )


def _running_turn(turns: list[Turn]) -> Iterator[Turn]:
    """The assistant's part since the last user message that is not only an answer to calls."""
    asked = [number for number, turn in enumerate(turns) if turn.role == "user" and not turn.of_type("tool_result")]
    start = asked[-1] if asked else 0
    return (turn for turn in turns[start:] if turn.role == "assistant")


def _check_signature(block: JsonObject, place: str, context: Context) -> None:
    signature, thinking = str(block["signature"]), str(block["thinking"])
    ours = signature.startswith(SIGNATURE_PREFIX) and len(signature) == len(sign(""))
    known = signature in context.signatures
    if (known and context.signatures[signature] != thinking) or (ours and not known and sign(thinking) != signature):
        raise Refusal(
            f"{place}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
            "These blocks must remain as they were in the original response."
        )
