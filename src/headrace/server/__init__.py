"""
The server: an engine on the network.

One child process owns every port. The engine keeps the listening HTTP sockets, starts the child
again if it ends, and answers what the child asks. The child checks who calls and what they may do,
speaks the protocols, and never imports the engine, Arrow or Spark.

Begin with `settings`, then `security`: who may call what.
"""
