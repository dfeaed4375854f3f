"""
The engine as users see it: pipelines, status, replay, configuration.

It may import `runtime` and the packages below it. It depends neither on the socket (`api`) nor on
the command line (`cli`), and on no target class (`lake`). What runs on threads is in `runtime`;
here it is checked, built, started, changed and stopped.

Begin with `engine`: the drawing in its docstring gives the order of a start and of a stop.

```
 config_keys   the keys of a configuration, and the catalogues of parts it may name
 from_config   an engine from a configuration
 checks        checks before a start; all errors are reported together
 tables        the tables of each source that an engine records: by name, or by pattern
 preview       a trial of a pipeline on a few real rows, before anything is started
 engine        `Engine`: pipelines started, supervised and stopped; `record`
 state         `EngineState`: sources, pipelines and what runs for them
 assembly      the runs of sources and pipelines, built for a start or a change
 status        readiness, states, counts, lag and targets, as observed now
 health        live, ready and startup, with the reasons if one is red
 metrics       the list of all metrics, computed from the status
 reconfigure   pipelines added to a running engine and dropped from it
 apply_config  what a changed configuration requires of a running engine
 replay        part of the log delivered to another target
```
"""
