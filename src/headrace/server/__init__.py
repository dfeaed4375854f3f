"""
The server: an engine on the network.

One child process owns every port. The engine keeps the listening HTTP sockets, starts the child
again if it ends, and answers what the child asks. The child checks who calls and what they may do,
speaks the protocols, and never imports the engine, Arrow or Spark.

```
 network       hr.serve, and what headrace run starts
 supervisor    the engine's side: sockets, the child, what a status says
 answers       the engine's side: requests and streams
 channel       frames between the two processes
 child         the process that serves
 link          the child's side: the engine, as far as it is known there
 application   HTTP: the services, health, metrics, events, the files of the console
 http_request  one request over HTTP, and the limits of its connection
 grpc_service  gRPC: the services, health, reflection
 settings      where it listens, who may call it
 security      who calls, and what they may do
 tls           certificates, and their renewal
 audit         who changed what, and who was refused
```

Begin with `supervisor`, then `link`: the two ends. For who may call what, begin with `settings`.
"""
