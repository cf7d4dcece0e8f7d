"""Every SQL statement, in one place, each with a name and a sentence. The caller passes `now`.

One module for each part of the kernel. A list of ids is passed as JSON, since a statement has a fixed number
of parameters and its plan should not depend on how many ids there are. A limit is written `LIMIT +?`: SQLite
prepares a statement anew whenever a bare `LIMIT ?` is bound, which makes it eight times as slow.
"""
