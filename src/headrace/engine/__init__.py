"""
The engine that a user holds: pipelines, status, replay, configuration.

It may import `runtime` and what is below it. It knows neither the socket (`api`) nor the command
line (`cli`) by which commands arrive, nor any target by its class (`lake`). What runs on threads is
in `runtime`; here it is put together, checked, started, changed and stopped.

Begin with `engine`: the drawing in its docstring gives the order of a start and of a stop.

```
 config_keys   the keys of a configuration, and the catalogues of parts it may name
 from_config   an engine from a configuration
 checks        everything that can be found wrong before a start, reported together
 tables        which tables of each source an engine takes: by name, or by a pattern
 preview       a pipeline tried on a few real rows, before anything is started
 engine        `Engine`: pipelines started, supervised and stopped; `record`
 state         `EngineState`: sources, pipelines and what runs for them
 assembly      the runs of sources and pipelines, put together for a start or a change
 status        readiness, states, counts, lag and targets, as observed now
 reconfigure   pipelines added to an engine at work and removed from it
 apply_config  what a changed configuration asks of an engine at work, and doing it
 replay        a part of the log brought to another target, beside the pipeline
```
"""
