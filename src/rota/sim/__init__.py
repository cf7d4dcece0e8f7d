"""The engine for cores under virtual time: scenario in, report and drawing out."""
