"""Every verb for an engine on the network says and does the same as on its own machine."""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.api.connect import envelope
from headrace.api.handlers import Apply, ControlService, Verb, _Records
from headrace.api.server import serve
from headrace.cli import main, status
from headrace.cli.connection import EngineChoice
from headrace.engine.engine import Engine
from headrace.errors import StorageError, Unreachable
from headrace.storage.records import MemoryRecords
from headrace.targets.memory import memory
from tests.interfaces.at_work import printed
from tests.interfaces.network_front import Front, answering, front, served_with
from tests.server.certificates import Authority
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import Market, await_that

TOKEN = "t0ken-of-nobody"

_AGE = re.compile(r"[ (]+\d+ (s|min)\b")


@dataclass(frozen=True)
class Bench:
    """An engine with two dead letters, and where it is reached."""

    engine: Engine
    data: Path
    service: ControlService
    front: Front

    def ran(
        self, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], *arguments: str
    ) -> tuple[int, str, str]:
        """Run a command; in what it prints, neither its engine nor an age makes a difference."""
        code, *texts = printed(capsys, *arguments, *options)
        out, err = (_AGE.sub(" AGE", text.replace(" ".join(options), "ENGINE")) for text in texts)
        return code, out, err


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    market = Market(tmp_path_factory.mktemp("market"))
    orders = memory(indexes={"by_status": ["status"]}, lookup=["id"])
    runner = ArrowRunner(fails=lambda _, row: "BROKEN" if row["status"] == "bad" else None)
    with market.engine(market.pipeline(orders, name="orders"), runner=runner) as engine:
        assert engine.await_ready(patience())
        market.put("orders", 2, status="bad")
        market.put("orders", 3, status="bad", version=1)
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        with serve(engine, market.data, service="shop") as serving:
            service = serving.service
            service.unary["Apply"] = Verb(Apply, planned)
            with front(service) as served:
                yield Bench(engine, market.data, service, served)


def planned(asked: Apply) -> dict[str, Any]:
    """Answer as an engine whose configuration has a new pipeline."""
    step = {"kind": "add", "what": "pipelines.new", "keys": [], "brings": "loads its tables"}
    done = {"done": asked.plan == "p1", "in_error": []}
    return {"plan": "p1", "config": "/etc/headrace.conf", "steps": [step], "now": True, **done}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in a folder, and for a user, without any configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HEADRACE_ADDRESS", "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def write_profiles(text: str, mode: int = 0o600) -> Path:
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "headrace" / "profiles.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


# --- the same words and tables --------------------------------------------------------------------

POSITION = "POSITION"

SAME = [
    "query orders",
    "query orders --all --json",
    "query orders --count",
    "query orders --key 1",
    "query orders --key 99",
    "query orders --index by_status paid --limit 2 --table orders",
    "query orders --lookup 4 --json",
    "query order",
    "schema orders",
    "schema orders --table orders --json",
    "schema orders --table bills",
    "watch orders --rows --limit 3",
    "explain orders",
    "pause orders --json",
    "pause --source shop",
    "resume orders",
    "resume --all --json",
    "reload orders --table orders --wait 60s --json",
    "reset shop --dry-run",
    "reset nothing --dry-run",
    "apply --dry-run",
    "health --live --startup",
    "dead-letters list",
    "dead-letters list orders --table orders --all --json",
    f"dead-letters list orders --after {POSITION} --limit 1",
    "dead-letters list --table bills",
    f"dead-letters show {POSITION}",
    f"dead-letters show {POSITION} --pipeline orders --json",
    "dead-letters show 0001-00000000000004b4-00000000",
    "dead-letters summary",
    "dead-letters summary orders --json",
    "dead-letters purge orders --dry-run",
    "dead-letters purge orders --code OTHER --json",
    "dead-letters purge orders --table bills --dry-run",
    "dead-letters replay orders --dry-run",
    f"dead-letters edit orders {POSITION} --value status=paid --dry-run --json",
]


@pytest.mark.parametrize("line", SAME)
def test_a_verb_says_the_same_wherever_its_engine_is(
    bench: Bench, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.engine.resume()
    assert bench.engine.await_ready(patience())
    first = bench.engine.dead_letters()[0]
    words = line.replace(POSITION, str(first.position)).split()
    write_profiles(f'bench.address = "{bench.front.address}"')
    here = bench.ran(capsys, ("--data", str(bench.data)), *words)
    asked = len(bench.front.asked)
    there = bench.ran(capsys, ("--address", bench.front.address), *words)
    assert there == here
    assert len(bench.front.asked) > asked
    assert bench.ran(capsys, ("--profile", "bench"), *words) == here
    assert "".join(here[1:])


def test_a_pipeline_that_the_engine_does_not_have_is_named(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--address", bench.front.address)
    for verb in ("list", "summary"):
        code, _, err = printed(capsys, "dead-letters", verb, "order", *options)
        assert (code, "There is no pipeline order" in err) == (2, True)


@pytest.mark.parametrize(
    "line", ["status --json", "top --once --json", "metrics --json", "metrics --compat"]
)
def test_what_changes_with_time_comes_from_the_same_engine(
    bench: Bench, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profiles(f'bench.address = "{bench.front.address}"')
    for options in (("--address", bench.front.address), ("--profile", "bench")):
        code, out, err = printed(capsys, *line.split(), *options)
        assert (code, err) == (0, "")
        assert "orders" in out
        if "--json" in line:
            assert json.loads(out)


def test_a_status_suggests_commands_for_the_same_engine(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--address", bench.front.address)
    code, out, err = printed(capsys, "status", "-v", "--wait", f"{patience():.0f}s", *options)
    assert (code, err) == (0, "")
    assert f"headrace dead-letters list orders --address {bench.front.address}" in out


def test_a_wait_goes_on_until_the_engine_is_reached() -> None:
    answers: Iterator[Any] = iter([Unreachable("nothing accepts connections"), {"ready": True}])

    def asked() -> dict[str, Any]:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    assert status._awaited(asked, patience()) == {"ready": True}


def test_a_watch_whose_connection_breaks_does_not_say_that_the_engine_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\n\r\n"
    with answering(head + envelope({"ready": True})) as address:
        code, out, err = printed(capsys, "watch", "orders", "--rows", "--address", address)
    assert (code, out) == (3, "")
    assert err.startswith(f"The engine at {address} stopped, or the connection broke")


def test_a_purge_on_the_network_is_the_engines(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    # None is that old.
    words = ("purge", "orders", "--before", "-1h", "--yes", "--json", "--note", "old")
    options = ("--address", bench.front.address)
    code, out, _ = printed(capsys, "dead-letters", *words, *options)
    assert (code, json.loads(out)["tables"]) == (0, [])
    assert "PurgeDeadLetters" in bench.front.verbs
    assert len(bench.engine.dead_letters()) == 2


class Merged(MemoryRecords):
    """Records of which one is listed and gone; with `again`, it is in a new one the next time."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.create(1, b"one")
        self._again = again
        self._listed = 0

    def numbers(self) -> list[int]:
        self._listed += 1
        if self._again and self._listed == 2:
            self.create(3, b"two and three")
        found = super().numbers()
        return found if 3 in found else [*found, 2]


def test_dead_letters_that_are_merged_while_they_are_sent_are_all_sent() -> None:
    sent = [(each["number"], b64decode(each["data"])) for each in _Records(Merged(again=True))]
    assert sent == [(1, b"one"), (3, b"two and three")]
    with pytest.raises(StorageError, match="cannot be read"):
        list(_Records(Merged(again=False)))


# --- what destroys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("reset shop", "Reset source shop"),
        ("apply", "Apply these changes"),
        ("dead-letters purge orders", "Purge them"),
    ],
)
def test_what_destroys_names_the_engine_and_asks(
    bench: Bench,
    line: str,
    question: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def refuse(text: str, default: bool) -> bool:
        asked.append(text)
        return default

    monkeypatch.setattr("click.confirm", refuse)
    monkeypatch.setenv("HEADRACE_ADDRESS", bench.front.address)
    code, _, err = printed(capsys, *line.split())
    assert (code, err) == (0, "")
    assert asked == [f"{question} at {bench.front.address}?"]
    assert len(bench.engine.dead_letters()) == 2


def test_a_change_that_is_confirmed_is_made(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    address = bench.front.address
    code, out, err = printed(capsys, "apply", "--yes", "--address", address)
    assert (code, out.splitlines()[-1]) == (0, "✓ applied")
    assert f"headrace status --address {address}" in err


# --- which engine ---------------------------------------------------------------------------------


def test_the_options_of_the_command_win_over_the_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_ADDRESS", bench.front.address)
    asked = len(bench.front.asked)
    assert printed(capsys, "status", "--data", str(bench.data))[0] == 0
    assert len(bench.front.asked) == asked
    assert printed(capsys, "status")[0] == 0
    assert len(bench.front.asked) == asked + 1
    code, _, err = printed(capsys, "status", "--address", "127.0.0.1:1")
    assert (code, "http://127.0.0.1:1 was not reached" in err) == (4, True)


def test_an_engine_may_be_named_before_the_command(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profiles(f'bench.address = "{bench.front.address}"')
    for options in (("--address", bench.front.address), ("--profile", "bench")):
        assert printed(capsys, *options, "query", "orders", "--count")[0] == 0
        code, _, err = printed(capsys, *options, "status", *options)
        assert (code, "Name the engine once" in err) == (2, True)


@pytest.mark.parametrize("named", ["--address", "HEADRACE_ADDRESS"])
def test_an_address_may_be_the_name_of_a_profile(
    bench: Bench,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_profiles(f'bench.address = "{bench.front.address}"')
    options = ("--address", "bench") if named == "--address" else ()
    monkeypatch.setenv("HEADRACE_ADDRESS", "bench")
    assert printed(capsys, "health", *options)[0] == 0


@pytest.mark.parametrize("option", ["--address", "--profile"])
def test_an_empty_address_is_a_mistake_and_not_this_machine(
    bench: Bench,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "headrace-data").symlink_to(bench.data)
    assert printed(capsys, "status")[0] == 0
    for line in (["status", option, ""], [option, "", "status"]):
        assert printed(capsys, *line)[0] == 2
    # A variable that is set and empty is not set: it is how one is switched off.
    monkeypatch.setenv("HEADRACE_ADDRESS", "")
    assert printed(capsys, "status")[0] == 0


@pytest.mark.parametrize("first", ["--address", "--profile"])
@pytest.mark.parametrize("second", ["--data x", "--config x", "--set data=x", "--profile x"])
def test_an_engine_is_named_in_one_way(
    first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if second.startswith(first):
        return
    code, _, err = printed(capsys, "status", first, "x", *second.split())
    assert (code, "cannot be combined with" in err) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "init",
        "doctor",
        "log",
        "log read shop orders",
        "replay orders --into memory",
        "sqlite readers x.db",
        "validate",
        "teardown shop",
    ],
)
def test_a_command_that_needs_this_machine_refuses_an_address_by_name(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    for line in (["--address", "x", *words], [*words, "--address", "x"]):
        code, out, err = printed(capsys, *line)
        assert (code, out) == (2, "")
        said = " ".join(err.split())
        assert f"headrace {words[0]}" in said
        assert "works with this machine" in said
        assert "takes no --address" in said


@pytest.mark.parametrize("command", ["log", "log read shop orders"])
def test_local_files_are_not_read_for_an_engine_on_the_network(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_ADDRESS", "engine.example.com")
    code, _, err = printed(capsys, *command.split())
    assert (code, "HEADRACE_ADDRESS names an engine" in " ".join(err.split())) == (2, True)
    code, _, err = printed(capsys, *command.split(), "--data", "nowhere")
    assert "HEADRACE_ADDRESS" not in err


def test_completion_does_not_wait_for_a_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bench: Bench
) -> None:
    monkeypatch.setenv("_HEADRACE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"headrace query --address {bench.front.address} or")
    monkeypatch.setenv("COMP_CWORD", "4")
    asked = len(bench.front.asked)
    with pytest.raises(SystemExit):
        main.exit_code([])
    assert capsys.readouterr().out.strip() == ""
    assert len(bench.front.asked) == asked


# --- tokens and profiles --------------------------------------------------------------------------


@pytest.fixture
def guarded(bench: Bench) -> Iterator[Front]:
    """The same engine, for those who have a token."""
    with front(bench.service, tokens={TOKEN: "admin", "reader": "read"}) as served:
        yield served


def test_a_token_comes_from_a_variable_or_from_a_file(
    guarded: Front,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ("status", "--address", guarded.address)
    code, _, err = printed(capsys, *line)
    assert (code, "serving.unauthenticated" in err) == (5, True)
    monkeypatch.setenv("HEADRACE_TOKEN", TOKEN)
    assert printed(capsys, *line)[0] == 0
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(tmp_path / "token"))
    code, _, err = printed(capsys, *line)
    assert (code, "are both set" in err) == (2, True)
    monkeypatch.setenv("HEADRACE_TOKEN", "")
    assert printed(capsys, *line)[0] == 0
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(tmp_path / "nothing"))
    code, _, err = printed(capsys, *line)
    assert (code, "config.no_secret" in err) == (2, True)


def test_a_role_that_is_not_enough_is_refused_with_exit_code_5(
    guarded: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "reader")
    assert printed(capsys, "status", "--address", guarded.address)[0] == 0
    code, _, err = printed(capsys, "pause", "orders", "--address", guarded.address)
    assert (code, "Pause needs the role operate" in err) == (5, True)


def test_the_token_of_a_profile_goes_to_its_engine_only(
    guarded: Front,
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_profiles(
        f'guarded {{ address = "{guarded.address}", token = "env:MINE" }}\n'
        f'open {{ address = "{bench.front.address}" }}'
    )
    monkeypatch.setenv("MINE", TOKEN)
    # That of the profile counts: the variable may be meant for another engine.
    monkeypatch.setenv("HEADRACE_TOKEN", "another")
    assert printed(capsys, "status", "--profile", "guarded")[0] == 0
    monkeypatch.delenv("HEADRACE_TOKEN")
    assert printed(capsys, "status", "--profile", "open")[0] == 0
    assert "Authorization" not in bench.front.asked[-1][1]
    monkeypatch.delenv("MINE")
    code, _, err = printed(capsys, "status", "--profile", "guarded")
    assert (code, "env:MINE" in err) == (2, True)


def test_a_profile_has_all_that_tls_needs(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    context = served_with(authority.sign("engine"), clients=authority.cert)
    mine = authority.sign("me", client=True)
    with front(bench.service, context, tokens={TOKEN: "admin"}) as served:
        write_profiles(
            f'tls {{ address = "https://localhost:{served.port}", token = {TOKEN}, '
            f'ca = "{authority.cert}", certificate = "{mine.cert}", key = "{mine.key}" }}'
        )
        assert printed(capsys, "status", "--profile", "tls")[0] == 0
        code, out, _ = printed(
            capsys, "watch", "orders", "--rows", "--limit", "2", "--profile", "tls"
        )
        assert (code, len(out.splitlines())) == (0, 2)
        code, _, err = printed(capsys, "status", "--address", f"https://localhost:{served.port}")
        assert (code, "control.not_trusted" in err) == (4, True)


def test_profiles_are_listed_without_their_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "profiles")
    assert (code, out.startswith("No profiles.")) == (0, True)
    file = write_profiles(
        f"eu {{ address = eu.example.com, token = {TOKEN}, ca = authority.pem }}\n"
        'us { address = "https://us.example.com:443", token = "file:~/us.token" }'
    )
    code, out, err = printed(capsys, "profiles")
    assert (code, err) == (0, "")
    head, eu, us = (line.split() for line in out.splitlines())
    assert head == ["PROFILE", "ADDRESS", "TOKEN", "CA", "CERTIFICATE"]
    ca = str(file.parent / "authority.pem")
    assert eu == ["eu", "https://eu.example.com:4080", "***", ca, "-"]
    assert us == ["us", "https://us.example.com:443", "file:~/us.token", "-", "-"]
    code, out, err = printed(capsys, "profiles", "--json")
    assert [json.loads(line)["profile"] for line in out.splitlines()] == ["eu", "us"]
    assert TOKEN not in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eu { address = host, tokn = x }", "Did you mean token?"),
        ("eu { token = x }", "eu.address is missing"),
        ("eu { address = 'two words' }", "eu.address is wrong"),
        ("eu = host", "must be a section"),
        ("eu { address = host, key = x }", "eu.certificate is missing"),
        ("eu {", "profiles.conf:1"),
    ],
)
def test_a_mistake_in_the_profiles_is_told_with_its_place(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profiles(text.replace("'", '"'))
    for line in (("profiles",), ("status", "--profile", "eu"), ("status", "--address", "eu")):
        code, _, err = printed(capsys, *line)
        assert (code, said in " ".join(err.split())) == (2, True), err


def test_a_profile_that_is_not_there_is_told_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_profiles("eu { address = host }")
    code, _, err = printed(capsys, "status", "--profile", "us")
    said = " ".join(err.split())
    assert (code, "There is no profile us" in said, "Use one of eu" in said) == (2, True, True)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_token_in_a_file_that_others_can_read_is_refused(
    mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profiles(f"eu {{ address = host, token = {TOKEN} }}", mode)
    code, _, err = printed(capsys, "profiles")
    assert (code, "chmod 600" in err, TOKEN in err) == (2, True, False)
    # A reference is no secret.
    write_profiles('eu { address = host, token = "env:X" }', mode)
    assert printed(capsys, "profiles")[0] == 0


def test_nothing_shows_the_token_of_a_profile() -> None:
    from headrace.cli.profiles import profile_named

    write_profiles(f"eu {{ address = host, token = {TOKEN} }}")
    found = profile_named("eu")
    assert found.secret() == TOKEN
    assert TOKEN not in repr(found)
    assert TOKEN not in repr(EngineChoice(profile="eu"))
