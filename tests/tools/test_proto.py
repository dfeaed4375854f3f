"""What clients of the services rely on does not change, and what is generated is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sources import ROOT
from tools import proto

LAREDO = (ROOT / "tests/interfaces/laredo.txt").read_text().splitlines()


def test_no_call_field_or_value_has_changed() -> None:
    # A line that was recorded is a promise: `make proto` adds lines, and takes none away.
    assert proto.recorded() == sorted(proto.contract())


def test_laredos_calls_fields_and_values_are_among_ours_with_their_numbers() -> None:
    assert len(LAREDO) > 250
    assert set(LAREDO) - set(proto.contract()) == set()


def test_what_is_ours_begins_at_100_in_messages_of_laredo() -> None:
    theirs = {line.split(" ")[0] for line in LAREDO if line.split(" ")[1].isdecimal()}
    enums = {line.split(" ")[0] for line in LAREDO if line.split(" ")[2].isupper()}
    added = [
        line
        for line in set(proto.contract()) - set(LAREDO)
        if (words := line.split(" "))[0] in theirs - enums and int(words[1]) < 100
    ]
    assert added == []


def test_a_line_that_is_not_true_any_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As after renaming a field: the old name is recorded, and nothing has it.
    file = tmp_path / "contract.txt"
    lines = [*proto.recorded(), "GetStatusResponse 1 condition ServiceState"]
    file.write_text("\n".join(lines))
    monkeypatch.setattr(proto, "CONTRACT", file)
    monkeypatch.setattr(proto, "ROOT", tmp_path)
    monkeypatch.setattr(proto, "generated", lambda: iter(_there()))
    assert proto.main() == 1
    assert "GetStatusResponse 1 condition ServiceState" in capsys.readouterr().out
    assert file.read_text().splitlines() == lines
    file.write_text("\n".join(sorted(proto.contract())[1:]))
    assert proto.main() == 0
    assert file.read_text() == (ROOT / "proto/contract.txt").read_text()


def _there() -> list[tuple[Path, str]]:
    folder = ROOT / "src/headrace/v1"
    return [(path, path.read_text()) for path in folder.glob("*_pb2.py*")]


def test_the_generated_modules_are_those_of_the_proto_files() -> None:
    assert dict(proto.generated()) == dict(_there()), "run make proto"


def test_a_file_that_protoc_refuses_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.proto").write_text(
        'syntax = "proto3"; message A { string a = 1; int32 b = 1; }'
    )
    monkeypatch.setattr(proto, "PROTO", tmp_path)
    with pytest.raises(RuntimeError, match="protoc failed"):
        list(proto.generated())
    assert "already been used" in capfd.readouterr().err
