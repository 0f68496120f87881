"""Data sets in their libraries' own folder layouts, each file checked before it is read."""
