"""
What Spark needs to read a log on S3: Hadoop's connector, and how it finds the storage.

The connector is of Hadoop's own version, and the SDK of AWS that it was built with. By its name
alone it brings all of that SDK as one jar of 674 MB; so that one is left out, and the few parts
that it uses are named. What Spark has itself is left out as well: two versions of Netty or of a
logging library in one JVM do not get on.

Who we are comes by AWS's own ways, on both sides: in settings of Spark it would stand on its pages.
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
"""Requests, renames and large uploads, roles, and what speaks HTTP."""

_READER = "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
"""Without it no call works, whichever way of reading is set."""

_OF_HADOOP = {"3.5.0": ("2.35.4", "1.3.1")}
"""By Hadoop's version: that of the SDK, and of its reader; each set was tried as a whole."""

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
    # What Spark itself takes from the driver's environment, and passes on to executors.
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    # Profiles, web identities, containers and machines, as for every other tool.
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)
_ANY_REGION = "us-east-1"
"""For a storage that is not AWS's: signatures name some region."""


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
"""By name alone: what they say may name keys."""


def s3_needs(
    conf: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    home: Path | None = None,
) -> dict[str, str]:
    """
    Return the settings that a Spark is started with for a log on S3.

    What `conf` or Spark's own folder, `home`, brings of the connector stays alone. Raises
    `SparkFailed` where there is none for this Spark's Hadoop.
    """
    return {**_jars(conf, home or spark_home()), **storage_settings(environ)}


def storage_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return how Spark finds the storage that AWS's environment names."""
    found = {f"{_FILES}aws.credentials.provider": ",".join(_PROVIDERS)}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        secure = urlsplit(endpoint).scheme != "http"
        found[f"{_FILES}endpoint"] = endpoint
        # Names of buckets are seldom names of hosts elsewhere.
        found[f"{_FILES}path.style.access"] = "true"
        found[f"{_FILES}connection.ssl.enabled"] = "true" if secure else "false"
        region = region or _ANY_REGION
    if region:
        found[f"{_FILES}endpoint.region"] = region
    return found


def unreadable(text: str) -> SparkFailed | None:
    """Return what an error of Spark's says of its way to S3; None where it says nothing."""
    if not any(each in text for each in _NO_CONNECTOR):
        if "s3a://" not in text and ".fs.s3a." not in text:
            return None
        status = _STATUS.search(text)
        return SparkFailed(
            "Spark does not get to the storage that the log lies in",
            remedy="Give AWS's credentials, AWS_REGION and AWS_ENDPOINT_URL_S3 to every executor"
            " as to the engine: by its environment, or a role of its machine.",
            why=next((each for each in _CAUSES if each in text), "unknown"),
            status=status[1] if status else None,
        )
    # For a Spark of the version that is here, though another one may be asked.
    asked = ", ".join(f"{name}={value}" for name, value in _packages().items())
    return SparkFailed(
        "This Spark was started without what reading a log on S3 needs",
        remedy=f"Start it with these settings: {asked}; and, for a storage that is not AWS's,"
        f" {_FILES}endpoint. One of ours has them when no other Spark runs in this process.",
    )


def _jars(conf: Mapping[str, str], home: Path) -> dict[str, str]:
    if "hadoop-aws" in conf.get(PACKAGES, "") + conf.get(_JARS, ""):
        return {}
    if any((home / "jars").glob("hadoop-aws-*.jar")):
        return {}
    # As hadoop-client-api-3.5.0.jar: there is one, and the connector must be of its version.
    names = [path.stem for path in (home / "jars").glob("hadoop-client-api-*.jar")]
    version = names[0].removeprefix("hadoop-client-api-") if names else "unknown"
    if version not in _OF_HADOOP:
        raise SparkFailed(
            "It is not known which jars read S3 with this Spark's Hadoop",
            remedy=f"Name them yourself, {_CONNECTOR}:{version} among them: {PACKAGES}.",
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
