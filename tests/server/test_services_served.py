"""The services of a real engine over a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from headrace.v1 import oam_pb2, query_pb2
from tests.server.serving import OAM, QUERY, Served, enveloped, messages, served
from tests.support.patience import patience

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served"), compat="laredo") as found:
        yield found


def test_a_status_is_the_same_as_json_as_protobuf_and_over_grpc(here: Served) -> None:
    kind = {"content-type": "application/proto"}
    as_json = here.http.post(f"{OAM}GetStatus", json={}).json()
    as_proto = here.http.post(f"{OAM}GetStatus", content=b"", headers=kind).content
    theirs = here.http.post("/laredo.v1.LaredoOAMService/GetStatus", content=b"", headers=kind)
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        over_grpc = channel.unary_unary(f"{OAM}GetStatus")(b"", timeout=patience())
    found = [
        oam_pb2.GetStatusResponse.FromString(data) for data in (as_proto, theirs.content, over_grpc)
    ]
    assert {each.pipelines[0].pipeline_id for each in found} == {"orders"}
    rows = len(here.shop.truth())
    assert {each.pipelines[0].row_count for each in found} == {rows}
    assert as_json["pipelines"][0]["rowCount"] == str(rows)


def test_a_row_is_looked_up_over_both_ports(here: Served) -> None:
    asked = query_pb2.LookupRequest(table="orders")
    asked.key_values.add().number_value = 3
    answer = here.http.post(
        f"{QUERY}Lookup",
        content=asked.SerializeToString(),
        headers={"content-type": "application/proto"},
    )
    assert answer.status_code == 200, answer.text
    found = query_pb2.LookupResponse.FromString(answer.content)
    assert found.found
    assert found.row["status"] == "paid"
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        data = asked.SerializeToString()
        assert channel.unary_unary(f"{QUERY}Lookup")(data, timeout=patience()) == answer.content


def test_a_table_is_followed_after_its_rows(here: Served) -> None:
    body = enveloped(json.dumps({"table": "orders", "replayExisting": True}).encode())
    headers = {"content-type": "application/connect+json"}
    with here.http.stream("POST", f"{QUERY}Subscribe", content=body, headers=headers) as response:
        found = messages(response)
        seen: set[float] = set()
        while len(seen) < 10:
            seen.add(json.loads(next(found)[1])["newValues"]["id"])
        here.shop.insert(range(2000, 2001))
        while 2000 not in seen:
            seen.add(json.loads(next(found)[1])["newValues"]["id"])


def test_states_are_watched_as_they_change(here: Served) -> None:
    with grpc.insecure_channel(here.server.info.grpc) as channel:
        watch = channel.unary_stream(
            f"{OAM}WatchStatus", response_deserializer=oam_pb2.WatchStatusResponse.FromString
        )(b"", timeout=patience())
        states = (each.pipeline_state_change for each in watch)
        here.http.post(f"{OAM}PauseSync", json={"sourceId": "shop"}).raise_for_status()
        paused = oam_pb2.PIPELINE_STATE_PAUSED
        assert next(each for each in states if each.new_state == paused).pipeline_id == "orders"
        here.http.post(f"{OAM}ResumeSync", json={"sourceId": "shop"}).raise_for_status()
        watch.cancel()


def test_a_part_to_come_is_named(here: Served) -> None:
    answer = here.http.post(f"{OAM}CreateSnapshot", json={})
    assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")
    assert "snapshots" in answer.json()["message"]
