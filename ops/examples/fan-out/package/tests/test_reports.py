from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_has_a_report() -> None:
    modules = {file.stem for file in (ROOT / "depot").glob("[a-z]*.py")}
    reports = {file.stem: file.read_text().splitlines() for file in (ROOT / "report").glob("*.md")}
    assert len(modules) == 8
    assert {name: lines[0] for name, lines in reports.items()} == {name: f"# depot/{name}.py" for name in modules}
    assert all(lines[2].strip() for lines in reports.values())
