"""Passwords are found wherever they are written, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.schema import nearest
from headrace.config.secrets import (
    Secret,
    is_secret,
    masked_connection,
    masked_text,
    password_in,
    read_secret,
    without_password,
)
from headrace.errors import NoSecret
from tests.support.tiers import examples

SHOWN = [
    ("postgresql://me:hunter2@db:5432/shop", "postgresql://me:***@db:5432/shop"),
    ("postgresql://me:hun@ter/2@db/shop", "postgresql://me:***@db/shop"),
    ("postgres://db/shop?user=me&password=hunter2", "postgres://db/shop?user=me&password=***"),
    ("host=db user=me password=hunter2", "host=db user=me password=***"),
    ("host=db password = 'hun\\'ter2 x' port=5", "host=db password=*** port=5"),
    ("host=db options=-chunter2", "host=db options=***"),
]


@pytest.mark.parametrize(("connection", "shown"), SHOWN)
def test_a_connection_is_shown_without_what_may_be_secret(connection: str, shown: str) -> None:
    assert masked_connection(connection) == shown


@pytest.mark.parametrize("connection", ["hunter2", "host=db 'hunter2", "=hunter2", "a b c"])
def test_a_connection_that_is_not_understood_is_not_shown(connection: str) -> None:
    assert masked_connection(connection) == "***"


@pytest.mark.parametrize("connection", [each for each, _ in SHOWN[:5]])
def test_a_password_that_is_written_out_is_found(connection: str) -> None:
    assert password_in(connection)
    assert not password_in(without_password(connection))
    assert "ter2" not in without_password(connection)


@pytest.mark.parametrize(
    "connection",
    [
        "postgresql://me@db/shop",
        "postgresql:///shop",
        "host=db user=me",
        "host=db password=''",
        "x",
    ],
)
def test_a_connection_without_a_password_is_in_order(connection: str) -> None:
    assert not password_in(connection)


@given(
    st.text("abcXYZ059:/@?&=%'\\ #", min_size=6, max_size=20).filter(lambda t: "hunter2" not in t)
)
@examples(200)
def test_no_password_of_an_address_is_ever_shown(noise: str) -> None:
    assert "hunter2" not in masked_connection(f"postgresql://me:hunter2{noise}@db/shop")
    assert "hunter2" not in masked_connection(f"host=db password='hunter2{noise}")


def test_text_is_shown_without_passwords_in_it() -> None:
    text = "see http://me:hunter2@host/x or password=hunter2 of it"
    assert masked_text(text) == "see http://***@host/x or password=*** of it"
    assert masked_text("http://a:hun@ter2@host") == "http://***@host"
    assert masked_text("https://h/c?sv=1&sig=hunter2%3D&se=2") == "https://h/c?sv=1&sig=***&se=2"
    assert masked_text("Name=a;AccountKey=hunter2==") == "Name=a;AccountKey=***"
    assert masked_text("design=plain signal=5") == "design=plain signal=5"
    assert masked_text("-DtrustStorePassword=hunter2 -Dx=1") == "-DtrustStorePassword=*** -Dx=1"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("password", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("api_token", True),
        ("auth_header", True),
        ("spark.hadoop.fs.azure.sas.c.a", True),
        ("spark.hadoop.fs.azure.account.key.a.blob.core.windows.net", True),
        ("spark.executorEnv.AWS_KEY", True),
        ("spark.executorEnv.ANYTHING", True),
        ("spark.yarn.appMasterEnv.X", True),
        ("encryption_key", True),
        ("spark.sql.shuffle.partitions", False),
        ("spark.hadoop.fs.azure.sasaki.endpoint", False),
        ("password_ref", False),
        ("streams_per_token", False),
        ("key_fields", False),
        ("lookup_fields", False),
        ("spark.driver.memory", False),
    ],
)
def test_names_that_speak_of_secrets_are_known(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_a_secret_is_read_from_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    file = tmp_path_factory.mktemp("secrets") / "password"
    file.write_text("hunter2\n")
    assert Secret("env:SHOP_PASSWORD").read() == Secret(f"file:{file}").read() == "hunter2"


def test_a_secret_does_not_print() -> None:
    assert repr(Secret("env:X")) == "Secret('env:X')"
    assert "hunter2" not in repr(Secret("hunter2")) + str(Secret("hunter2"))


def test_a_secret_is_not_awaited_at_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "password")
    with pytest.raises(NoSecret, match="pipe, a device or a socket"):
        read_secret(f"file:{tmp_path}/password")


@pytest.mark.parametrize("reference", ["env:NOT_SET_AT_ALL", "file:/not/there", "hunter2", "a:b"])
def test_a_reference_that_leads_nowhere_is_an_error(reference: str) -> None:
    with pytest.raises(NoSecret) as caught:
        read_secret(reference)
    assert "hunter2" not in str(caught.value) + caught.value.remedy


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("conection", "connection"),
        ("pasword_ref", "password_ref"),
        ("equals", "field-equals"),
        ("slot", "slot_mode"),
        ("tpye", "type"),
        ("whatever", None),
    ],
)
def test_the_nearest_word_is_the_one_that_was_meant(word: str, meant: str | None) -> None:
    known = ["connection", "password_ref", "field-equals", "slot_mode", "type"]
    assert nearest(word, known) == meant
