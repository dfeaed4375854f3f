"""
Commands to a running engine, from other processes of the same user.

```
 handlers     what is asked and answered, as plain values: no transport
 messages     what an engine reports about itself
 table_reads  rows and changes of a target
 server       HTTP over a unix socket, as Connect has it, and where the socket lies
 client       the other end
 connect      messages and errors as bytes
```
"""
