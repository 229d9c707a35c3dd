"""Scripts for tests: what the model answers in one job (INTERFACES, Replay), for replays and for the stand-in."""

import orjson

from celeriac.common.contract.json import JsonObject, JsonValue
from celeriac.common.contract.tool_names import AGENT_TOOL, SYNTHETIC_OUTPUT


def text(words: str) -> JsonObject:
    """A text block."""
    return {"type": "text", "text": words}


def call(name: str, **tool_input: JsonValue) -> JsonObject:
    """A tool_use block; its id is made from its place."""
    return {"type": "tool_use", "name": name, "input": tool_input}


def agent(prompt: str, description: str = "Do the work") -> JsonObject:
    """Dispatches an agent."""
    return call(AGENT_TOOL, kind="a", description=description, prompt=prompt)


def shell(command: str, description: str = "Run the command") -> JsonObject:
    """Dispatches a command."""
    return call(AGENT_TOOL, kind="sh", description=description, command=command)


def answer(result: str) -> JsonObject:
    """Gives the final answer."""
    return call(SYNTHETIC_OUTPUT, result=result)


def line(path: str, turn: int, *blocks: JsonObject, run: int = 1, **more: JsonValue) -> JsonObject:
    """The answer to one call; `more`: expect, pace_ms, hold, ….

    The default usage is 100 tokens in, 20 out.
    """
    usage: JsonObject = {"input_tokens": 100, "output_tokens": 20}
    reply: JsonObject = {"content": list(blocks), "usage": usage}
    return {"path": path, "run": run, "turn": turn, "reply": reply, **more}


def script(*lines: JsonObject) -> str:
    """The whole file."""
    header: JsonObject = {"v": 1, "job": {"prompt": "Do it."}}
    return "".join(orjson.dumps(each).decode() + "\n" for each in (header, *lines))
