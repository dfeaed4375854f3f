"""
Commands to a running engine, from other processes of the same user.

```
 handlers   what is asked and answered, as plain values: no transport
 server     HTTP over a unix socket, as Connect has it       place    where the socket lies
 client     the other end                                    connect  messages and errors as bytes
```
"""
