import re
from pathlib import Path

import pytest

from celeriac.common.contract import ids
from celeriac.common.contract.errors import ScriptRefused
from celeriac.common.contract.kinds import Kind
from celeriac.common.substrate.keys import Keys
from celeriac.common.substrate.scripts import FOLDER, ScriptLibrary, packaged

SCRIPTS = [name for name in packaged().names() if not name.endswith("_session")]


def test_every_operation_of_the_protocol_has_a_script() -> None:
    expected = {
        *("create", "mark_queued", "emit", "claim", "renew", "append", "draft", "tool_done", "finish", "park"),
        *("send_message", "request_stop", "settle_stop", "resend", "seal", "list_session", "unlist_session"),
        *("ask", "answer"),
    }
    assert set(packaged().names()) == expected


@pytest.mark.parametrize("name", packaged().names())
def test_a_script_uses_cjson_only_and_never_an_undeclared_key(name: str) -> None:
    text = packaged()[name].text
    assert "cmsgpack" not in text
    calls = re.findall(r"redis\.call\(\s*'[A-Z]+'\s*,?\s*([^,)]*)", text)
    assert calls
    allowed = re.compile(r"(K\.\w+|KEYS\[\d\]|key|inbox|ancestors\[i\]|r\.key|)")
    assert [key for key in calls if not allowed.fullmatch(key.strip())] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_shared_pieces_stand_before_the_script_once(name: str) -> None:
    text = packaged()[name].text
    pieces = (FOLDER / f"{name}.lua").read_text().partition("\n")[0].removeprefix("-- uses:").split()
    assert pieces[0] == "base"
    for piece in pieces:
        assert text.count((FOLDER / "lib" / f"{piece}.lua").read_text()) == 1


def test_a_mutation_must_change_exactly_one_place(tmp_path: Path) -> None:
    mutated = ScriptLibrary.mutated(("lib/ownership", "r.owner == token", "true"))
    assert mutated["renew"].sha != packaged()["renew"].sha
    assert mutated["create"].sha != packaged()["create"].sha
    assert mutated["seal"].sha == packaged()["seal"].sha
    with pytest.raises(ScriptRefused):
        ScriptLibrary.mutated(("claim", "no such text", ""))
    (tmp_path / "one.lua").write_text("return 1")
    assert ScriptLibrary.load(tmp_path).names() == ("one",)


def test_all_keys_of_a_session_share_its_hash_tag_and_the_prefix() -> None:
    session = ids.new_session()
    agent = ids.child(session, Kind.AGENT, "t")
    shell = ids.child(agent, Kind.SHELL, "t")
    keys = Keys("p:").script(shell, (agent, session), session)
    assert len(set(keys)) == 17  # the session is grandparent and sender
    tag = ids.session_key(session)
    assert all(key.startswith(f"p:c:{{{tag}}}:") for key in keys)
    assert keys[0] == f"p:c:{{{tag}}}:t:{shell}"
    assert keys[14] == f"p:c:{{{tag}}}:t:{agent}"
    lone = Keys().script(session, ())
    assert [key for key in lone if key.endswith(":-")] == [
        f"c:{{{tag}}}:t:-",
        f"c:{{{tag}}}:in:-",
        f"c:{{{tag}}}:t:-",
        f"c:{{{tag}}}:t:-",
    ]
