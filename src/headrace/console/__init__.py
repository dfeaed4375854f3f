"""
The web console: files that a browser loads, and nothing that runs in Python.

`static/` has one page, one style sheet and ES modules; there is no build step, and nothing comes
from another server. The server reads all files of the folder when it starts, and serves them under
`/`. The page talks to the server that it came from, in JSON by the Connect protocol: the verbs of
`/headrace.v1.ControlService/`, and `POST /session` to sign in.

Begin with `app.js`: it has the routes, and the frame around every view. `dom.js` draws, `rpc.js`
asks, `store.js` keeps what was answered, `ui.js` and `charts.js` have the parts that views share,
and each view is a module of its own. Text is drawn as text, never as markup, and styles are set by
properties: the page works under a policy of `default-src 'self'`.
"""
