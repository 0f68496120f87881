"""How a check says that a promise is not kept."""


class Broken(AssertionError):
    """A promise that a method or a task does not keep: what is broken, and where to look."""

    def __init__(self, what: str, look: str):
        super().__init__(f"{what}\n  look: {look}")


def require(kept: bool, what: str, look: str) -> None:
    """Raise Broken unless a promise is kept."""
    if not kept:
        raise Broken(what, look)
