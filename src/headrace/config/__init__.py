"""
Configuration: parsed with source locations, checked, and frozen into values.

Imports only `errors`. It defines the language and the kinds of values, but no key of a source, a
target or the engine: each part declares its own keys, and those of the engine are in
`engine/config_keys.py`.

Begin with `load`, which lists the layers of a configuration, then read `schema`.

```
 text     source locations, characters, and the tree of values before and after resolution
 hocon    the HOCON parser, for the subset that the guide describes
 resolve  looks up substitutions and merges layers
 load     file, fragments, environment and options, each overriding the previous ones
 schema   keys, the kinds of values they take, and validation
 units    durations and sizes with units
 plugins  maps `type = …` to a part, built in or from another package
 secrets  references to secrets, and masking of displayed values
 show     the effective configuration, with the origin of every value
```
"""
