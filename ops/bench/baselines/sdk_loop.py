"""A plain agent as the SDK's documentation writes it: stream helper, its blocks as the history, one tool, Read.

Arguments: `URL SESSION PATH TURNS FILE`.
Each answer is a text and a call of Read; after TURNS of them the answer has no call.
"""

import sys
from pathlib import Path

import anthropic

TOOL: anthropic.types.ToolParam = {
    "name": "Read",
    "description": "Read a text file.",
    "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]},
}


def read(path: str) -> str:
    """The file with line numbers."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(lines, start=1))


def main(url: str, session: str, path: str, turns: int, file: str) -> None:
    """Run it."""
    client = anthropic.Anthropic(api_key="test-key", base_url=url, max_retries=0)
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Go."}]
    for turn in range(1, turns + 2):
        headers = {"X-Celeriac-Session": session, "X-Celeriac-Call": f"{path};1;{turn};1"}
        with client.messages.stream(
            model="claude-sonnet-5-5", max_tokens=8000, tools=[TOOL], messages=messages, extra_headers=headers
        ) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return
        messages.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": read(file)} for call in calls],
            }
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
