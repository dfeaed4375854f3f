"""
What Spark needs to read a log on S3: Hadoop's connector, and its settings.

The connector must have Hadoop's own version, and needs the AWS SDK that it was built with. By
default it brings all of that SDK as one jar of 674 MB; so that jar is excluded, and the few parts
that it uses are named. What Spark has itself is excluded as well: two versions of Netty or of a
logging library in one JVM conflict.

Credentials come from AWS's usual sources, for the driver and for executors: in Spark's settings
they would be visible on its pages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import SparkFailed
from headrace.spark_session.jvm import spark_home
from headrace.spark_session.settings import EXCLUDES, IVY, PACKAGES, ivy_folder

_CONNECTOR = "org.apache.hadoop:hadoop-aws"
_FILES = "spark.hadoop.fs.s3a."
_JARS = "spark.jars"

_SDK = "software.amazon.awssdk"
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client")
"""Requests, renames and large uploads, roles, and the HTTP client."""

_READER = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
"""Without it no call works, whichever kind of reading is set."""

_OF_HADOOP = {"3.5.0": ("2.35.4", "1.3.1")}
"""By Hadoop's version: the versions of the SDK and of its reader, tested together."""

_NETTY = (
    "buffer",
    "codec",
    "codec-http",
    "codec-http2",
    "common",
    "handler",
    "resolver",
    "transport",
    "transport-classes-epoll",
    "transport-native-unix-common",
)
_LEFT_OUT = (
    f"{_SDK}:bundle",
    "org.slf4j:slf4j-api",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    *(f"io.netty:netty-{part}" for part in _NETTY),
)

_PROVIDERS = (
    # What Spark itself reads from the driver's environment, and passes to executors.
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    # Profiles, web identities, containers and machines, as for every other tool.
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)
_ANY_REGION = "us-east-1"
"""For storage that is not AWS: signatures need some region."""


_NO_CONNECTOR = ("fs.s3a.S3AFileSystem not found", 'scheme "s3a"')
_STATUS = re.compile(r"Status Code: (\d+)")
_CAUSES = (
    "NoAwsCredentialsException",
    "AccessDeniedException",
    "UnknownHostException",
    "ConnectException",
    "ClassNotFoundException",
    "NoClassDefFoundError",
    "SdkClientException",
    "AWSRedirectException",
    "AWSBadRequestException",
    "FileNotFoundException",
)
"""Only by name: their texts may contain keys."""


def s3_needs(
    conf: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    spark_folder: Path | None = None,
) -> dict[str, str]:
    """
    Return the settings to start Spark with for a log on S3.

    No jars are added if `conf`, or Spark's own folder, already has the connector. Raises
    `SparkFailed` if no connector is known for this Spark's Hadoop.
    """
    return {**_jars(conf, spark_folder or spark_home()), **storage_settings(environ)}


def storage_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings for the storage that AWS's environment variables name."""
    found = {f"{_FILES}aws.credentials.provider": ",".join(_PROVIDERS)}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        secure = urlsplit(endpoint).scheme != "http"
        found[f"{_FILES}endpoint"] = endpoint
        # Outside AWS, buckets rarely have their own host names.
        found[f"{_FILES}path.style.access"] = "true"
        found[f"{_FILES}connection.ssl.enabled"] = "true" if secure else "false"
        region = region or _ANY_REGION
    if region:
        found[f"{_FILES}endpoint.region"] = region
    return found


def unreadable(text: str) -> SparkFailed | None:
    """Return our error if the text of a Spark error is about S3; None if it is not."""
    if not any(each in text for each in _NO_CONNECTOR):
        if "s3a://" not in text and ".fs.s3a." not in text:
            return None
        status = _STATUS.search(text)
        return SparkFailed(
            "Spark cannot access the log's storage",
            remedy="Give every executor the same AWS credentials, AWS_REGION and"
            " AWS_ENDPOINT_URL_S3 as the engine: in its environment, or by a role of its machine.",
            why=next((each for each in _CAUSES if each in text), "unknown"),
            status=status[1] if status else None,
        )
    # For the installed version of Spark, although another one may be running.
    asked = ", ".join(f"{name}={value}" for name, value in _packages().items())
    return SparkFailed(
        "Spark was started without the settings that a log on S3 needs",
        remedy=f"Start it with these settings: {asked}; and, if the storage is not AWS,"
        f" {_FILES}endpoint. The engine sets them itself if no other Spark runs in this process.",
    )


def _jars(conf: Mapping[str, str], spark_folder: Path) -> dict[str, str]:
    if "hadoop-aws" in conf.get(PACKAGES, "") + conf.get(_JARS, ""):
        return {}
    jars = spark_folder / "jars"
    if any(jars.glob("hadoop-aws-*.jar")):
        return {}
    # Such as hadoop-client-api-3.5.0.jar: the connector must have the same version.
    names = [path.stem for path in jars.glob("hadoop-client-api-*.jar")]
    version = names[0].removeprefix("hadoop-client-api-") if names else "unknown"
    if version not in _OF_HADOOP:
        raise SparkFailed(
            f"Headrace does not know the jars that read S3 with Hadoop {version}",
            remedy=f"Set them yourself in {PACKAGES}, with {_CONNECTOR}:{version}.",
            hadoop=version,
            known=", ".join(_OF_HADOOP),
        )
    return {**_packages(version), IVY: str(ivy_folder())}


def _packages(hadoop: str = "3.5.0") -> dict[str, str]:
    sdk, reader = _OF_HADOOP[hadoop]
    named = [
        f"{_CONNECTOR}:{hadoop}",
        f"{_READER}:{reader}",
        *(f"{_SDK}:{part}:{sdk}" for part in _SDK_PARTS),
    ]
    return {PACKAGES: ",".join(named), EXCLUDES: ",".join(_LEFT_OUT)}
