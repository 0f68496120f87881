"""The league: every method on a track's tasks under one tuning budget, and what came of it."""
