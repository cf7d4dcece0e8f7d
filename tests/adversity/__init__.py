"""Where rota's assumptions end: forks, clocks that jump, files that vanish, damaged rows, hostile neighbours."""
