"""The calls on the page about queries, as a client makes them, and the answers that it shows."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from headrace.api.methods import METHODS
from headrace.changelog.position import Position
from headrace.changelog.values import ValueType
from headrace.targets.target import Batch
from headrace.v1 import query_pb2 as v1
from tests.interfaces.test_queries import ME, OURS, Front
from tests.tables.build import UPDATE, changes, table_schema

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "query-service.md"

ORDERS = table_schema(
    id="int64", customer_id="int64", email="text", amount=ValueType("decimal", 38, 2)
)
ROWS: list[dict[str, object]] = [
    {"id": 1, "customer_id": 7, "email": "a@example.org", "amount": Decimal("3.00")},
    {"id": 2, "customer_id": 7, "email": "b@example.org", "amount": Decimal("12.50")},
    {"id": 3, "customer_id": 8, "email": None, "amount": Decimal("99999999999999999999.01")},
]


def test_the_calls_on_the_page_have_the_answers_that_it_shows() -> None:
    front = shop()
    found = re.findall(
        r"```sh\ncurl -s \S+(/headrace\S+).*?-d '(.*?)'\n```\n\n```json\n(.*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
    assert len(found) == 5
    for path, body, shown in found:
        method = METHODS[path]
        assert method.request is not None
        assert method.response is not None
        request = ParseDict(json.loads(body), method.request())
        answer = front.services.call(path, request.SerializeToString(), ME)
        assert plain(method.response.FromString(answer)) == json.loads(shown), path


def test_the_message_of_a_stream_on_the_page_is_one_that_a_subscriber_gets() -> None:
    front = shop()
    text = PAGE.read_text()
    asked = re.search(r"here `(\{.*?\})`", text)
    shown = re.search(r"```json\n(\{\s+\"action\".*?)```", text, re.DOTALL)
    assert asked is not None
    assert shown is not None
    request = ParseDict(json.loads(asked[1]), v1.SubscribeRequest())
    stream = front.services.stream(f"{OURS}Subscribe", request.SerializeToString(), ME)
    at = Position(1, 2)
    step = (UPDATE, at, {**ROWS[1], "amount": Decimal("13.00")})
    when = datetime(2026, 11, 15, 10, tzinfo=UTC)
    rows = changes(ORDERS, [step]).set_column(3, "_time", [[when]])
    front.targets["orders"].write(Batch("2", 1, at, at, {"orders": rows}))
    messages = iter(stream)
    received = [v1.SubscribeResponse.FromString(next(messages)) for _ in range(4)]
    stream.close()
    assert [each.existing for each in received] == [True, True, True, False]
    assert plain(received[3]) == json.loads(shown[1])


def shop() -> Front:
    front = Front()
    front.lineage = "sqlite/3f2a"
    front.add("orders", ORDERS, lookup=["email"], indexes={"by_customer": ["customer_id"]})
    front.put(ORDERS, *ROWS)
    return front


def plain(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message)
    return found
