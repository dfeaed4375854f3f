"""
Configuration: text with places in files, checked into values that do not change.

It may import `errors` alone. It knows the language and the kinds of keys, and no key of a source, a
target or the engine: each part declares its own, and those of the engine are in
`engine/config_keys.py`.

Begin with `load`, which lists what a configuration is put together from, then read `schema`.

```
 text     places in a text, the meaning of its characters, and the tree that is read
 hocon    the reader of HOCON, or of that part of it which the guide describes
 resolve  substitutions looked up, layers merged
 load     file, fragments, environment and options, each on top of the ones before
 schema   keys, the kinds of values they take, and the check against them
 units    durations and sizes as people write them
 plugins  parts by type: what `type = …` stands for, ours and those of other packages
 secrets  secrets by reference, and masked wherever a value is shown
 show     a checked configuration as it is in effect, with the origin of every value
```
"""
