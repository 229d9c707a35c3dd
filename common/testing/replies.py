"""Scripts for the stand-in and for replay, written as a test reads."""

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue

_USAGE: JsonObject = {"input_tokens": 100, "output_tokens": 20}


def say(text: str) -> JsonObject:
    """A text block."""
    return {"type": "text", "text": text}


def use(tool: str, **tool_input: JsonValue) -> JsonObject:
    """A tool_use block."""
    return {"type": "tool_use", "name": tool, "input": tool_input}


def dispatch(kind: str, **tool_input: JsonValue) -> JsonObject:
    """An AgentTool block."""
    return use("AgentTool", **{"kind": kind, "description": f"A task of kind {kind}", **tool_input})


def answer(result: str) -> JsonObject:
    """A SyntheticOutput that ends the run."""
    return use("SyntheticOutput", result=result)


def reply(path: str, turn: int, *blocks: JsonObject, run: int = 1, **more: JsonValue) -> JsonObject:
    """One answer; `more`: expect, hold, pace_ms, repeat."""
    asks = any(block["type"] == "tool_use" for block in blocks)
    answer: JsonObject = {
        "content": list(blocks),
        "stop_reason": "tool_use" if asks else "end_turn",
        "usage": dict(_USAGE),
    }
    return {"path": path, "run": run, "turn": turn, "fp": None, "reply": answer, **more}


def script(*lines: JsonObject, **job: JsonValue) -> str:
    """The whole file; `job`: prompt, mode, allowed_tools, limits."""
    header: JsonObject = {"v": 1, "job": {"prompt": "Do it.", **job}}
    return "".join(orjson.dumps(line).decode() + "\n" for line in (header, *lines))
