"""An engine on the network: one child, both protocols, real requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.v1 import oam_pb2
from tests.server.serving import OAM, Served, served

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def test_a_verb_of_the_command_line_is_answered_over_http(here: Served) -> None:
    found = here.ask("Status")
    assert [each["name"] for each in found["pipelines"]] == ["orders"]
    assert found["server"]["state"] == "serving"


def test_a_status_is_the_same_as_json_and_as_protobuf(here: Served) -> None:
    as_json = here.http.post(f"{OAM}GetStatus", json={})
    assert as_json.status_code == 200, as_json.text
    as_proto = here.http.post(
        f"{OAM}GetStatus", content=b"", headers={"content-type": "application/proto"}
    )
    assert as_proto.headers["content-type"] == "application/proto"
    status = oam_pb2.GetStatusResponse.FromString(as_proto.content)
    assert [each["pipelineId"] for each in as_json.json()["pipelines"]] == [
        each.pipeline_id for each in status.pipelines
    ]
