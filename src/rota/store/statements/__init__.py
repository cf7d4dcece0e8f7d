"""Every SQL statement, with a name and a description. The caller passes `now`.

There is one module for each part of the kernel. A list of ids is passed as JSON, because a statement has a fixed number
of parameters and its plan should not depend on the number of ids. Where rows are ordered or limited, a parameter is
written `+?`: for a bare one SQLite plans the statement again at each use, in case another value needs another plan, and
that takes eight times as long as running it.
"""
