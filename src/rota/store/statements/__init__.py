"""Every SQL statement, in one place, each with a name and a sentence. The caller passes `now`.

One module for each part of the kernel. A list of ids is passed as JSON, since a statement has a fixed number
of parameters and its plan should not depend on how many ids there are. Where rows are ordered or
limited, a parameter is written `+?`: for a bare one SQLite plans the statement anew each time it is bound, in case
another value would deserve another plan, and that takes eight times as long as running it.
"""
