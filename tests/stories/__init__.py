"""Stories that cross several parts of rota, with real processes and real files."""
