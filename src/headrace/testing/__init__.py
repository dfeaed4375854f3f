"""
Fakes and contract suites, for our own tests and for authors of sources and targets.

It is part of the product. It may import `errors`, `storage`, `changelog`, `tables`, and from
`capture` and `targets` only the two contracts that plugins implement, so that it works with a
source or a target from another package. No package imports it.

Begin with `contracts`: its docstring shows how to write your own suite.

```
 contracts  the contracts of sources and targets, as tests that pytest collects
 source     a source in memory that a test controls, and the table `things` of all suites
 target     a target whose data outlives it and that fails on command, and its `TargetDisk`
```
"""

from headrace.testing.contracts import SourceContract, TargetContract
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk

__all__ = ["MemorySource", "ScriptedTarget", "SourceContract", "TargetContract", "TargetDisk"]
