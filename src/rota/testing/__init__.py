"""For people who write policies, runners and agents: the same tools rota tests itself with."""
