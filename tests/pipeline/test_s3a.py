"""What Spark is started with for a log on S3, and what its errors mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SparkFailed
from headrace.lake.formats import DELTA, needs
from headrace.spark_session.s3a import s3_needs, storage_settings, unreadable
from headrace.spark_session.settings import merged

S3A = "spark.hadoop.fs.s3a."
KEYS = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "the-secret"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a Spark with Hadoop 3.5.0."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-client-api-3.5.0.jar").touch()
    return tmp_path


def test_the_connector_comes_without_the_one_large_jar(home: Path) -> None:
    found = s3_needs({}, {}, home)
    packages = found["spark.jars.packages"].split(",")
    assert "org.apache.hadoop:hadoop-aws:3.5.0" in packages
    assert "software.amazon.awssdk:s3:2.35.4" in packages
    assert "software.amazon.awssdk:bundle" in found["spark.jars.excludes"].split(",")


def test_it_goes_together_with_what_targets_and_users_want(home: Path) -> None:
    found, delta = s3_needs({}, {}, home), needs(DELTA, "4.2.1")
    own = {"spark.jars.packages": "a:b:1", "spark.jars.excludes": "c:d"}
    both = merged(own, [delta, found, found])
    assert both["spark.jars.packages"] == ",".join(
        ["a:b:1", delta["spark.jars.packages"], found["spark.jars.packages"]]
    )
    assert both["spark.jars.excludes"] == f"c:d,{found['spark.jars.excludes']}"


def test_a_connector_that_is_there_already_stays_alone(home: Path) -> None:
    theirs = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}
    assert "spark.jars.packages" not in s3_needs(theirs, {}, home)
    assert "spark.jars.packages" not in s3_needs(
        {"spark.jars": "/j/hadoop-aws-3.5.0.jar"}, {}, home
    )
    (home / "jars" / "hadoop-aws-3.5.0.jar").touch()
    assert "spark.jars.packages" not in s3_needs({}, {}, home)


def test_of_another_hadoop_it_is_said_that_its_jars_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "hadoop-client-api-3.4.2.jar").touch()
    with pytest.raises(SparkFailed) as found:
        s3_needs({}, {}, tmp_path)
    assert "hadoop-aws:3.4.2" in found.value.remedy


def test_the_way_to_the_storage_is_that_of_awss_own_tools() -> None:
    assert set(storage_settings({})) == {f"{S3A}aws.credentials.provider"}
    assert storage_settings({"AWS_DEFAULT_REGION": "eu-central-1"})[f"{S3A}endpoint.region"] == (
        "eu-central-1"
    )
    plain = storage_settings({"AWS_ENDPOINT_URL": "http://127.0.0.1:7070"})
    assert plain[f"{S3A}endpoint"] == "http://127.0.0.1:7070"
    assert plain[f"{S3A}path.style.access"] == "true"
    assert plain[f"{S3A}connection.ssl.enabled"] == "false"
    assert plain[f"{S3A}endpoint.region"]
    both = {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "https://store.example"}
    assert storage_settings(both)[f"{S3A}endpoint"] == "https://store.example"
    assert storage_settings(both)[f"{S3A}connection.ssl.enabled"] == "true"


def test_no_key_stands_in_a_setting(home: Path) -> None:
    found = s3_needs({}, {**KEYS, "AWS_SESSION_TOKEN": "the-token"}, home)
    assert not any(secret in str(found) for secret in ("the-key", "the-secret", "the-token"))


def test_what_is_in_sparks_way_to_s3_is_said_by_name() -> None:
    lacks = (
        "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"
    )
    found = unreadable(lacks)
    assert found is not None
    assert "spark.jars.packages=org.apache.hadoop:hadoop-aws" in found.remedy
    denied = unreadable(
        "java.nio.file.AccessDeniedException: s3a://b/probe: getFileStatus on s3a://b/probe:"
        " software.amazon.awssdk.services.s3.model.S3Exception: (Service: S3, Status Code: 403)"
    )
    assert denied is not None
    assert (denied.facts["why"], denied.facts["status"]) == ("AccessDeniedException", "403")
    assert unreadable("PythonException: something else") is None
