"""Lanes: how ready invocations are executed. One module per kind of lane, and the parts they share."""
