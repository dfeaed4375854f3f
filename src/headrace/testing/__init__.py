"""Fakes and contract suites: for our own tests, and for those who write sources and targets."""

from headrace.testing.contracts import SourceContract, TargetContract
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk

__all__ = ["MemorySource", "ScriptedTarget", "SourceContract", "TargetContract", "TargetDisk"]
