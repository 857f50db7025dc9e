"""Serve Forerun's edges beside an engine that decides its own steps: sessions are requests of that engine."""
