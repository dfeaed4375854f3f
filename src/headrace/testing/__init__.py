"""
Fakes and contract suites: for our own tests, and for those who write sources and targets.

It is part of the product. It may import `errors`, `storage`, `changelog`, `tables`, and of
`capture` and `targets` only the two contracts that others implement, so that it works with a source
or a target from another package. No package imports it.

Begin with `contracts`: its docstring shows a suite of one's own.

```
 contracts  what every source and every target must do, as tests for pytest to collect
 source     a source in memory that a test controls, and the table `things` of all suites
 target     a target that survives its process and fails on command, and its `TargetDisk`
```
"""

from headrace.testing.contracts import SourceContract, TargetContract
from headrace.testing.source import MemorySource
from headrace.testing.target import ScriptedTarget, TargetDisk

__all__ = ["MemorySource", "ScriptedTarget", "SourceContract", "TargetContract", "TargetDisk"]
