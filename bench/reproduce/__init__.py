"""Every table and figure of a paper from one command, the published numbers beside the measured."""
